"""A Triton kernel as a guest of ``device.run``, on the buffers of other ops; it survives a fault.

Needs a GPU, Triton and PyTorch, whose streams Triton launches on.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from atomr_accel import open_device
from atomr_accel.backends import cuda
from atomr_accel.testing import poison

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device, GpuRef

ROWS, COLUMNS = 4096, 1000
NEEDED = ("triton", "torch")

# --- in the host -------------------------------------------------------------------------


def load() -> Callable[..., Any]:
    """The kernel: the state of its lane. The program itself does not load it."""
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def softmax(y, x, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        row = tl.program_id(0)
        at = tl.arange(0, BLOCK)
        inside = at < columns
        values = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(y + row * columns + at, powers / tl.sum(powers, axis=0), mask=inside)

    kernel: Callable[..., Any] = softmax
    return kernel


def launch(kernel: Any, y: Any, x: Any) -> None:
    """Compute ``y`` in place; the queued work has finished when this returns."""
    import torch

    out, given = torch.as_tensor(y, device="cuda"), torch.as_tensor(x, device="cuda")
    rows, columns = given.shape
    block = 1 << (columns - 1).bit_length()
    kernel[rows,](out, given, columns, BLOCK=block)


# --- in the program ----------------------------------------------------------------------


async def softmax(device: Device, host_x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One call, between ops of libraries on the same buffers."""
    x: GpuRef = await device.put(host_x)
    y = await device.empty(x.shape, x.dtype)
    await device.run(launch, y, x, lane="triton", init=load)
    twice = await device.evaluate(y * 2)
    return await device.get(twice)


async def main() -> None:
    """Each step says its result and checks it."""
    host_x = np.random.default_rng().standard_normal((ROWS, COLUMNS), dtype=np.float32)
    powers = np.exp(host_x.astype(np.float64) - host_x.max(axis=1, keepdims=True))
    expected = 2 * powers / powers.sum(axis=1, keepdims=True)

    async with open_device(0, backend="cuda") as device:
        for what in ("compiles, or finds it on disk", "launches", "launches"):
            begun = time.perf_counter()
            found = await softmax(device, host_x)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
            print(f"{what}: {(time.perf_counter() - begun) * 1e3:.1f} ms")
        fault = await poison(device)
        found = await device.retry(softmax, device, host_x)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
        print(f"{fault.status_name}: generation {device.generation} has the kernel again")


if __name__ == "__main__":
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing or cuda.why_absent():
        print(f"This example needs a GPU, {' and '.join(NEEDED)}")
        sys.exit()
    trio.run(main)
