"""A recording with a loop and a condition: Newton's method decides on the device when to end."""

import warnings
from typing import Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

SOURCE = """
extern "C" __global__ void step(int* going, int* steps, double* x, double of) {
    double next = 0.5 * (x[0] + of / x[0]);
    going[0] = fabs(next - x[0]) > 1e-12 * next && steps[0] < 100;
    steps[0] += 1;
    x[0] = next;
}
extern "C" __global__ void negate(double* x) { x[0] = -x[0]; }
"""

Array = np.ndarray[Any, Any]


def step(going: Array, steps: Array, x: Array, of: np.float64) -> None:
    """Compute one step, as the kernel does, for the CPU backend."""
    following = 0.5 * (x[0] + of / x[0])
    going[0] = abs(following - x[0]) > 1e-12 * following and steps[0] < 100
    steps[0] += 1
    x[0] = following


def negate(x: Array) -> None:
    """Change the sign."""
    x[0] = -x[0]


async def main() -> None:
    """Record once, and replay with other inputs; the recording asks for nothing in between."""
    async with open_device(0) as device:
        kernel = await device.nvrtc.compile(SOURCE, "step", cpu=step)
        other = await device.nvrtc.compile(SOURCE, "negate", cpu=negate)
        going, steps = [await device.put(np.array([n], np.int32)) for n in (1, 0)]
        below = await device.put(np.array([0], np.int32))
        x = await device.put(np.array([1.0]))

        async with device.record(going, steps, x, below) as root:
            with root.loop(going):  # until the kernel writes 0
                root.using(kernel).launch(1, 1, going, steps, x, 2.0)
            with root.when(below):
                root.using(other).launch(1, 1, x)

        for start, negative in ((1.0, 0), (1e6, 1)):
            one, zero = [await device.put(np.array([n], np.int32)) for n in (1, 0)]
            wanted = await device.put(np.array([negative], np.int32))
            result = await device.put(np.array([start]))
            await root.replay(one, zero, result, wanted)
            found, took = (await device.get(result))[0], (await device.get(zero))[0]
            assert abs(found - (-1) ** negative * 2**0.5) < 1e-12, found
            print(f"from {start:g}: {found:+.12f} after {took} steps, on {device.backend}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
