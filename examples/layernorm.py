"""Layer norm, forward and backward, checked against differences."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

EPS = 1e-5


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Compute the layer norm in float64."""
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    y: np.ndarray = (x - mean) / np.sqrt(variance + EPS) * weight + bias
    return y


async def main() -> None:
    """Normalise a batch of sequences, and differentiate through it."""
    rng = np.random.default_rng()
    x = rng.standard_normal((8, 32, 256)).astype(np.float32) * 3 + 1
    weight = rng.standard_normal(256).astype(np.float32)
    bias = rng.standard_normal(256).astype(np.float32)
    grad = rng.standard_normal(x.shape).astype(np.float32)

    async with open_device(0) as device:
        dnn = device.dnn
        refs = [await device.put(array) for array in (x, weight, bias)]
        y, mean, inverse = await dnn.layer_norm_train(*refs, eps=EPS)
        upstream = await device.put(grad)
        grads = await dnn.layer_norm_grad(upstream, refs[0], refs[1], mean, inverse)
        got = await device.get(y)
        dx, dweight, dbias = [await device.get(each) for each in grads]

    wide, w, b = x.astype(float), weight.astype(float), bias.astype(float)
    np.testing.assert_allclose(got, layer_norm(wide, w, b), atol=1e-4)

    # Along a random direction the gradient says how fast the result moves.
    step = 1e-6
    for name, gradient, arrays in (
        ("x", dx, lambda d: (wide + d, w, b)),
        ("weight", dweight, lambda d: (wide, w + d, b)),
        ("bias", dbias, lambda d: (wide, w, b + d)),
    ):
        way = rng.standard_normal(gradient.shape)
        ahead, behind = layer_norm(*arrays(step * way)), layer_norm(*arrays(-step * way))
        slope = (grad * (ahead - behind)).sum() / (2 * step)
        told = (gradient * way).sum()
        assert abs(told - slope) < 1e-3 * (1 + abs(slope)), (name, told, slope)
        print(f"d/d{name}: {told:12.4f}, by differences {slope:12.4f}")
    print(f"layer norm on {device.backend}: {y.shape}, {y.dtype}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
