"""Engines of ONNX models next to onnxruntime alone, with its own buffers and the same threads.

Each round times both, one after the other, so that both see the same machine. The ratio is that of
medians: 1.00 is as fast as onnxruntime alone, and less is slower. Overhead counts in small models.
Without onnxruntime's CUDA provider, devices of CUDA have nothing to compare.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import trio
from onnx import TensorProto, helper, numpy_helper

from atomr_accel import Unsupported, open_device

if TYPE_CHECKING:
    from atomr_accel import Device

ROUNDS = 15


def convolutions(rng: np.random.Generator, blocks: int, channels: int) -> bytes:
    """Residual blocks of two 3 x 3 convolutions, and a classifier: a small ResNet."""
    nodes, weights, last = [], {}, "x"
    for at in range(blocks):
        names = [f"{kind}{at}" for kind in "abcdef"]
        for k in (0, 1):
            shape = (channels, channels, 3, 3)
            scale = np.float32(0.5 / (9 * channels) ** 0.5)
            weights[f"w{at}{k}"] = rng.standard_normal(shape, np.float32) * scale
        nodes += [
            helper.make_node("Conv", [last, f"w{at}0"], [names[0]], pads=[1] * 4),
            helper.make_node("Relu", [names[0]], [names[1]]),
            helper.make_node("Conv", [names[1], f"w{at}1"], [names[2]], pads=[1] * 4),
            helper.make_node("Add", [names[2], last], [names[3]]),
            helper.make_node("Relu", [names[3]], [names[4]]),
        ]
        last = names[4]
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "resnet",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", channels, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", channels, 1, 1])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return made


async def compare(
    device: Device, backend: str, name: str, model: bytes, x: Any, calls: int
) -> None:
    """Print medians of both, and their ratio."""
    engine = await device.engine.build(model)
    ref = await device.put(x)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    provider = "CUDAExecutionProvider" if backend == "cuda" else "CPUExecutionProvider"
    session = onnxruntime.InferenceSession(model, options, providers=[provider])
    binding = session.io_binding()
    where = "cuda" if backend == "cuda" else "cpu"
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x, where, 0))
    binding.bind_output("y", where)
    session.run_with_iobinding(binding)
    expected = binding.copy_outputs_to_cpu()[0]
    np.testing.assert_allclose(await device.get(await engine(x=ref)), expected, 1e-3, 1e-4)
    ours, alone = [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            y = await engine(x=ref)
        await device.free(y)
        ours.append((time.perf_counter() - begin) / calls)
        begin = time.perf_counter()
        for _ in range(calls):
            session.run_with_iobinding(binding)
        alone.append((time.perf_counter() - begin) / calls)
    mine, theirs = statistics.median(ours), statistics.median(alone)
    print(
        f"{name:34} engine {mine * 1e3:8.3f} ms  onnxruntime {theirs * 1e3:8.3f} ms  "
        f"ratio {theirs / mine:.2f}"
    )


async def main(backend: str) -> None:
    """Compare small and larger batches."""
    rng = np.random.default_rng(0)
    async with open_device(0, backend=backend) as device:
        for blocks, channels, rows, calls in ((1, 8, 1, 50), (4, 32, 1, 5), (4, 32, 32, 1)):
            model = convolutions(rng, blocks, channels)
            x = rng.standard_normal((rows, channels, 28, 28), np.float32)
            name = f"{blocks} blocks of {channels} channels, batch {rows}"
            try:
                await compare(device, backend, name, model, x, calls)
            except Unsupported as error:
                print(f"{name}: {error}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "cpu")
