"""A small convolutional network in an ONNX file: in its own types, in float16, and in a batch.

Runs on the CPU, and on CUDA if onnxruntime has its CUDA provider: pip install onnxruntime-gpu.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import trio
from onnx import TensorProto, helper, numpy_helper

from atomr_accel import open_device


def network(rng: np.random.Generator) -> onnx.ModelProto:
    """Two convolutions and a classifier of 10 classes, for pictures of 3 x 32 x 32."""
    weights = {
        "k1": rng.standard_normal((16, 3, 3, 3), np.float32) / 5,
        "k2": rng.standard_normal((32, 16, 3, 3), np.float32) / 12,
        "w": rng.standard_normal((32, 10), np.float32) / 6,
    }
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "k2"], ["c2"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


async def main() -> None:
    """Build engines of a file, and compare them."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        onnx.save(network(rng), path)
        async with open_device(0, backend="cpu") as device:
            profile = {"x": ((1, 32), 3, 32, 32)}
            engine = await device.engine.build(path, profiles=profile)
            half = await device.engine.build(path, profiles=profile, precision="fp16")
            x = await device.put(rng.standard_normal((8, 3, 32, 32), np.float32))
            async with device.batch() as batch:
                y = batch.using(engine)(x=x)
                near = batch.using(half)(x=x)
            classes = await device.get(y)
            error = abs(classes - await device.get(near)).max()
            print(f"{engine!r}: {classes.shape}, and float16 is off by {error:.1e}")
            np.testing.assert_allclose(classes.sum(1), 1, rtol=1e-5)
            assert error < 1e-2
            print(engine.statistics())


if __name__ == "__main__":
    trio.run(main)
