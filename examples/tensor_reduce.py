"""Reductions of a field in space and time, along any axes: totals, extremes, a weighted mean.

``einsum`` needs nothing but cuBLAS. cuTENSOR's own reductions need the package that brings it, and
are left out if that is missing.
"""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, LibraryMissing, open_device

TIMES, LEVELS, ROWS, COLUMNS = 24, 8, 64, 96


async def main() -> None:
    """Reduce, and check each result against NumPy."""
    rng = np.random.default_rng()
    host = rng.normal(280.0, 15.0, (TIMES, LEVELS, ROWS, COLUMNS))
    latitude = np.linspace(-np.pi / 2, np.pi / 2, ROWS)
    area = np.cos(latitude) / np.cos(latitude).sum() / COLUMNS

    async with open_device(0) as device:
        field, weights = await device.put(host), await device.put(area)

        # The mean over the globe, at each time and level: a product, and a sum along two axes.
        mean = await device.tensor.einsum("tlyx,y->tl", field, weights)
        expected = (host * area[:, None]).sum(axis=(2, 3))
        assert np.allclose(await device.get(mean), expected, rtol=1e-12)

        # Only one hemisphere and every other level: views are taken as they are.
        part = field[:, ::2, ROWS // 2 :]
        north = await device.tensor.einsum("tlyx->ly", part)
        assert np.allclose(
            await device.get(north), host[:, ::2, ROWS // 2 :].sum(axis=(0, 3)), rtol=1e-12
        )
        print(
            f"tensor_reduce on {device.backend}: global means of {TIMES} times and {LEVELS} "
            f"levels, {expected.min():.1f} to {expected.max():.1f} K"
        )

        try:
            highest = await device.tensor.reduce(field, "tlyx", "xy", "max")
            anomaly = await device.tensor.elementwise_binary(mean, "tl", field, "tlyx", alpha=-1.0)
        except LibraryMissing as missing:
            print(f"no reductions of cuTENSOR: {missing}")
            return
        assert np.array_equal(await device.get(highest), host.max(axis=(0, 1)).T)
        assert np.allclose(await device.get(anomaly), host - expected[..., None, None], atol=1e-9)
        print("and the highest value at each place, and what differs from the mean")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
