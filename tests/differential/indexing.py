"""Cases of ``device.array`` by keys, and of functions that join, repeat, move and pad."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np

from atomr_accel import Device

from ..libraries.conformance import eps_of, wide
from .cases import (
    COMPLEX,
    DTYPES,
    FLOATS,
    INTEGERS,
    Case,
    axis,
    chance,
    checked,
    choose,
    close,
    same,
    shape,
    values,
)

Random = np.random.Generator

LARGEST_KEY: Final = 4099
"""Largest number of indices in an array of a key; host indices are sent within the call."""


def key(random: Random, of: tuple[int, ...]) -> tuple[Any, ...]:
    """A key of NumPy's: numbers, slices, dots, new axes, arrays of indices, masks."""
    parts: list[Any] = []
    dots = False
    together = shape(random, 0, 2) if chance(random, 0.9) else (3,)
    if math.prod(together) > LARGEST_KEY:
        together = together[:1]
    for length in of:
        kind = choose(random, ("slice", "slice", "number", "array", "array", "mask", "new", "dots"))
        if kind == "new":
            parts.append(None)
            kind = "slice"
        if kind == "dots":
            if not dots:
                parts.append(...)
            dots = True
            break
        if kind == "number" and length:
            parts.append(int(random.integers(-length, length)))
        elif kind == "array" and length:
            few = together if chance(random, 0.7) else (1,) * len(together)
            parts.append(
                random.integers(-length, length, few).astype(choose(random, ("int64", "int32")))
            )
        elif kind == "mask" and not any(isinstance(part, np.ndarray) for part in parts):
            parts.append(values(random, (length,), "bool"))
            together = (int(np.count_nonzero(parts[-1])),)
        else:
            start, stop = (int(each) for each in random.integers(-length - 1, length + 2, 2))
            parts.append(
                slice(
                    choose(random, (None, start)),
                    choose(random, (None, stop)),
                    choose(random, (None, 2, -1)),
                )
            )
    return tuple(parts)


async def _keyed(case: Case, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key with some of its arrays on the device."""
    found = []
    for part in parts:
        if isinstance(part, np.ndarray) and chance(case.random, 0.6):
            found.append(await case.put(part))
        else:
            found.append(part)
    return tuple(found)


async def get(case: Case) -> str | None:
    """Check the elements at a key."""
    random = case.random
    array = values(random, shape(random, 1, 3), choose(random, DTYPES))
    parts = key(random, array.shape)
    case.tell(op="getitem", key=parts)
    try:
        expected = array[parts]
    except IndexError:
        return "NumPy refuses: IndexError"
    x = await case.put(array)
    given = await _keyed(case, parts)
    await case.poison(np.asarray(expected).nbytes)
    same(await case.fetch(await case.device.array.getitem(x, given)), expected)
    return None


async def put(case: Case) -> str | None:
    """Writing to a key, or adding."""
    random = case.random
    name = choose(random, ("setitem", "add_at"))
    array = values(
        random,
        shape(random, 1, 3),
        choose(random, DTYPES if name == "setitem" else (*INTEGERS, *FLOATS, *COMPLEX)),
    )
    parts = key(random, array.shape)
    case.tell(op=name, key=parts)
    try:
        target = array[parts]
    except IndexError:
        return "NumPy refuses: IndexError"
    of = target.shape[1:] if chance(random, 0.3) else target.shape
    value = values(random, of, array.dtype.name)
    if name == "setitem":  # which one stays of several is not said
        value = np.asarray(value.reshape(-1)[:1].sum() if value.size else 1).astype(array.dtype)
        value = np.broadcast_to(value, of).copy()
    elif array.dtype.kind not in "iub":
        value = np.round(value.real).astype(array.dtype)
        array = np.round(array.real).astype(array.dtype)
    x = await case.put(array, kept=False)
    given = await _keyed(case, parts)
    v = await case.put(value) if value.ndim or chance(random, 0.5) else value.item()
    deterministic = choose(random, (None, True))
    expected = array.copy()
    # NumPy's ``add.at`` adds wrong elements if it has to broadcast them (2.4, along one axis).
    whole = np.broadcast_to(wide(value), target.shape).astype(array.dtype)
    slack: Any = 0.0
    if name == "setitem":
        expected[parts] = value
    elif array.dtype.name in ("bfloat16", "float16"):
        sums = wide(expected)
        np.add.at(sums, parts, whole.astype(sums.dtype))
        # NumPy, too, rounds to the dtype after each addition, and small terms get lost.
        terms, number = np.abs(wide(array)), np.zeros(array.shape)
        np.add.at(terms, parts, np.abs(whole.astype(sums.dtype)))
        np.add.at(number, parts, 1)
        slack = eps_of(array.dtype) * number * terms
        expected = sums
    else:
        np.add.at(expected, parts, whole)
    made = await getattr(case.device.array, name)(x, given, v, deterministic=deterministic)
    got = await case.fetch(made)
    if name == "setitem":
        same(got, expected)
    else:
        close(got, expected, dtype=array.dtype, factor=16.0, magnitude=16.0, slack=slack)
    return None


async def along(case: Case) -> str | None:
    """Elements by indices along an axis."""
    random = case.random
    array = values(random, shape(random, 1, 3, empty=False), choose(random, DTYPES))
    at = axis(random, array.ndim, none=False)
    length = array.shape[at]
    name = choose(random, ("take", "take_along_axis", "put_along_axis"))
    case.tell(op=name, axis=at)
    library: Any = case.device.array
    if name == "take":
        mode: Any = choose(random, (None, "wrap", "clip"))
        reach = length if mode is None else 2 * length
        indices = random.integers(-length if mode != "clip" else 0, reach, shape(random, 0, 2))
        if mode == "wrap":
            indices = indices % (2 * length) - length
        x, i = await case.put(array), await case.put(indices)
        expected = np.take(array, indices, at, mode=mode or "wrap")
        same(await case.fetch(await library.take(x, i, at, mode=mode)), expected)
        return None
    of = list(array.shape)
    of[at] = int(random.integers(1, 6))
    indices = random.integers(0, length, of)
    x, i = await case.put(array, kept=name != "put_along_axis"), await case.put(indices)
    if name == "take_along_axis":
        same(
            await case.fetch(await library.take_along_axis(x, i, at)),
            np.take_along_axis(array, indices, at),
        )
        return None
    value = values(random, (), array.dtype.name)
    v = await case.put(value)
    expected = array.copy()
    np.put_along_axis(expected, indices, value, at)
    same(await case.fetch(await library.put_along_axis(x, i, v, at)), expected)
    return None


async def join(case: Case) -> str | None:
    """Several arrays in one."""
    random = case.random
    dtype = choose(random, DTYPES)
    of = shape(random, 1, 3)
    name = choose(random, ("concatenate", "stack", "hstack", "vstack"))
    at = axis(random, len(of), none=False)
    arrays = []
    for _ in range(int(random.integers(1, 5))):
        each = list(of)
        if name == "concatenate":
            each[at] = int(random.integers(0, 5))
        arrays.append(values(random, each, dtype, odd=0.1))
    refs = [await case.put(array) for array in arrays]
    options: dict[str, Any] = {"axis": at} if name in ("concatenate", "stack") else {}
    case.tell(op=name, **options)
    expected = getattr(np, name)(arrays, **options)
    if options and chance(random, 0.3):
        options["out"] = await case.output(expected.shape, expected.dtype)
    await case.poison(expected.nbytes)
    same(await case.fetch(await getattr(case.device.array, name)(refs, **options)), expected)
    return None


async def move(case: Case) -> str | None:
    """Repeating, rolling, padding, triangles, diagonals."""
    random = case.random
    array = values(random, shape(random, 1, 3), choose(random, DTYPES), odd=0.1)
    at = axis(random, array.ndim)
    k = int(random.integers(-5, 6))
    whole = axis(random, array.ndim, none=False)
    pads = [tuple(map(int, random.integers(0, 4, 2))) for _ in array.shape]
    rows: dict[str, tuple[Any, ...]] = {
        "repeat": (int(random.integers(0, 4)), at),
        "tile": (tuple(map(int, random.integers(0, 3, int(random.integers(1, 4))))),),
        "roll": (k, at),
        "pad": (pads, choose(random, ("constant", "edge", "reflect", "symmetric", "wrap"))),
        **({"tril": (k,), "triu": (k,)} if array.ndim > 1 else {}),
        "flip": (whole,),
        "rot90": (k,),
        "array_split": (int(random.integers(1, 5)), whole),
        "diag": (k,),
    }
    name = choose(random, list(rows))
    arguments = rows[name]
    case.tell(op=name, arguments=arguments)
    try:
        expected = getattr(np, name)(array, *arguments)
    except ValueError:
        return "NumPy refuses: ValueError"
    x = await case.put(array)
    made = getattr(case.device.array, name)(x, *arguments)
    if name not in ("flip", "rot90", "array_split"):
        await case.poison(np.asarray(expected).nbytes)
        made = await made
    got = await case.fetch(made)
    if name != "array_split":
        got, expected = (got,), (expected,)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        same(one, other)
    return None


OPS: Final[list[Callable[[Case], Awaitable[str | None]]]] = [
    get,
    get,
    put,
    put,
    along,
    join,
    move,
    move,
]


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    return await checked(device, random, OPS)
