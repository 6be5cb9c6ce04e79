"""``device.array`` makes, joins, repeats and pads arrays as NumPy does."""

from __future__ import annotations

import inspect
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel._other_names import is_other_name
from atomr_accel.libraries.array.facade import ArrayFunctions

from ...harness import on_shared
from ..conformance import MARKS
from ..refusals import refuses
from .calls import FILLED, LAYOUTS, NUMBERS, SEEDS, SHAPES, by_numpy, fetched, put, same, sample

pytestmark = MARKS

SIZES = st.integers(0, 5)
OFFSETS = st.integers(-6, 6)
STEPS = st.sampled_from([-3, -1, 1, 2, 0.25, -0.5, 1.5, 0.1])
ENDS = st.sampled_from([-4, 0, 1, 5, 7, 0.5, -2.75, 3.3])
DTYPES = st.sampled_from(
    [None, "int8", "uint8", "uint64", "int64", "float16", "float32", "float64"]
)


@settings(max_examples=40)
@given(start=ENDS, stop=ENDS, step=STEPS, dtype=DTYPES)
@on_shared
async def test_arange(device: Device, start: float, stop: float, step: float, dtype: Any) -> None:
    if dtype in ("uint8", "uint64") and min(start, stop, start + step) < 0:
        dtype = "int64"
    with np.errstate(all="ignore"):
        numpy: Any = np
        expected = numpy.arange(start, stop, step, dtype)
    same(await fetched(device, await device.array.arange(start, stop, step, dtype)), expected)


@settings(max_examples=40)
@given(start=ENDS, stop=ENDS, num=SIZES, endpoint=st.booleans(), dtype=DTYPES)
@on_shared
async def test_linspace(
    device: Device, start: float, stop: float, num: int, dtype: Any, *, endpoint: bool
) -> None:
    if dtype in ("uint8", "uint64") and min(start, stop) < 0:
        dtype = "int64"
    got = await device.array.linspace(start, stop, num, endpoint, dtype=dtype)
    same(await fetched(device, got), np.linspace(start, stop, num, endpoint, dtype=dtype))
    got = await device.array.logspace(start, stop, num, endpoint, 2.0)
    same(await fetched(device, got), np.logspace(start, stop, num, endpoint, 2.0), near=1e-12)


@settings(max_examples=25)
@given(rows=SIZES, columns=SIZES, k=OFFSETS, dtype=st.sampled_from(["bool", "int8", "float32"]))
@on_shared
async def test_matrices(device: Device, rows: int, columns: int, k: int, dtype: str) -> None:
    array = device.array
    same(
        await fetched(device, await array.eye(rows, columns, k, dtype)),
        np.eye(rows, columns, k, dtype),
    )
    same(
        await fetched(device, await array.tri(rows, columns, k, dtype)),
        np.tri(rows, columns, k, dtype),
    )
    same(await fetched(device, await array.identity(rows, dtype)), np.identity(rows, dtype))
    shape = (rows, 2, columns)
    same(await fetched(device, await array.indices(shape, "int32")), np.indices(shape, "int32"))


def empty_diagonal(host: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    """Return the diagonal of an array without elements: of a vector, a matrix of zeros."""
    return np.zeros((abs(k), abs(k)) if host.ndim == 1 else 0, host.dtype)


@settings(max_examples=25)
@given(
    shape=SHAPES,
    dtype=st.sampled_from(NUMBERS),
    layout=st.sampled_from(LAYOUTS),
    k=OFFSETS,
    seed=SEEDS,
)
@on_shared
async def test_parts_of_matrices(
    device: Device, shape: tuple[int, ...], dtype: str, layout: str, k: int, seed: int
) -> None:
    host = sample(seed, shape, dtype)
    x = await put(device, host, layout)
    array = device.array
    if shape:
        same(await fetched(device, await array.tril(x, k)), np.tril(host, k))
        same(await fetched(device, await array.triu(x, k)), np.triu(host, k))
    if len(shape) in (1, 2):
        kept = np.diag(host, k) if min(shape) else empty_diagonal(host, k)
        same(await fetched(device, await array.diag(x, k)), kept)
    same(await fetched(device, await array.full_like(x, 1)), np.full_like(host, 1))
    same(await fetched(device, await array.zeros_like(x, "int8")), np.zeros_like(host, "int8"))
    same(await fetched(device, await array.ones_like(x, shape=(2, 3))), np.ones((2, 3), host.dtype))
    assert (await array.empty_like(x)).shape == shape
    same(await fetched(device, await array.full((2, 3), 7, "int8")), np.full((2, 3), 7, "int8"))
    same(await fetched(device, await array.ascontiguousarray(x)), np.ascontiguousarray(host))
    same(await fetched(device, await array.astype(x, x.dtype)), host)


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    indexing=st.sampled_from(["xy", "ij"]),
    sparse=st.booleans(),
)
@on_shared
async def test_meshgrid(device: Device, sizes: list[int], indexing: Any, *, sparse: bool) -> None:
    hosts = [np.arange(size) * 1.5 for size in sizes]
    xi = [await put(device, host, "gaps") for host in hosts]
    got = await fetched(device, await device.array.meshgrid(*xi, indexing=indexing, sparse=sparse))
    same(got, np.meshgrid(*hosts, indexing=indexing, sparse=sparse))


@settings(max_examples=40)
@given(shape=FILLED, seed=SEEDS, given_out=st.booleans())
@on_shared
async def test_joining(
    device: Device, shape: tuple[int, ...], seed: int, *, given_out: bool
) -> None:
    draw = Random(seed)
    axis = draw.choice([None, *range(-len(shape), len(shape))])
    hosts, refs = [], []
    for number in range(draw.randint(1, 3)):
        sizes = list(shape)
        if axis is not None:
            sizes[axis] = draw.randint(0, 3)
        host = sample(seed + number, tuple(sizes), draw.choice(NUMBERS[:7]))
        hosts.append(host)
        refs.append(await put(device, host, draw.choice(LAYOUTS)))
    expected = np.concatenate(hosts, axis)
    out = None
    if given_out:
        out = await put(device, np.full(expected.shape, 7, expected.dtype), "transposed")
    got = await device.array.concatenate(refs, axis, out)
    assert out is None or got is out
    same(await fetched(device, got), expected)
    alike = [await put(device, sample(seed, shape, "int8"), "transposed")] * 2
    host = sample(seed, shape, "int8")
    for at in range(-len(shape) - 1, len(shape) + 1):
        same(await fetched(device, await device.array.stack(alike, at)), np.stack([host] * 2, at))
    same(await fetched(device, await device.array.vstack(alike)), np.vstack([host] * 2))
    same(await fetched(device, await device.array.hstack(alike)), np.hstack([host] * 2))


@settings(max_examples=25)
@given(shape=FILLED, seed=SEEDS)
@on_shared
async def test_views(device: Device, shape: tuple[int, ...], seed: int) -> None:
    draw = Random(seed)
    host = sample(seed, shape, "int64")
    x = await put(device, host, draw.choice(LAYOUTS))
    axis = draw.randrange(-len(shape), len(shape))
    array = device.array
    parts: Any = draw.choice([1, 2, 3, 4, [], [1], [0, 2], [1, 3, 3]])
    same(
        await fetched(device, array.array_split(x, parts, axis)), np.array_split(host, parts, axis)
    )
    same(await fetched(device, array.split(x, 1, axis)), np.split(host, 1, axis))
    same(await fetched(device, array.flip(x, axis)), np.flip(host, axis))
    same(await fetched(device, array.flip(x)), np.flip(host))
    same(await fetched(device, array.flipud(x)), np.flipud(host))
    if len(shape) > 1:
        same(await fetched(device, array.fliplr(x)), np.fliplr(host))
        k = draw.randint(-3, 5)
        same(await fetched(device, array.rot90(x, k)), np.rot90(host, k))


@settings(max_examples=40)
@given(shape=SHAPES, seed=SEEDS, dtype=st.sampled_from(NUMBERS))
@on_shared
async def test_repeating(device: Device, shape: tuple[int, ...], seed: int, dtype: str) -> None:
    draw = Random(seed)
    host = sample(seed, shape, dtype)
    x = await put(device, host, draw.choice(LAYOUTS))
    array = device.array
    axis = draw.choice([None, *range(-len(shape), len(shape))])
    times = draw.randint(0, 3)
    same(await fetched(device, await array.repeat(x, times, axis)), np.repeat(host, times, axis))
    n = host.size if axis is None else shape[axis]
    counts = [draw.randint(0, 3) for _ in range(n)]
    same(
        await fetched(device, await array.repeat(x, counts, axis)),
        np.repeat(host, np.array(counts, int), axis),
    )
    several = await put(device, np.array(counts, np.int32), "gaps")
    same(
        await fetched(device, await array.repeat(x, several, axis)),
        np.repeat(host, np.array(counts, int), axis),
    )
    reps = [draw.randint(0, 3) for _ in range(draw.randint(0, 4))]
    same(await fetched(device, await array.tile(x, reps)), np.tile(host, reps))
    shift = draw.randint(-7, 7)
    same(await fetched(device, await array.roll(x, shift, axis)), np.roll(host, shift, axis))
    if len(shape) > 1:
        same(
            await fetched(device, await array.roll(x, (1, shift), (0, -1))),
            np.roll(host, (1, shift), (0, -1)),
        )


@settings(max_examples=60)
@given(
    shape=FILLED,
    seed=SEEDS,
    mode=st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"]),
)
@on_shared
async def test_pad(device: Device, shape: tuple[int, ...], seed: int, mode: Any) -> None:
    draw = Random(seed)
    host = sample(seed, shape, "int64")
    x = await put(device, host, draw.choice(LAYOUTS))
    pairs = tuple((draw.randint(0, 9), draw.randint(0, 9)) for _ in shape)
    width: Any = draw.choice([draw.randint(0, 5), pairs[0], pairs])
    same(await fetched(device, await device.array.pad(x, width, mode)), np.pad(host, width, mode))
    if mode in ("reflect", "symmetric"):
        made = await device.array.pad(x, width, mode, reflect_type="odd")
        same(await fetched(device, made), np.pad(host, width, mode, reflect_type="odd"))


@settings(max_examples=25)
@given(shape=FILLED, seed=SEEDS, dtype=st.sampled_from(["int64", "float32", "float64"]))
@on_shared
async def test_elementwise(device: Device, shape: tuple[int, ...], seed: int, dtype: str) -> None:
    host, other = sample(seed, shape, dtype, strange=True), sample(seed + 1, shape, dtype)
    x, y = await put(device, host, "transposed"), await put(device, other)
    array = device.array
    same(await fetched(device, await array.where(x > 0, x, y)), np.where(host > 0, host, other))
    same(await fetched(device, await array.clip(x, -1, y)), by_numpy("clip", host, -1, other))
    same(await fetched(device, await array.round(x * 0.3, 1)), by_numpy("round", host * 0.3, 1))
    for equal in (False, True):
        got = await array.isclose(x, y, equal_nan=equal)
        same(await fetched(device, got), by_numpy("isclose", host, other, equal_nan=equal))
    for number in (1, 2.0, 1.0 - 2.0**-52, np.float64(1.0 - 2.0**-52), float("nan"), 10**9):
        got = await array.isclose(x, number, rtol=0, atol=0)
        same(await fetched(device, got), by_numpy("isclose", host, number, rtol=0, atol=0))
    out = await put(device, np.zeros_like(host), "gaps")
    assert await array.clip(x, -1, 1, out) is out
    same(await fetched(device, out), by_numpy("clip", host, -1, 1))


@on_shared
async def test_nearly_equal_numbers_take_the_dtype_of_the_array(device: Device) -> None:
    ones = await put(device, np.ones(2, np.float32))
    below = 1.0 - 2.0**-52  # 1 in single precision
    for number in (below, np.float64(below)):
        got = await device.array.isclose(ones, number, rtol=0, atol=0)
        same(await fetched(device, got), np.isclose(np.ones(2, np.float32), number, 0, 0))


@on_shared
async def test_batches_and_recordings(device: Device) -> None:
    host = np.arange(12.0).reshape(3, 4)
    x = await device.put(host)
    async with device.batch() as batch:
        line = batch.array.arange(4.0)
        joined = batch.array.concatenate([x, batch.array.stack([line, line])])
        made = batch.array.pad(joined.T, 1, "edge")
    expected = np.pad(np.concatenate([host, np.stack([np.arange(4.0)] * 2)]).T, 1, "edge")
    same(await device.get(made), expected)
    async with device.record() as recording:
        rolled = recording.array.roll(x, 1, 1)
        out = recording.array.tile(rolled, (2, 1))
    await device.put(host * 2, out=x)
    await recording.replay()
    same(await device.get(out), np.tile(np.roll(host * 2, 1, 1), (2, 1)))
    request = device.requests.array.repeat(x, 2)
    same(await device.get(await device.array.ref.ask(request)), np.repeat(host * 2, 2))


test_manipulation_refuses_invalid_arguments = refuses(
    "array",
    [
        ("arange(0, 5, 0)", ZeroDivisionError, "division by zero"),
        ('arange("a")', TypeError, "start must be a number|stop must be a number"),
        ("arange(0, np.inf)", ValueError, "cannot compute length"),
        ("arange(1j)", TypeError, "real number"),
        ("linspace(0, 1, -1)", ValueError, "Number of samples, -1, must be non-negative"),
        ("eye(-1)", ValueError, "negative"),
        ("tril(f8_6[0])", ValueError, "at least one dimension"),
        ("full(3, [1, 2])", TypeError, "fill_value must be a number"),
        ('full(3, 300, "int8")', OverflowError, "out of bounds for int8"),
        ("diag(f8_2x3[None])", ValueError, "Input must be 1- or 2-d"),
        ('meshgrid(f8_6, indexing="yx")', ValueError, "Valid values for `indexing`"),
        ('astype(f8_6, "int8", "safe")', TypeError, "according to the rule 'safe'"),
        ("concatenate([])", ValueError, "need at least one array to concatenate"),
        (
            "concatenate([f8_6, f8_2x3])",
            ValueError,
            r"arrays\[1\] must have 1 dimension\(s\), as arrays\[0\] has, not 2",
        ),
        (
            "concatenate([f8_2x3, f8_2x3.T])",
            ValueError,
            r"arrays\[1\] must have size 3 along dimension 1, as arrays\[0\] has, not 2",
        ),
        ("concatenate([f8_])", ValueError, "zero-dimensional arrays"),
        ("concatenate([f8_6, f8_6], 1)", np.exceptions.AxisError, "axis 1 is out of bounds"),
        ('concatenate([f8_6, f8_6], dtype="int8")', TypeError, "rule 'same_kind'"),
        ("concatenate(f8_6)", TypeError, "arrays must be a list or tuple of refs"),
        ("stack([f8_6, f8_6[:2]])", ValueError, "all input arrays must have the same shape"),
        ("repeat(f8_6, -1)", ValueError, "repeats may not contain negative values"),
        ("repeat(f8_6, 1.5)", TypeError, "repeats must be whole numbers"),
        ("repeat(f8_6, [1, 2])", ValueError, r"shape \(6,\) \(2,\)"),
        ("repeat(f8_6, f8_6)", TypeError, "Cannot cast array data"),
        ("tile(f8_6, -1)", ValueError, "negative dimensions are not allowed"),
        ("roll(f8_6, 1, 3)", np.exceptions.AxisError, "axis 3 is out of bounds"),
        ("pad(f8_6, -1)", ValueError, "index can't contain negative values"),
        ("pad(f8_6, 1.5)", TypeError, "`pad_width` must be of integral type"),
        ('pad(f8_6[:0], 1, "edge")', ValueError, "can't extend empty axis 0"),
        ('pad(f8_6, 1, "random")', ValueError, "mode 'random' is not supported"),
        ("clip([1], 0, 1)", TypeError, "a must be a GpuRef"),
        ("where(True, 1, 2)", TypeError, "none of the arguments is one"),
    ],
    np=np,
)


@on_shared
async def test_negative_numbers_of_repeats_are_refused(device: Device) -> None:
    x = await device.put(np.arange(6) - 3)
    with pytest.raises(ValueError, match="repeats may not contain negative values"):
        await device.array.repeat(x, x)


@on_shared
async def test_results_go_where_nothing_is_read(device: Device) -> None:
    x = await device.put(np.arange(6.0))
    with pytest.raises(ValueError, match=r"out shares memory with arrays\[0\]"):
        await device.array.concatenate([x[:3], x[3:]], out=x)
    with pytest.raises(
        ValueError, match=r"out must have shape \(3,\), as concatenate gives, not \(6,\)"
    ):
        await device.array.concatenate([x[:3]], out=x)
    with pytest.raises(TypeError, match=r"Cannot cast|according to"):
        await device.array.concatenate([x], out=await device.zeros(6, "int32"))


def test_functions_have_out_as_numpy_does() -> None:
    def has_out(function: Any) -> bool:
        try:
            return "out" in inspect.signature(function).parameters
        except ValueError:
            return False

    further = {"argsort", "sort", "tril", "triu", "where"}
    for name in dir(ArrayFunctions):
        numpys = getattr(np, name, None)
        if (
            not name.startswith("_")
            and not is_other_name(ArrayFunctions, name)
            and callable(numpys)
            and callable(getattr(ArrayFunctions, name))
        ):
            wanted = has_out(numpys) or name in further
            assert has_out(getattr(ArrayFunctions, name)) == wanted, name
