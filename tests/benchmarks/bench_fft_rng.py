"""Transforms against CuPy, and filling memory with random numbers against CuPy and memory.

Measured side by side, see ``side_by_side.py``. How fast memory can be written is measured
with a kernel that does nothing else. Without a GPU sizes are small, and only our own numbers
are printed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import trio
from side_by_side import Pace, Rival, Row, compare, cupy_of, open_first, show

if TYPE_CHECKING:
    from atomr_accel import Device, GpuRef
    from atomr_accel.libraries.nvrtc.kernel import Kernel
    from atomr_accel.ops import Awaited

WRITE = """
extern "C" __global__ void write(float4* out, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        out[i] = make_float4(1, 2, 3, 4);
}
"""

Case = tuple[str, str, tuple[int, ...], dict[str, Any]]


def write(out: np.ndarray, count: np.int64) -> None:
    """Write ones, as the kernel does, for the CPU backend."""
    out.reshape(-1)[: 4 * count] = 1


def cases(*, gpu: bool) -> list[Case]:
    """Names, methods, shapes and options: complex, real, batched and strided transforms."""
    many = 256 if gpu else 8
    return [
        *((f"fft 2^{i}", "fft", (1 << i,), {}) for i in range(10, 27 if gpu else 15, 2)),
        (f"fft {many} x 4096", "fft", (many, 4096), {}),
        (f"fft {many} x 4096, first axis", "fft", (4096, many), {"axis": 0}),
        (f"rfft {many} x 4096", "rfft", (many, 4096), {}),
        (f"irfft {many} x 2049", "irfft", (many, 2049), {}),
        (f"fftn {many}^2 x 64", "fftn", (many, many, 64), {}),
        *((f"dct {i} {many} x 4096", "dct", (many, 4096), {"type": i}) for i in (2, 3)),
        (f"dctn {many}^2 x 64", "dctn", (many, many, 64), {}),
    ]


async def transform(device: Device, case: Case) -> Row:
    """One transform."""
    name, method, shape, options = case
    host = np.random.default_rng().standard_normal(shape, dtype=np.float32)
    if method not in ("rfft", "dct", "dctn"):
        host = host.astype(np.complex64)
    ref = await device.put(host)
    out = await getattr(device.fft, method)(ref, **options)
    rivals = {}
    if cupy := cupy_of(device):
        import cupyx.scipy.fft

        functions = cupyx.scipy.fft if method.startswith("dct") else cupy.fft
        call = partial(getattr(functions, method), cupy.asarray(host), **options)
        rivals["cupy"] = Rival(call, cupy.cuda.get_current_stream().synchronize)
    paces = await compare(
        device, lambda on: getattr(on.fft, method)(ref, out=out, **options), rivals
    )
    if rivals:
        del rivals, call
        cupy.get_default_memory_pool().free_all_blocks()
    return Row(name, ref.nbytes + out.nbytes, "GB/s", *paces, {"cupy": 1.0})


async def constant(device: Device, kernel: Kernel[Awaited], out: GpuRef) -> Pace:
    """Return the pace at which memory is written."""
    blocks = (132 * 16, 256)

    def call(on: Any) -> Any:
        if on is device:
            return kernel.launch(*blocks, out, out.size // 4)
        return on.launch(kernel, *blocks, out, out.size // 4)

    pace, _ = await compare(device, call, {})
    return pace


async def fills(device: Device) -> None:
    """Compare filling memory with numbers and filling it with a constant."""
    gpu = device.backend == "cuda"
    out = await device.empty(1 << 29 if gpu else 1 << 18, np.float32)
    kernel = await device.nvrtc.compile(WRITE, "write", cpu=write)
    plain = await constant(device, kernel, out)
    show(Row("a constant, float32", out.nbytes, "GB/s", plain))
    for method in ("random", "normal"):
        rivals = {}
        if cupy := cupy_of(device):
            generator = cupy.random.RandomState(1)
            draw = generator.random_sample if method == "random" else generator.standard_normal
            call = partial(draw, out.shape, dtype=np.float32)
            rivals["cupy"] = Rival(call, cupy.cuda.get_current_stream().synchronize)
        mine, theirs = await compare(
            device, lambda on, name=method: getattr(on.rng, name)(out=out), rivals
        )
        theirs["memory"] = await constant(device, kernel, out)  # again, next to it
        show(Row(f"{method}, float32", out.nbytes, "GB/s", mine, theirs, {"memory": 0.9}))
    for method, args in (("exponential", ()), ("gamma", (2.0,))):
        mine, _ = await compare(
            device, lambda on, name=method, a=args: getattr(on.rng, name)(*a, out=out), {}
        )
        show(Row(f"{method}, float32", out.nbytes, "GB/s", mine))


async def run() -> None:
    """Measure and print."""
    async with open_first() as device:
        await fills(device)
        for case in cases(gpu=device.backend == "cuda"):
            show(await transform(device, case))


if __name__ == "__main__":
    trio.run(run)
