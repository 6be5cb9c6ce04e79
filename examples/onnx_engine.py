"""A ResNet-50 in an ONNX file: in float32, in float16, and in int8 by its own nodes.

Its weights are random, and it is an eighth as wide as the one that is known, so that all takes
seconds. ``--width 64 --pixels 224`` gives the full size.

Runs on the CPU, and on CUDA if onnxruntime has its CUDA provider: pip install onnxruntime-gpu.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import trio
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from atomr_accel import open_device

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class _Network:
    """Nodes and weights of a model, in the order of its layers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._rng = rng

    def add(self, kind: str, inputs: list[str], **options: Any) -> str:
        """Add a node; return the name of its output."""
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **options))
        return name

    def weight(self, shape: tuple[int, ...], scale: float) -> str:
        """Add random weights, or zeros."""
        value = self._rng.standard_normal(shape, np.float32) * np.float32(scale)
        self.weights.append(numpy_helper.from_array(value, f"w{len(self.weights)}"))
        name: str = self.weights[-1].name
        return name

    def conv(self, x: str, sizes: tuple[int, int, int], stride: int = 1, gain: float = 1) -> str:
        """Add a convolution, with the normalisation of a trained network folded into it."""
        ours, theirs, side = sizes
        w = self.weight((theirs, ours, side, side), gain * (2 / (ours * side * side)) ** 0.5)
        b = self.weight((theirs,), 0.01)
        pads = [side // 2] * 4
        return self.add("Conv", [x, w, b], strides=[stride] * 2, pads=pads)


def resnet50(rng: np.random.Generator, width: int = 64, pixels: int = 224) -> onnx.ModelProto:
    """A ResNet-50 with random weights, for pictures of 3 x ``pixels`` x ``pixels``."""
    net = _Network(rng)
    x = net.add("Relu", [net.conv("pictures", (3, width, 7), 2)])
    x = net.add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.add("Relu", [net.conv(x, (channels, inner, 1))])
            y = net.add("Relu", [net.conv(y, (inner, inner, 3), stride)])
            y = net.conv(y, (inner, 4 * inner, 1), gain=0.3)
            if not block:
                x = net.conv(x, (channels, 4 * inner, 1), stride, gain=0.7)
            channels = 4 * inner
            x = net.add("Relu", [net.add("Add", [x, y])])
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])])
    w, b = net.weight((channels, 1000), channels**-0.5), net.weight((1000,), 0.01)
    net.nodes.append(helper.make_node("Gemm", [x, w, b], ["classes"], name="classes"))
    graph = helper.make_graph(
        net.nodes,
        "resnet50",
        [helper.make_tensor_value_info("pictures", TensorProto.FLOAT, ["N", 3, pixels, pixels])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["N", 1000])],
        net.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class _Pictures(CalibrationDataReader):  # type: ignore[misc] # onnxruntime has no types
    """Pictures by which the ranges of activations are measured."""

    def __init__(self, batches: Iterable[NDArray[np.float32]]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"pictures": batch}


def in_int8(path: Path, batches: Iterable[NDArray[np.float32]]) -> Path:
    """Write the model of a file with nodes that quantize weights and activations."""
    to = path.with_suffix(".int8.onnx")
    quantize_static(path, to, _Pictures(batches), per_channel=True, activation_type=QuantType.QInt8)
    return to


async def main(width: int = 8, pixels: int = 64) -> None:
    """Build three engines of a network, and compare them with onnxruntime and each other."""
    rng = np.random.default_rng(0)
    pictures = rng.standard_normal((8, 3, pixels, pixels), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.onnx"
        onnx.save(resnet50(rng, width, pixels), path)
        quantized = in_int8(path, [pictures])
        async with open_device(0, backend="cpu") as device:
            profile = {"pictures": ((1, 32), 3, pixels, pixels)}
            engine = await device.engine.build(path, profiles=profile)
            half = await device.engine.build(path, profiles=profile, precision="fp16")
            int8 = await device.engine.build(quantized, profiles=profile)
            x = await device.put(pictures, sealed=True)
            async with device.batch() as batch:
                results = [batch.using(each)(pictures=x) for each in (engine, half, int8)]
            exact, *others = [await device.get(each) for each in results]
            alone = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            np.testing.assert_allclose(
                exact, alone.run(None, {"pictures": pictures})[0], rtol=1e-3, atol=1e-4
            )
            for name, most, each in zip(("float16", "int8"), (1e-2, 0.3), others, strict=True):
                error = np.linalg.norm(each - exact) / np.linalg.norm(exact)
                print(f"{name} is off by {error:.1e}")
                assert error < most
            print(engine.statistics())


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # onnxruntime advises to prepare the model, which is
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--pixels", type=int, default=64)
    given = parser.parse_args()
    trio.run(main, given.width, given.pixels)
