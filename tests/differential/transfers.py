"""Cases of ``put``, ``get``, ``copy``, ``fill``, snapshots and sealed buffers, of any view."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel import Device
from atomr_accel._dtypes import DTYPES

from .cases import Case, chance, choose, garbage, shape

Array = np.ndarray[Any, Any]
Random = np.random.Generator

LARGE: Final = ((300_000,), (1000, 257), (70_001,), (1 << 20,))


def bits(random: Random, of: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Arbitrary bits that a dtype can have."""
    count = int(np.prod(of, dtype=np.int64))
    raw = np.frombuffer(random.bytes(count * dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        raw = raw & np.uint8(1)
    elif dtype.name == "float4_e2m1fn":
        raw = raw & np.uint8(15)
    return raw.copy().view(dtype).reshape(of)


def laid_out(random: Random, array: Array) -> tuple[Array, str]:
    """Return the same values in another layout on the host."""
    layout = choose(random, ("plain", "fortran", "gaps", "reversed", "read-only", "broadcast"))
    if layout == "fortran":
        return np.asfortranarray(array) if array.ndim else array, layout
    if layout == "gaps" and array.ndim:
        around = garbage((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        around[..., ::2] = array
        return around[..., ::2], layout
    if layout == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1], layout
    if layout == "read-only":
        array = array.copy()
        array.flags.writeable = False
    if layout == "broadcast" and array.ndim and array.shape[0]:
        return np.broadcast_to(array[:1], array.shape), layout
    return array, layout


def equal(got: Array, expected: Array) -> None:
    """Equal to the last bit."""
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    assert got.dtype == expected.dtype, f"dtype {got.dtype}, expected {expected.dtype}"
    assert got.tobytes() == expected.tobytes(), "other bits"


def part(random: Random, of: tuple[int, ...]) -> Any:
    """A key that gives a view."""
    key: list[Any] = []
    for side in of:
        start = int(random.integers(0, side + 1))
        stop = int(random.integers(start, side + 1))
        key.append(slice(start, stop, choose(random, (None, None, 2))))
    return (*key, ...)


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    case = Case(device, random)
    with case.described():
        dtype = choose(random, list(DTYPES.values()))
        of = choose(random, LARGE) if chance(random, 0.1) else shape(random)
        array, layout = laid_out(random, bits(random, of, dtype))
        sealed = chance(random, 0.2)
        case.tell(dtype=dtype.name, shape=of, layout=layout, sealed=sealed)
        await case.poison(array.nbytes)
        ref = await device.put(array, sealed=sealed)
        key = part(random, of)
        whole, view = np.array(array, order="C"), ref[key]
        what = choose(
            random, ("get", "get out", "copy", "copy to", "put out", "fill", "snapshot", "move")
        )
        case.tell(what=what, key=key)
        expected = whole[key]
        if what == "get":
            equal(await device.get(view), expected)
        elif what == "get out":
            out = garbage(expected.shape, dtype).copy()
            got = await device.get(view, out)
            assert got is out
            equal(out, expected)
        elif what == "copy":
            await case.poison(expected.nbytes)
            equal(await device.get(await device.copy(view)), expected)
        elif what == "copy to":
            target = await case.output(expected.shape, dtype)
            await device.copy(view, target)
            equal(await device.get(target), expected)
        elif what in ("put out", "fill"):
            around = await device.put(garbage(of, dtype))
            after = garbage(of, dtype).copy()
            if what == "put out":
                await device.put(expected, out=around[key])
                after[key] = expected
            else:
                await device.fill(around[key], 1)
                after[key] = 1
            equal(await device.get(around), after)
        elif what == "snapshot":
            snapshot = await device.snapshot([ref])
            if not sealed:
                await device.fill(ref, 0)
            await snapshot.wait()
            (back,) = await device.restore(snapshot)
            snapshot.close()
            equal(await device.get(back), whole)
        else:
            if of and len(of) > 1:
                equal(await device.get(ref.T), whole.T)
            equal(await device.get(ref.reshape(-1)), whole.reshape(-1))
        equal(
            await device.get(ref), whole if sealed or what != "snapshot" else np.zeros_like(whole)
        )
    return None
