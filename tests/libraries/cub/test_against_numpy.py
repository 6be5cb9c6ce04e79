"""``device.cub`` gives what NumPy gives: any size, dtype, operator, order and segments."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef

from ...harness import on_shared
from ..conformance import MARKS, dtype_of

pytestmark = MARKS

Array = np.ndarray[Any, Any]

INTEGERS: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
ORDERED: Final = (*INTEGERS, *FLOATS, "bool")
COMPLEX: Final = ("complex64", "complex128")
SIZES: Final = st.sampled_from([0, 1, 2, 3, 7, 33, 257])
SEEDS: Final = st.integers(0, 2**20)


def sample(seed: int, count: int, dtype: str, *, strange: bool = False) -> Array:
    """Small whole numbers, whose sums are exact; if ``strange`` some NaN, zeros, infinities."""
    rng = np.random.default_rng(seed)
    kind = dtype_of(dtype)
    low = 0 if kind.kind in "ub" else -4
    values: Array = rng.integers(low, 2 if kind.kind == "b" else 5, count).astype(kind)
    if kind.kind == "c":
        values = values + (1j * rng.integers(-4, 5, count)).astype(kind)
    if strange and kind.kind in "fV" and count:
        odd = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf]).astype(kind)
        at = rng.integers(0, count, count // 2)
        values[at] = rng.choice(odd, len(at))
    return values


async def put(device: Device, *arrays: Array) -> list[GpuRef]:
    return [await device.put(array) for array in arrays]


def same(got: Array, expected: Any) -> None:
    """Equal values, NaN too, and equal dtypes."""
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    exact = got.dtype.kind in "iub"
    np.testing.assert_array_equal(
        got if exact else got.astype(wide), expected if exact else expected.astype(wide)
    )


def exactly(got: Array, expected: Array) -> None:
    """Equal to the last bit."""
    assert got.dtype == expected.dtype
    assert got.tobytes() == expected.tobytes()


# --- reductions and scans ---------------------------------------------------------------------

FOLDS: Final = {
    "plus": np.add,
    "multiplies": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}


def fitting(op: str, dtype: str) -> bool:
    if op.startswith("bit_"):
        return dtype in INTEGERS
    return op in ("plus", "multiplies") or dtype not in COMPLEX


@settings(max_examples=30)
@given(
    op=st.sampled_from(sorted(FOLDS)),
    dtype=st.sampled_from((*ORDERED, *COMPLEX)),
    count=SIZES,
    seed=SEEDS,
    begun=st.booleans(),
)
@on_shared
async def test_reduce(
    device: Device, op: str, dtype: str, count: int, seed: int, *, begun: bool
) -> None:
    if not fitting(op, dtype):
        return
    host = sample(seed, count, dtype, strange=op in ("minimum", "maximum"))
    if op == "multiplies":
        host = np.clip(host.real, -1, 1).astype(host.dtype)
    ufunc: Any = FOLDS[op]
    truth = op.startswith("logical")
    init = (np.bool_(1) if truth else host.dtype.type(1)) if begun else None
    (x,) = await put(device, host)
    if not count and not begun and op in ("minimum", "maximum"):
        return
    got = await device.get(await device.cub.reduce(x, op, init=init))
    dtype_out = np.dtype(bool) if truth else host.dtype
    values = host if init is None else np.concatenate((host, [init]))
    wide = np.float32 if dtype in ("float16", "bfloat16") and op == "plus" else dtype_out
    with np.errstate(invalid="ignore"):
        expected = ufunc.reduce(values.astype(dtype_out), dtype=wide)
    same(got, np.asarray(expected).astype(dtype_out))


@settings(max_examples=25)
@given(
    op=st.sampled_from(["plus", "maximum", "bit_xor"]),
    dtype=st.sampled_from((*ORDERED, *COMPLEX)),
    count=SIZES,
    seed=SEEDS,
    begun=st.booleans(),
)
@on_shared
async def test_scans(
    device: Device, op: str, dtype: str, count: int, seed: int, *, begun: bool
) -> None:
    if not fitting(op, dtype):
        return
    host = sample(seed, count, dtype)
    ufunc: Any = FOLDS[op]
    (x,) = await put(device, host)
    init = host.dtype.type(1)
    got = await device.get(await device.cub.inclusive_scan(x, op, init=init if begun else None))
    before = np.asarray([init] if begun else [], host.dtype)
    sums = ufunc.accumulate(np.concatenate((before, host)), dtype=host.dtype)
    same(got, sums[len(before) :])
    got = await device.get(await device.cub.exclusive_scan(x, op, init=init))
    sums = ufunc.accumulate(np.concatenate(([init], host)), dtype=host.dtype)
    same(got, sums[:-1])


@settings(max_examples=10)
@given(dtype=st.sampled_from(ORDERED), count=SIZES, seed=SEEDS)
@on_shared
async def test_positions_of_extremes(device: Device, dtype: str, count: int, seed: int) -> None:
    host = sample(seed, max(1, count), dtype, strange=True)
    (x,) = await put(device, host)
    same(await device.get(await device.cub.argmin(x)), np.argmin(host))
    same(await device.get(await device.cub.argmax(x)), np.argmax(host))


def segments(seed: int, count: int) -> Array:
    """Offsets of segments one behind the other, some of them empty."""
    rng = np.random.default_rng(seed + 1)
    inner = np.sort(rng.integers(0, count + 1, rng.integers(0, 12)))
    return np.asarray([0, *inner, count], np.int64)


@settings(max_examples=15)
@given(
    op=st.sampled_from(["plus", "minimum", "bit_or"]),
    dtype=st.sampled_from(ORDERED),
    offsets=st.sampled_from(["int32", "int64"]),
    count=SIZES,
    seed=SEEDS,
)
@on_shared
async def test_segmented_reduce(
    device: Device, op: str, dtype: str, offsets: str, count: int, seed: int
) -> None:
    if not fitting(op, dtype):
        return
    host, places = sample(seed, count, dtype), segments(seed, count).astype(offsets)
    x, at = await put(device, host, places)
    got = await device.get(await device.cub.segmented_reduce(x, at[:-1], at[1:], op))
    ufunc: Any = FOLDS[op]
    nothing: Any = 0
    if op == "minimum":
        kind = host.dtype.kind
        nothing = np.inf if kind in "fV" else 1 if kind == "b" else np.iinfo(host.dtype).max
    begin = np.asarray([nothing]).astype(host.dtype)
    expected = [
        ufunc.reduce(np.concatenate((begin, host[one:other])), dtype=host.dtype)
        for one, other in itertools.pairwise(places)
    ]
    same(got, np.asarray(expected, host.dtype))


# --- sorts and searches -----------------------------------------------------------------------


def radix_order(keys: Array, *, descending: bool) -> Array:
    """The order of keys, said in another way: by sign, value and kind of NaN."""
    ranks = []
    for at, key in enumerate(keys.tolist() if keys.dtype.kind != "V" else map(float, keys)):
        rank = (0.0, key)
        if np.isnan(key):
            negative = bool(np.signbit(keys[at]))
            rank = (-1.0 if negative else 1.0, 0.0)
        ranks.append(rank)
    sign = -1 if descending else 1
    return np.asarray(
        sorted(
            range(len(keys)),
            key=lambda at: (sign * ranks[at][0], sign * ranks[at][1], at),
        ),
        np.int64,
    )


@settings(max_examples=20)
@given(dtype=st.sampled_from(ORDERED), count=SIZES, seed=SEEDS, descending=st.booleans())
@on_shared
async def test_sorts(
    device: Device, dtype: str, count: int, seed: int, *, descending: bool
) -> None:
    host = sample(seed, count, dtype, strange=True)
    items = sample(seed + 1, count, "complex128")
    order = radix_order(host, descending=descending)
    keys, values = await put(device, host, items)
    cub = device.cub
    got = await device.get(await cub.argsort(keys, descending=descending))
    np.testing.assert_array_equal(got, order)
    exactly(await device.get(await cub.sort(keys, descending=descending)), host[order])
    one, other = await cub.sort_pairs(keys, values, descending=descending)
    exactly(await device.get(one), host[order])
    exactly(await device.get(other), items[order])


@settings(max_examples=10)
@given(
    dtype=st.sampled_from(INTEGERS),
    taken=st.sampled_from(["uint8", "int64", "complex128"]),
    count=SIZES,
    seed=SEEDS,
)
@on_shared
async def test_merge_sorts(device: Device, dtype: str, taken: str, count: int, seed: int) -> None:
    host, items = sample(seed, count, dtype), sample(seed + 1, count, taken)
    keys, values = await put(device, host, items)
    one, other = await device.cub.sort_pairs(keys, values, op=lambda a, b: b < a)
    order = radix_order(host, descending=True)
    exactly(await device.get(one), host[order])
    exactly(await device.get(other), items[order])
    exactly(await device.get(await device.cub.sort(keys, op="less")), np.sort(host))


@settings(max_examples=10)
@given(dtype=st.sampled_from(ORDERED), count=SIZES, seed=SEEDS, descending=st.booleans())
@on_shared
async def test_segmented_sorts(
    device: Device, dtype: str, count: int, seed: int, *, descending: bool
) -> None:
    host, places = sample(seed, count, dtype, strange=True), segments(seed, count)
    items = np.arange(count, dtype=np.int16)
    keys, values, at = await put(device, host, items, places)
    order = np.concatenate(
        [
            one + radix_order(host[one:other], descending=descending)
            for one, other in itertools.pairwise(places)
        ]
    )
    cub = device.cub
    got = await cub.segmented_sort(keys, at[:-1], at[1:], descending=descending)
    exactly(await device.get(got), host[order])
    one, other = await cub.segmented_sort_pairs(
        keys, values, at[:-1], at[1:], descending=descending
    )
    exactly(await device.get(one), host[order])
    exactly(await device.get(other), items[order])


@settings(max_examples=15)
@given(dtype=st.sampled_from(ORDERED), count=SIZES, wanted=SIZES, seed=SEEDS)
@on_shared
async def test_bounds(device: Device, dtype: str, count: int, wanted: int, seed: int) -> None:
    host = np.abs(sample(seed, count, dtype, strange=True))
    looked_for = np.abs(sample(seed + 1, wanted, dtype, strange=True))
    host = host[radix_order(host, descending=False)]
    data, values = await put(device, host, looked_for)
    wide = np.float64 if dtype in FLOATS else host.dtype
    for bound, side in (("lower_bound", "left"), ("upper_bound", "right")):
        got = await device.get(await getattr(device.cub, bound)(data, values))
        found = np.searchsorted(host.astype(wide), looked_for.astype(wide), side=side)  # type: ignore[call-overload]
        same(got, found)


# --- selections -------------------------------------------------------------------------------


@settings(max_examples=15)
@given(dtype=st.sampled_from((*INTEGERS, *FLOATS)), count=SIZES, seed=SEEDS)
@on_shared
async def test_selections(device: Device, dtype: str, count: int, seed: int) -> None:
    host = sample(seed, count, dtype, strange=True)
    wide = host.astype(np.float64)  # of which NaN compares without a word
    large, middle = wide > 1, (wide > 0) & ~(wide > 1)
    (x,) = await put(device, host)
    cub = device.cub

    async def trimmed(number: GpuRef, out: GpuRef) -> Array:
        return await device.get(await cub.trim(number, out))

    out, number = await cub.select(x, lambda a: a > 1)
    exactly(await trimmed(number, out), host[large])
    flags = sample(seed + 1, count, "bool")
    out, number = await cub.select_flagged(x, (await put(device, flags))[0])
    exactly(await trimmed(number, out), host[flags])
    one, other, number = await cub.partition(x, lambda a: a > 1)
    found = int(await device.get(number))
    exactly((await device.get(one))[:found], host[large])
    exactly((await device.get(other))[: count - found], host[~large])
    *parts, numbers = await cub.three_way_partition(x, lambda a: a > 1, lambda a: a > 0)
    first, second = (await device.get(numbers)).tolist()
    wanted = [host[large], host[middle], host[~large & ~middle]]
    assert (first, second) == (len(wanted[0]), len(wanted[1]))
    for part, expected in zip(parts, wanted, strict=True):
        exactly((await device.get(part))[: len(expected)], expected)


@settings(max_examples=15)
@given(
    dtype=st.sampled_from(ORDERED),
    count=SIZES,
    seed=SEEDS,
    taken=st.sampled_from(["uint8", "int64", "complex128"]),
)
@on_shared
async def test_unique(device: Device, dtype: str, count: int, seed: int, taken: str) -> None:
    host, items = sample(seed, count, dtype, strange=True), sample(seed + 1, count, taken)
    x, values = await put(device, host, items)
    kept = np.ones(count, bool)
    kept[1:] = host[1:] != host[:-1]
    out, number = await device.cub.unique(x)
    exactly(await device.get(await device.cub.trim(number, out)), host[kept])
    keys, others, number = await device.cub.unique_by_key(x, values)
    exactly(await device.get(await device.cub.trim(number, keys)), host[kept])
    exactly(await device.get(await device.cub.trim(number, others)), items[kept])


# --- elements ---------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    dtype=st.sampled_from([each for each in (*INTEGERS, *FLOATS) if each != "bfloat16"]),
    counts=st.sampled_from(["int32", "uint32", "int64", "uint64"]),
    bins=st.integers(1, 9),
    lower=st.integers(-3, 2),
    width=st.integers(1, 7),
    count=SIZES,
    seed=SEEDS,
)
@on_shared
async def test_histogram(
    device: Device,
    dtype: str,
    counts: str,
    bins: int,
    lower: int,
    width: int,
    count: int,
    seed: int,
) -> None:
    if dtype.startswith("uint"):
        lower = abs(lower)
    host = sample(seed, count, dtype, strange=True)
    (x,) = await put(device, host)
    got = await device.get(
        await device.cub.histogram_even(x, bins, lower, lower + width, dtype=counts)
    )
    inside = host.astype(np.float64)
    inside = inside[(inside >= lower) & (inside < lower + width)]
    positions = np.floor_divide((inside.astype(np.int64) - lower) * bins, width)
    same(got, np.bincount(positions, minlength=bins).astype(counts))


@settings(max_examples=15)
@given(
    dtype=st.sampled_from((*ORDERED, *COMPLEX)),
    op=st.sampled_from(["plus", "minus", "multiplies", "maximum", "less", "equal_to", "bit_xor"]),
    count=SIZES,
    seed=SEEDS,
)
@on_shared
async def test_transforms(device: Device, dtype: str, op: str, count: int, seed: int) -> None:
    ufuncs: Any = {**FOLDS, "minus": np.subtract, "less": np.less, "equal_to": np.equal}
    if dtype in COMPLEX and op not in ("plus", "minus", "multiplies"):
        return
    if (op == "bit_xor" and dtype not in INTEGERS) or (op == "minus" and dtype == "bool"):
        return
    one, other = sample(seed, count, dtype), sample(seed + 1, count, dtype)
    a, b = await put(device, one, other)
    got = await device.get(await device.cub.binary_transform(a, b, op))
    same(got, ufuncs[op](one, other))
    got = await device.get(await device.cub.unary_transform(a, "identity"))
    same(got, one)
    if dtype != "bool":
        got = await device.get(await device.cub.unary_transform(a, "negate"))
        same(got, np.negative(one))
