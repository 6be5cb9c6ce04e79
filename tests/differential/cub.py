"""Cases of ``device.cub`` against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np

from atomr_accel import Device

from .cases import COMPLEX, FLOATS, INTEGERS, Case, chance, choose, same, values

Array = np.ndarray[Any, Any]
Random = np.random.Generator

SIZES: Final = (0, 1, 2, 3, 7, 33, 257, 1000, 5001)
# Each pair of a dtype and an operator takes seconds to build on a GPU: there are few of them, and
# what they are made of is drawn from as few seeds.
KERNELS: Final = 60
KEYS: Final = ("int32", "int64", "uint8", "float32", "float64", "float16", "bfloat16")
FOLDS: Final = {
    "plus": np.add,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "bit_xor": np.bitwise_xor,
    "logical_or": np.logical_or,
}


def whole(random: Random, dtype: str, count: int, *, odd: bool = False) -> Array:
    """Small whole numbers, whose sums are exact in every dtype."""
    array = np.round(values(random, (count,), dtype).real.astype(np.float64) / 3)
    if dtype.startswith("u"):
        array = np.abs(array)
    made: Array = array.astype(values(random, (0,), dtype).dtype)
    if odd and dtype in FLOATS and count:
        strange = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf]).astype(made.dtype)
        made[random.integers(0, count, count // 3)] = random.choice(strange, count // 3)
    return made


def drawn(case: Case, kernel: Random, kinds: tuple[str, ...] = KEYS, *, odd: bool = False) -> Array:
    """A row of some dtype and length."""
    return whole(case.random, choose(kernel, kinds), choose(case.random, SIZES), odd=odd)


def offsets(random: Random, kernel: Random, count: int) -> Array:
    """Offsets of segments one behind the other, some of them empty."""
    inner = np.sort(random.integers(0, count + 1, random.integers(0, 12)))
    return np.asarray([0, *inner, count], choose(kernel, (np.int64, np.int32)))


def order(keys: Array, *, descending: bool = False) -> Array:
    """The order of a radix sort: by value, zeros by their signs, NaN behind all others."""
    large = keys.astype(np.float64) if keys.dtype.kind in "fV" else keys
    found = np.unique(large, return_inverse=True)[1].astype(np.int64) * 2
    return np.argsort(-found if descending else found, kind="stable")


async def fold(case: Case, kernel: Random) -> str | None:
    """Reductions and scans."""
    random = case.random
    op = choose(kernel, list(FOLDS))
    kinds = INTEGERS[:6] if op.startswith("bit") else KEYS
    name = choose(kernel, ("reduce", "inclusive_scan", "exclusive_scan"))
    host = drawn(case, kernel, (*KEYS, *COMPLEX) if op == "plus" else kinds)
    if op == "logical_or" and name != "reduce":
        op = "maximum"
    if op == "plus" and host.dtype.itemsize < 4 and len(host) > 300:
        host = host[:257]  # sums stay exact
    case.tell(op=name, operator=op)
    truth = op == "logical_or"
    result = np.dtype(bool) if truth else host.dtype
    init = np.bool_(0) if truth else host.dtype.type(1)
    begun = name == "exclusive_scan" or chance(random, 0.5) or not len(host)
    x = await case.put(host)
    method = getattr(case.device.cub, name)
    ufunc: Any = FOLDS[op]
    if name == "reduce":
        got = await case.fetch(await method(x, op, init=init if begun else None))
        kept = np.concatenate((host.astype(result), [init] if begun else np.zeros(0, result)))
        large = np.float64 if host.dtype.kind in "fV" and op == "plus" else result
        same(got, np.asarray(ufunc.reduce(kept, dtype=large)).astype(result))
        return None
    if host.dtype.kind in "fVc" and op == "plus" and len(host) > 300:
        host = host[:257]
        x = x[:257]
    got = await case.fetch(await method(x, op, init=init if begun else None))
    before = np.asarray([init] if begun else [], host.dtype)
    sums = ufunc.accumulate(np.concatenate((before, host)), dtype=host.dtype)
    same(got, sums[len(before) :] if name == "inclusive_scan" else sums[:-1])
    return None


async def extreme(case: Case, kernel: Random) -> str | None:
    """Check the places of the least and the largest element."""
    host = drawn(case, kernel, odd=True)
    if not len(host):
        return None
    name = choose(kernel, ("argmin", "argmax"))
    case.tell(op=name)
    x = await case.put(host)
    same(await case.fetch(await getattr(case.device.cub, name)(x)), getattr(np, name)(host))
    return None


async def sorts(case: Case, kernel: Random) -> str | None:
    """Keys, positions and pairs."""
    random = case.random
    name = choose(kernel, ("sort", "argsort", "sort_pairs"))
    host, descending = drawn(case, kernel, odd=True), chance(kernel, 0.5)
    if host.dtype.kind in "fV":  # the order of zeros is that of their signs
        host = (host + host.dtype.type(0)).astype(host.dtype)
    case.tell(op=name, descending=descending)
    at = order(host, descending=descending)
    keys = await case.put(host)
    cub: Any = case.device.cub
    await case.poison(host.nbytes, 8 * len(host))
    if name == "sort_pairs":
        items = whole(random, choose(kernel, ("uint8", "int64", "complex128")), len(host))
        taken = await case.put(items)
        one, other = await case.fetch(await cub.sort_pairs(keys, taken, descending=descending))
        same(one, host[at])
        same(other, items[at])
    else:
        got = await case.fetch(await getattr(cub, name)(keys, descending=descending))
        same(got, host[at] if name == "sort" else at)
    return None


async def segments(case: Case, kernel: Random) -> str | None:
    """Reductions and sorts of segments."""
    random = case.random
    name = choose(kernel, ("segmented_reduce", "segmented_sort", "segmented_sort_pairs"))
    host = drawn(case, kernel)
    places = offsets(random, kernel, len(host))
    descending = chance(kernel, 0.5)
    case.tell(op=name, places=places.tolist(), descending=descending)
    x, at = await case.put(host), await case.put(places, views=False)
    cub: Any = case.device.cub
    pairs = list(itertools.pairwise(places.tolist()))
    if name == "segmented_reduce":
        got = await case.fetch(await cub.segmented_reduce(x, at[:-1], at[1:], "plus"))
        large = host.dtype if host.dtype.kind in "iu" else np.float64
        sums = [host[one:other].astype(large).sum() for one, other in pairs]
        if host.dtype.itemsize == 2 and len(host) > 300:
            return "sums of many halves are rounded on the way"
        same(got, np.asarray(sums).astype(large).astype(host.dtype))
        return None
    found = np.concatenate(
        [one + order(host[one:other], descending=descending) for one, other in pairs]
    ).astype(int)
    if name == "segmented_sort":
        same(
            await case.fetch(await cub.segmented_sort(x, at[:-1], at[1:], descending=descending)),
            host[found],
        )
        return None
    items = np.arange(len(host), dtype=np.int32)
    taken = await case.put(items)
    made = await cub.segmented_sort_pairs(x, taken, at[:-1], at[1:], descending=descending)
    one, other = await case.fetch(made)
    same(one, host[found])
    same(other, items[found])
    return None


async def selection(case: Case, kernel: Random) -> str | None:
    """Check operations that keep some elements."""
    random = case.random
    host = drawn(case, kernel, odd=True)
    large = host.astype(np.float64) if host.dtype.kind in "fV" else host
    mask = large > 1
    name = choose(kernel, ("select", "select_flagged", "partition", "unique", "unique_by_key"))
    case.tell(op=name)
    cub: Any = case.device.cub
    x = await case.put(host)
    if name == "select":
        out, number = await cub.select(x, lambda a: a > 1)
        same(await case.fetch(await cub.trim(number, out)), host[mask])
    elif name == "select_flagged":
        flags = values(random, host.shape, "bool")
        out, number = await cub.select_flagged(x, await case.put(flags))
        same(await case.fetch(await cub.trim(number, out)), host[flags])
    elif name == "partition":
        one, other, number = await case.fetch(await cub.partition(x, lambda a: a > 1))
        assert number == mask.sum(), f"{number} elements, expected {mask.sum()}"
        same(one[: int(number)], host[mask])
        same(other[: int((~mask).sum())], host[~mask])
    else:
        first = np.ones(len(host), bool)
        first[1:] = large[1:] != large[:-1]
        if name == "unique":
            out, number = await cub.unique(x)
            same(await case.fetch(await cub.trim(number, out)), host[first])
        else:
            items = np.arange(len(host), dtype=np.float32)
            keys, taken, number = await cub.unique_by_key(x, await case.put(items))
            same(await case.fetch(await cub.trim(number, keys)), host[first])
            same(await case.fetch(await cub.trim(number, taken)), items[first])
    return None


async def search(case: Case, kernel: Random) -> str | None:
    """Bounds and histograms."""
    random = case.random
    if chance(kernel, 0.5):
        host = drawn(case, kernel, ("int32", "float32", "float64"))
        bins, lower, upper = int(random.integers(1, 20)), -4, 5
        case.tell(op="histogram_even", bins=bins)
        x = await case.put(host)
        got = await case.fetch(await case.device.cub.histogram_even(x, bins, lower, upper))
        kept = host[(host >= lower) & (host < upper)].astype(np.int64)
        # Whole numbers may be on an edge of bins, where what a quotient rounds to decides.
        if 9 % bins == 0:
            same(got, np.bincount((kept - lower) * bins // 9, minlength=bins))
        assert got.sum() == len(kept), f"{got.sum()} in all, expected {len(kept)}"
        return None
    host = np.sort(drawn(case, kernel, ("int32", "int64", "float32", "float64")))
    wanted = whole(random, host.dtype.name, choose(random, SIZES[:7]))
    name = choose(kernel, ("lower_bound", "upper_bound"))
    case.tell(op=name)
    x, y = await case.put(host), await case.put(wanted)
    got = await case.fetch(await getattr(case.device.cub, name)(x, y))
    same(got, np.searchsorted(host, wanted, "left" if name == "lower_bound" else "right"))
    return None


async def transform(case: Case, kernel: Random) -> str | None:
    """Functions of each element."""
    host = drawn(case, kernel, ("int32", "float32", "float64"))
    if chance(kernel, 0.5):
        case.tell(op="unary_transform")
        x = await case.put(host)
        got = await case.fetch(await case.device.cub.unary_transform(x, lambda a: a * 2 + 1))
        same(got, host * host.dtype.type(2) + host.dtype.type(1))
        return None
    case.tell(op="binary_transform")
    other = whole(case.random, host.dtype.name, len(host))
    x, y = await case.put(host), await case.put(other)
    got = await case.fetch(await case.device.cub.binary_transform(x, y, lambda a, b: a - b))
    same(got, host - other)
    return None


OPS: Final[list[Callable[[Case, Random], Awaitable[str | None]]]] = [
    fold, fold, extreme, sorts, segments, selection, search, transform,
]  # fmt: skip


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    case = Case(device, random)
    kernel = np.random.default_rng(int(random.integers(KERNELS)))
    with case.described():
        refused = await choose(kernel, OPS)(case, kernel)
        await case.finish()
    return refused
