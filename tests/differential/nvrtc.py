"""Cases of ``device.nvrtc``: small kernels, their grids and arguments, against NumPy."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from atomr_accel import Device

from .cases import Case, choose, garbage, same, values

C_NAMES: Final = {
    "float32": "float", "float64": "double", "int32": "int", "uint8": "unsigned char",
    "int64": "long long", "uint32": "unsigned int", "int16": "short",
}  # fmt: skip
BODIES: Final = {
    "scaled": "x[i] * a + y[i]",
    "larger": "x[i] > y[i] ? x[i] : y[i]",
    "reversed": "x[n - 1 - i]",
    "index": "(T)(i + a)",
    "square": "x[i] * x[i] - y[i]",
}

_KERNELS: Final[WeakKeyDictionary[Any, dict[tuple[str, str], Any]]] = WeakKeyDictionary()


def reference(body: str, x: Any, y: Any, a: Any) -> Any:
    """Return the result of a kernel."""
    dtype, i = x.dtype, np.arange(len(x))
    made = {
        "scaled": lambda: x * a + y,
        "larger": lambda: np.where(x > y, x, y),
        "reversed": lambda: x[::-1],
        "index": lambda: i + a,
        "square": lambda: x * x - y,
    }[body]()
    return np.asarray(made).astype(dtype)


async def kernel(device: Device, body: str, dtype: str) -> Any:
    """A kernel, which is compiled once."""
    kept = _KERNELS.setdefault(device, {})
    if (body, dtype) not in kept:
        source = f"""
            typedef {C_NAMES[dtype]} T;
            extern "C" __global__ void work(const T* x, const T* y, T* out, T a, int n) {{
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i < n) out[i] = (T)({BODIES[body]});
            }}
        """

        def stand_in(x: Any, y: Any, out: Any, a: Any, n: Any) -> None:
            out[:n] = reference(body, x[:n], y[:n], a)

        kept[body, dtype] = await device.nvrtc.compile(source, "work", cpu=stand_in)
    return kept[body, dtype]


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    case = Case(device, random)
    with case.described():
        body, dtype = choose(random, list(BODIES)), choose(random, list(C_NAMES))
        count = choose(random, (1, 2, 31, 32, 33, 257, 1000, 4099))
        threads = choose(random, (1, 32, 96, 128, 256, 1024))
        x, y = (np.round(values(random, (count,), dtype)).astype(dtype) for _ in range(2))
        a = int(random.integers(0, 4))
        way = choose(random, ("call", "batch", "record", "part"))
        case.tell(body=body, dtype=dtype, count=count, threads=threads, a=a, way=way)
        work = await kernel(device, body, dtype)
        refs = [await case.put(array, views=False) for array in (x, y)]
        out = await device.put(garbage((count + 8,), dtype))
        blocks, number = -(-count // threads), np.dtype(dtype).type(a)
        if way == "batch":
            async with device.batch() as batch:
                batch.using(work).launch(blocks, threads, *refs, out, number, count)
        elif way == "record":
            async with device.record() as recording:
                recording.using(work).launch(blocks, threads, *refs, out, number, count)
            await recording.replay()
            await recording.replay()
        else:
            await work.launch(blocks, threads, *refs, out[: count + 4], number, count)
        expected = garbage((count + 8,), dtype).copy()
        expected[:count] = reference(body, x, y, np.dtype(dtype).type(a))
        same(await device.get(out), expected)
        await case.finish()
    return None
