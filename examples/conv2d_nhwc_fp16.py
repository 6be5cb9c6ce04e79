"""A block of a residual network in float16, channels last: convolutions fused with what follows."""

import warnings
from typing import Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device


def conv(x: np.ndarray, w: np.ndarray, padding: int) -> np.ndarray:
    """Compute the convolution in float64, with a product for each tap of the filter."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    taps = w.shape[1]
    height, width = (size - taps + 1 for size in x.shape[1:3])
    y = np.zeros((x.shape[0], height, width, w.shape[0]))
    for i in range(taps):
        for j in range(taps):
            y += x[:, i : i + height, j : j + width] @ w[:, i, j].T
    return y


async def main() -> None:
    """Run a block forward and a step back, and compare with float64."""
    rng = np.random.default_rng()
    x = rng.standard_normal((4, 28, 28, 64)).astype(np.float16)  # images, rows, columns, channels
    w1 = (rng.standard_normal((64, 3, 3, 64)) / 24).astype(np.float16)
    w2 = (rng.standard_normal((64, 1, 1, 64)) / 8).astype(np.float16)
    bias = rng.standard_normal(64).astype(np.float16)

    async with open_device(0) as device:
        dnn = device.dnn
        images, first, second = [await device.put(array) for array in (x, w1, w2)]
        shift = await device.put(bias)
        window: Any = {"padding": 1, "layout": "NHWC"}
        hidden = await dnn.conv(images, first, bias=shift, activation="relu", **window)

        # The second convolution, the shortcut and the last activation are one graph.
        graph = dnn.graph()
        shape = (4, 64, 28, 28)  # in graphs channels come after the batch, whatever the layout
        h = graph.tensor(shape, "float16", channels_last=True, name="hidden")
        skip = graph.tensor(shape, "float16", channels_last=True, name="skip")
        w = graph.tensor((64, 64, 1, 1), "float16", channels_last=True, name="w")
        plan = await graph.build(graph.relu(graph.conv(h, w) + skip))
        y = await plan(hidden=hidden, skip=images, w=second)

        # A gradient: what the first filters contributed to the sum of the hidden layer.
        ones = await device.put(np.ones(hidden.shape, np.float16))
        slope = await dnn.relu_grad(ones, hidden)
        gradient = await dnn.conv_weight_grad(slope, images, w1.shape, **window)
        got, found, dw = [await device.get(ref) for ref in (y, hidden, gradient)]

    wide = x.astype(float)
    exact = np.maximum(conv(wide, w1.astype(float), 1) + bias.astype(float), 0)
    np.testing.assert_allclose(found, exact, atol=2e-2)
    result = np.maximum(conv(exact, w2.astype(float), 0) + wide, 0)
    np.testing.assert_allclose(got, result, atol=4e-2)
    padded = np.pad(wide, ((0, 0), (1, 1), (1, 1), (0, 0)))
    open_ = (found > 0).astype(float)
    expected = np.einsum("nyxk,nyxc->kc", open_, padded[:, 1:-1, 1:-1])  # the tap in the middle
    np.testing.assert_allclose(dw[:, 1, 1], expected, atol=1e-2 * np.abs(expected).max())
    error = np.abs(got - result).max()
    print(f"a residual block on {device.backend}: {y.shape}, {y.dtype}, off by {error:.1e} at most")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
