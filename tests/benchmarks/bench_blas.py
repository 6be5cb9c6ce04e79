"""Products against PyTorch and CuPy: bf16 and fp8 at 8192, sgemm, many small ones.

Measured side by side, see ``side_by_side.py``. Without a GPU sizes are small, and only our
own numbers are printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import trio
from side_by_side import Rival, Row, compare, cupy_of, open_first, show, torch_of

from atomr_accel import Unsupported

if TYPE_CHECKING:
    from atomr_accel import Device, GpuRef

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


async def operands(device: Device, shape: tuple[int, ...], dtype: Any) -> list[GpuRef]:
    """Two arrays of random numbers."""
    rng = np.random.default_rng()
    hosts = [rng.random(shape, dtype=np.float32).astype(dtype) for _ in range(2)]
    return [await device.put(host) for host in hosts]


async def bf16(device: Device, size: int) -> Row:
    """A square product in bfloat16, by BLASLt."""
    a, b = await operands(device, (size, size), BFLOAT16)
    out = await device.empty((size, size), BFLOAT16)
    rivals = {}
    if torch := torch_of(device):
        c, d = (torch.rand(size, size, device="cuda").bfloat16() for _ in range(2))
        e = torch.empty_like(c)
        rivals["torch"] = Rival(lambda: torch.mm(c, d, out=e), torch.cuda.synchronize)
    paces = await compare(device, lambda on: on.blaslt.matmul(a, b, out=out, autotune=True), rivals)
    return Row(f"bf16 matmul {size}", 2.0 * size**3, "TFLOP/s", *paces, {"torch": 0.98})


async def fp8(device: Device, size: int) -> Row | None:
    """A square product in fp8 with a scale for each tensor, to bfloat16."""
    a, b = await operands(device, (size, size), E4M3)
    out = await device.empty((size, size), BFLOAT16)
    one = await device.put(np.asarray(np.float32(1)))
    rivals = {}
    if torch := torch_of(device):
        c, d = (torch.rand(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        scale = torch.ones((), device="cuda")
        multiply = torch._scaled_mm

        def theirs() -> object:
            return multiply(c, d.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

        rivals["torch"] = Rival(theirs, torch.cuda.synchronize)
    options = {"trans_b": True, "scale_a": one, "scale_b": one, "autotune": True}
    try:
        paces = await compare(device, lambda on: on.blaslt.matmul(a, b, out=out, **options), rivals)
    except Unsupported as error:
        print(f"fp8 is left out: {error}")
        return None
    return Row(f"fp8 matmul {size}", 2.0 * size**3, "TFLOP/s", *paces, {"torch": 0.98})


async def sgemm(device: Device, shape: tuple[int, ...]) -> Row:
    """A square product in float32, or many small ones in one call."""
    a, b = await operands(device, shape, np.float32)
    out = await device.empty(shape, np.float32)
    paces = await compare(
        device, lambda on: on.blas.matmul(a, b, out=out), rivals_of(device, shape)
    )
    await device.free(a)
    await device.free(b)
    name = f"sgemm {' x '.join(map(str, shape[:-1]))}"
    operations = 2.0 * np.prod(shape, dtype=np.float64) * shape[-1]
    return Row(name, operations, "TFLOP/s", *paces)


def rivals_of(device: Device, shape: tuple[int, ...]) -> dict[str, Rival]:
    """Return the installed rivals' product in float32."""
    rivals: dict[str, Rival] = {}
    if cupy := cupy_of(device):
        a, b = (cupy.random.random(shape, dtype=np.float32) for _ in range(2))
        out = cupy.empty(shape, np.float32)
        wait = cupy.cuda.get_current_stream().synchronize
        rivals["cupy"] = Rival(lambda: cupy.matmul(a, b, out=out), wait)
    if torch := torch_of(device):
        torch.backends.cuda.matmul.allow_tf32 = False
        c, d = (torch.rand(*shape, device="cuda") for _ in range(2))
        e = torch.empty_like(c)
        rivals["torch"] = Rival(lambda: torch.matmul(c, d, out=e), torch.cuda.synchronize)
    return rivals


async def run() -> None:
    """Measure and print."""
    async with open_first() as device:
        gpu = device.backend == "cuda"
        large = 8192 if gpu else 256
        for half in (bf16, fp8):
            show(await half(device, large))
        sides = (256, 1024, 4096) if gpu else (256,)
        batches = ((1000, 32), (256, 256)) if gpu else ((100, 16),)
        shapes = [(side, side) for side in sides]
        for shape in (*shapes, *((count, side, side) for count, side in batches)):
            show(await sgemm(device, shape))


if __name__ == "__main__":
    trio.run(run)
