"""Cases of sorts, searches and unique values, of ``device.array``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np

from atomr_accel import Device

from ..libraries.conformance import wide
from .cases import FLOATS, INTEGERS, REAL, Case, axis, chance, checked, choose, same, shape, values

Random = np.random.Generator
ORDERED: Final = ("bool", *INTEGERS, *FLOATS)


def _drawn(case: Case, least: int = 1, most: int = 3, *, empty: bool = True) -> Any:
    dtype = choose(case.random, ORDERED)
    odd = choose(case.random, (0.0, 0.1, 0.4))
    return values(case.random, shape(case.random, least, most, empty=empty), dtype, odd=odd)


def _ordered(array: Any) -> Any:
    """Return an array of the same order in a dtype that NumPy sorts."""
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def _sorted(array: Any, along: int | None, *, descending: bool = False) -> Any:
    """The stable order of elements, NaN larger than all others; of narrow floats too."""
    ranks = np.unique(_ordered(array), return_inverse=True)[1].reshape(array.shape)
    return np.argsort(-ranks if descending else ranks, axis=along, kind="stable")


async def sort(case: Case) -> str | None:
    """Values or positions, rising or falling."""
    array, random = _drawn(case), case.random
    along = axis(random, array.ndim)
    descending, positions = chance(random, 0.3), chance(random, 0.5)
    name = "argsort" if positions else "sort"
    case.tell(op=name, axis=along, descending=descending)
    order = _sorted(array, along, descending=descending)
    flat = array.reshape(-1) if along is None else array
    expected = (
        order if positions else np.take_along_axis(flat, order, -1 if along is None else along)
    )
    x = await case.put(array)
    options: dict[str, Any] = {"kind": "stable"} if positions or chance(random, 0.5) else {}
    if chance(random, 0.2):
        options["out"] = await case.output(expected.shape, expected.dtype)
    await case.poison(expected.nbytes)
    method = getattr(case.device.array, name)
    got = await case.fetch(await method(x, along, descending=descending, **options))
    same(got, expected)
    return None


async def partition(case: Case) -> str | None:
    """The place of one element, and smaller ones before it."""
    array, random = _drawn(case, empty=False), case.random
    along = axis(random, array.ndim, none=False)
    length = array.shape[along]
    k = int(random.integers(-length, length))
    positions = chance(random, 0.5)
    case.tell(op="partition", axis=along, kth=k, positions=positions)
    x = await case.put(array)
    if positions:
        found = await case.fetch(await case.device.array.argpartition(x, k, along))
        same(np.sort(found, along), np.sort(np.argsort(found * 0, along), along))
        got = np.take_along_axis(array, found, along)
    else:
        got = await case.fetch(await case.device.array.partition(x, k, along))
    whole = np.take_along_axis(array, _sorted(array, along), along)
    same(np.take(got, k, along), np.take(whole, k, along))
    ordered = np.take_along_axis(got, _sorted(got, along), along)
    same(ordered, whole)
    ranks = np.unique(_ordered(got), return_inverse=True)[1].reshape(got.shape)
    lows, pivot = np.take(ranks, range(k % length), along), np.take(ranks, [k % length], along)
    assert (lows <= pivot).all(), "larger ones come first"
    return None


async def topk(case: Case) -> str | None:
    """The largest or smallest of each row."""
    array, random = _drawn(case, empty=False), case.random
    along = axis(random, array.ndim, none=False)
    k = int(random.integers(1, array.shape[along] + 1))
    largest = chance(random, 0.5)
    case.tell(op="topk", axis=along, k=k, largest=largest)
    if array.dtype.kind in "fV":
        array = np.where(np.isnan(array.astype(np.float64)), 0, array).astype(array.dtype)
    x = await case.put(array)
    got, where = await case.fetch(await case.device.array.topk(x, k, along, largest=largest))
    order = _sorted(array, along, descending=largest)
    expected = np.take_along_axis(array, np.take(order, range(k), along), along)
    same(wide(got) + 0, wide(expected) + 0)
    same(np.take_along_axis(array, where, along), got)
    return None


async def search(case: Case) -> str | None:
    """Check the places of values among sorted ones."""
    random = case.random
    dtype = choose(random, (*INTEGERS, *REAL))
    sorted_ = np.sort(values(random, shape(random, 1, 1), dtype))
    wanted = values(random, shape(random, 0, 2), dtype)
    if chance(random, 0.5):
        side: Any = choose(random, ("left", "right"))
        case.tell(op="searchsorted", side=side)
        x, y = await case.put(sorted_), await case.put(wanted)
        got = await case.fetch(await case.device.array.searchsorted(x, y, side))
        same(got, np.searchsorted(sorted_, wanted, side))
        return None
    right = chance(random, 0.5)
    edges = np.unique(sorted_)
    case.tell(op="digitize", right=right)
    x, y = await case.put(wanted), await case.put(edges)
    same(
        await case.fetch(await case.device.array.digitize(x, y, right)),
        np.digitize(wanted, edges, right),
    )
    return None


async def unique(case: Case) -> str | None:
    """Check unique values, their first places, and their counts."""
    array, random = _drawn(case, 0, 3), case.random
    if array.dtype.name == "bfloat16":
        return "NumPy's unique knows no bfloat16"
    chosen = {
        f"return_{name}": True for name in ("index", "inverse", "counts") if chance(random, 0.4)
    }
    nan = chance(random, 0.7)
    case.tell(op="unique", equal_nan=nan, **chosen)
    x = await case.put(array)
    got = await case.fetch(await case.device.array.unique(x, equal_nan=nan, **chosen))
    reference: Any = np.unique
    expected = reference(array, equal_nan=nan, **chosen)
    if not chosen:
        got, expected = (got,), (expected,)
    assert len(got) == len(expected)
    for position, (one, other) in enumerate(zip(got, expected, strict=True)):
        case.tell(result=position)
        if position == 0:  # which of the zeros it is has no meaning
            same(one + np.zeros((), one.dtype) if one.dtype.kind == "f" else one, other)
        elif nan or array.dtype.kind != "f" or not np.isnan(array).any():
            # Which of several NaN is which is NumPy's own.
            same(np.asarray(one).reshape(-1), np.asarray(other).reshape(-1))
    return None


async def masks(case: Case) -> str | None:
    """Check the places of nonzero elements, and their values."""
    random = case.random
    array = values(random, shape(random, 1, 3), choose(random, ORDERED))
    array = np.where(random.random(array.shape) < 0.5, array.dtype.type(0), array).astype(
        array.dtype
    )
    name = choose(random, ("nonzero", "flatnonzero", "argwhere", "extract", "compress"))
    case.tell(op=name)
    x = await case.put(array)
    library: Any = case.device.array
    if name in ("nonzero", "flatnonzero", "argwhere"):
        got = await case.fetch(await getattr(library, name)(x))
        expected = getattr(np, name)(array)
        for one, other in zip(
            got if name == "nonzero" else (got,),
            expected if name == "nonzero" else (expected,),
            strict=True,
        ):
            same(one, other)
    elif name == "extract":
        mask = values(random, array.shape, "bool")
        m = await case.put(mask)
        same(await case.fetch(await library.extract(m, x)), np.extract(mask, array))
    else:
        along = axis(random, array.ndim)
        length = array.size if along is None else array.shape[along]
        mask = values(random, (length,), "bool")
        m = await case.put(mask)
        same(await case.fetch(await library.compress(m, x, along)), np.compress(mask, array, along))
    return None


OPS: Final[list[Callable[[Case], Awaitable[str | None]]]] = [
    sort, sort, partition, topk, search, unique, masks,
]  # fmt: skip


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    return await checked(device, random, OPS)
