"""``device.array`` chooses elements by indices and masks as NumPy does, and writes to them."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRefSealed, Unsupported
from atomr_accel.libraries.array.choosing import MOST_INDICES

from ...harness import on_shared, opened
from ..conformance import MARKS
from .calls import FILLED, LAYOUTS, NUMBERS, SEEDS, fetched, put, same, sample

pytestmark = MARKS

Array = np.ndarray[Any, Any]
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")


def indices_of(draw: Random, n: int, shape: tuple[int, ...], *, beyond: int = 0) -> Array:
    """Indices of an axis, some of them negative, or out of bounds."""
    dtype = draw.choice(INTEGERS)
    low = 0 if dtype.startswith("u") else -n - beyond
    count = int(np.prod(shape))
    values = [draw.randint(low, n - 1 + beyond) for _ in range(count)]
    return np.array(values, dtype).reshape(shape)


@pytest.mark.slow
@settings(max_examples=50)
@given(shape=FILLED, dtype=st.sampled_from(NUMBERS), seed=SEEDS)
@on_shared
async def test_take(device: Device, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    draw = Random(seed)
    host = sample(seed, shape, dtype)
    x = await put(device, host, draw.choice(LAYOUTS))
    axis = draw.choice([None, *range(-len(shape), len(shape))])
    n = host.size if axis is None else shape[axis]
    sizes = draw.choice([(), (3,), (2, 2), (0,), (1, 0, 2)])
    index = indices_of(draw, n, sizes)
    i = await put(device, index, draw.choice(LAYOUTS))
    array = device.array
    for given_index in (i, index, i + 0):
        same(
            await fetched(device, await array.take(x, given_index, axis)),
            np.take(host, index, axis),
        )
    same(
        await fetched(device, await array.take(x, i, axis, mode="raise")),
        np.take(host, index, axis),
    )
    wild = indices_of(draw, n, sizes, beyond=3 * n)
    w = await put(device, wild)
    for mode in ("wrap", "clip"):
        expected = np.take(host, wild.astype(np.int64), axis, mode=mode)
        same(await fetched(device, await array.take(x, w, axis, mode=mode)), expected)
        same(await fetched(device, await array.take(x, wild, axis, mode=mode)), expected)
    out = await put(device, np.zeros(np.take(host, index, axis).shape, host.dtype), "transposed")
    assert await array.take(x, i, axis, out) is out
    same(await fetched(device, out), np.take(host, index, axis))


@settings(max_examples=40)
@given(shape=FILLED, dtype=st.sampled_from(NUMBERS), seed=SEEDS)
@on_shared
async def test_along_axis(device: Device, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    draw = Random(seed)
    host = sample(seed, shape, dtype)
    axis = draw.randrange(-len(shape), len(shape))
    sizes = list(shape)
    sizes[axis] = draw.randint(0, 3)
    index = indices_of(draw, shape[axis], tuple(sizes))
    x, i = (
        await put(device, host, draw.choice(LAYOUTS)),
        await put(device, index, draw.choice(LAYOUTS)),
    )
    array = device.array
    same(
        await fetched(device, await array.take_along_axis(x, i, axis)),
        np.take_along_axis(host, index, axis),
    )
    flat = indices_of(draw, host.size, (4,))
    f = await put(device, flat)
    same(
        await fetched(device, await array.take_along_axis(x, f, None)),
        np.take_along_axis(host, flat, None),
    )
    # Each place once, so that the order of writing does not matter.
    order = np.argsort(np.random.default_rng(seed).random(shape), axis=axis)
    o = await put(device, order)
    values = sample(seed + 1, shape, dtype)
    expected = host.copy()
    np.put_along_axis(expected, order, values, axis)
    assert await array.put_along_axis(x, o, await put(device, values), axis) is x
    same(await fetched(device, x), expected)
    np.put_along_axis(expected, order[:1] if axis % len(shape) else order, host.dtype.type(1), axis)
    await array.put_along_axis(x, o[:1] if axis % len(shape) else o, host.dtype.type(1), axis)
    same(await fetched(device, x), expected)


def key_of(draw: Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A key of anything: numbers, slices, None, the ellipsis, indices and masks."""
    parts: list[Any] = []
    common = draw.choice([(), (2,), (3,), (2, 3), (1,), (0,)])
    axis = 0
    while axis < len(shape):
        n = shape[axis]
        kind = draw.choice(
            ["number", "slice", "indices", "indices", "none", "mask", "host", "stop"]
        )
        if kind == "none":
            parts.append(None)
            continue
        if kind == "stop":
            break
        if kind == "number":
            parts.append(draw.randrange(-n, n))
        elif kind == "slice":
            parts.append(slice(draw.choice([None, 0, 1, -1]), None, draw.choice([1, 2, -1])))
        elif kind == "mask" and (common in ((), (1,)) or axis):
            wide = draw.randint(1, min(2, len(shape) - axis))
            mask = np.zeros(shape[axis : axis + wide], bool)
            mask.reshape(-1)[draw.randrange(mask.size)] = True  # one, which broadcasts
            parts.append(mask)
            axis += wide - 1
        else:
            sizes = tuple(draw.choice([1, size]) for size in common)
            index = indices_of(draw, n, sizes)
            parts.append(index.tolist() if kind == "host" and index.size else index)
        axis += 1
    if draw.random() < 0.3:
        parts.insert(draw.randint(0, len(parts)), ...)
    return tuple(parts)


async def on_device(device: Device, draw: Random, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the same key with most of its arrays on the device."""
    return tuple(
        [
            await put(device, each, draw.choice(LAYOUTS))
            if isinstance(each, np.ndarray) and draw.random() < 0.8
            else each
            for each in key
        ]
    )


@pytest.mark.slow
@settings(max_examples=100)
@given(shape=FILLED, dtype=st.sampled_from(NUMBERS), seed=SEEDS)
@on_shared
async def test_any_key(device: Device, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    draw = Random(seed)
    host = sample(seed, shape, dtype)
    key = key_of(draw, shape)
    x = await put(device, host, draw.choice(LAYOUTS))
    try:
        expected = host[key]
    except IndexError:  # the ellipsis has put an index to another axis
        with pytest.raises(IndexError):
            await device.array.getitem(x, key, "raise")
        return
    there = await on_device(device, draw, key)
    got = await device.array.getitem(x, there)
    same(await fetched(device, got), expected)
    same(await fetched(device, await device.array.getitem(x, there, "raise")), expected)
    # Writes: if a place occurs several times, the last value counts.
    values = sample(seed + 1, expected.shape[draw.randint(0, expected.ndim) :], dtype)
    value: Any = await put(device, values, draw.choice(LAYOUTS))
    if draw.random() < 0.3:
        values = np.ones((), host.dtype)
        value = True if dtype == "bool" else 1
    changed = host.copy()
    changed[key] = values
    y = await put(device, host, draw.choice(LAYOUTS))
    assert await device.array.setitem(y, there, value, deterministic=True) is y
    same(await fetched(device, y), changed)
    if dtype not in ("bfloat16", "float16"):
        added = host.copy()
        np.add.at(added, key, np.broadcast_to(values, expected.shape).copy())
        z = await put(device, host, draw.choice(LAYOUTS))
        for exactly in (False, True):
            await device.array.setitem(z, ..., x)
            assert await device.array.add_at(z, there, value, deterministic=exactly) is z
            same(await fetched(device, z), added)


@pytest.mark.slow
@settings(max_examples=40)
@given(shape=FILLED, dtype=st.sampled_from(NUMBERS), seed=SEEDS)
@on_shared
async def test_masks(device: Device, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    draw = Random(seed)
    host = sample(seed, shape, dtype)
    x = await put(device, host, draw.choice(LAYOUTS))
    array = device.array
    same(await fetched(device, await array.nonzero(x)), list(np.nonzero(host)))
    same(await fetched(device, await array.flatnonzero(x)), np.flatnonzero(host))
    same(await fetched(device, await array.argwhere(x)), np.argwhere(host))
    mask = np.random.default_rng(seed).random(shape[: draw.randint(1, len(shape))]) < 0.5
    m = await put(device, mask, draw.choice(LAYOUTS))
    same(await fetched(device, await array.getitem(x, m)), host[mask])
    same(await fetched(device, await array.getitem(x, ~m)), host[~mask])
    changed = host.copy()
    changed[mask] = values = sample(seed + 2, host[mask].shape, dtype)
    y = await put(device, host)
    await array.setitem(y, m, await put(device, values))
    same(await fetched(device, y), changed)
    row = sample(seed + 3, shape[mask.ndim :], dtype)
    changed[mask] = row
    async with device.batch() as batch:
        batch.array.setitem(y, m, await put(device, row))
    same(await fetched(device, y), changed)
    axis = draw.choice([None, *range(len(shape))])
    n = host.size if axis is None else shape[axis]
    some = np.random.default_rng(seed).random(draw.randint(0, n)) < 0.5
    s = await put(device, some)
    same(await fetched(device, await array.compress(s, x, axis)), np.compress(some, host, axis))
    wide = np.random.default_rng(seed).random(shape) < 0.5
    w = await put(device, wide)
    same(await fetched(device, await array.extract(w, x)), np.extract(wide, host))


@pytest.mark.parametrize("dtype", INTEGERS)
@on_shared
async def test_narrow_indices_of_long_axes(device: Device, dtype: str) -> None:
    host = np.arange(1000.0)
    index = np.array([0, 100] if dtype.startswith("u") else [0, 100, -1, -100], dtype)
    x, i = await device.put(host), await device.put(index)
    for mode in ("raise", "wrap"):
        same(await device.get(await device.array.take(x, i, mode=mode)), host[index])
    expected = host[np.maximum(index, 0)]
    same(await device.get(await device.array.take(x, i, mode="clip")), expected)


@on_shared
async def test_truth_as_a_key(device: Device) -> None:
    host = np.arange(6.0).reshape(2, 3)
    x = await device.put(host)
    index = np.array([1, 0])
    i, yes, no = await device.put(index), await device.put(np.True_), await device.put(np.False_)
    get: Any = device.array.getitem
    for key, there in (
        (True, True),
        (True, yes),
        (False, no),
        ((0, True), (0, yes)),
        ((slice(None), False), (slice(None), no)),
        ((index, True), (i, yes)),
        ((True, slice(None), index), (yes, slice(None), i)),
    ):
        expected = host[key]
        same(await device.get(await get(x, key)), expected)
        same(await device.get(await get(x, there)), expected)
    same(await device.get(await get(x[0, 0], no)), host[0, 0][False])


@on_shared
async def test_batches_and_recordings(device: Device) -> None:
    table, index = np.arange(12.0).reshape(4, 3), np.array([[3, 0], [-1, 9]], np.int32)
    t, i = await device.put(table), await device.put(index)
    async with device.batch() as batch:
        rows = batch.array.take(t, i, 0)
        some = batch.array.getitem(t, (i, [1]), "clip")
        sums = batch.array.add_at(batch.zeros((4, 3)), i, rows)
    expected = np.take(table, index, 0, mode="wrap")
    same(await device.get(rows), expected)
    same(await device.get(some), table[np.clip(index, 0, 3), [1]])
    added = np.zeros((4, 3))
    np.add.at(added, index % 4, expected)
    same(await device.get(sums), added)
    async with device.record() as recording:
        out = recording.array.take(t, i, 0)
    await device.put(table * 2, out=t)
    await recording.replay()
    same(await device.get(out), expected * 2)
    async with device.batch() as batch:
        call: Any
        for call in (
            lambda: batch.array.nonzero(t),
            lambda: batch.array.getitem(t, t > 1),
            lambda: batch.array.take(t, i, 0, mode="raise"),
        ):
            with pytest.raises(Unsupported, match="waits for the device's answer"):
                call()


@on_shared
async def test_indexing_refuses_invalid_arguments(device: Device) -> None:
    array: Any = device.array
    x = await device.put(np.arange(6.0).reshape(2, 3))
    i = await device.put(np.array([0, 7, -1]))
    floats = await device.put(np.ones(3))
    mask = await device.put(np.ones(3, bool))
    call: Any
    for call, error, text in (
        (
            lambda: array.take(x, i, 1, mode="raise"),
            IndexError,
            "index 7 is out of bounds for axis 1 with size 3",
        ),
        (
            lambda: array.take(x, [0, -4], 1),
            IndexError,
            "index -4 is out of bounds for axis 1 with size 3",
        ),
        (lambda: array.take(x, 3, 1), IndexError, "index 3 is out of bounds for axis 1"),
        (
            lambda: array.take(x[:0], i, 0),
            IndexError,
            "cannot do a non-empty take from an empty axes",
        ),
        (lambda: array.take(x, i, 2), np.exceptions.AxisError, "axis 2 is out of bounds"),
        (lambda: array.take(x, floats), TypeError, "indices must be whole numbers, not float64"),
        (
            lambda: array.take(x, i, mode="drop"),
            ValueError,
            "mode must be one of 'clip', 'raise', or 'wrap', not 'drop'",
        ),
        (
            lambda: array.take(x, i, 0, x),
            ValueError,
            r"out must have shape \(3, 3\), as take gives, not \(2, 3\)",
        ),
        (lambda: array.take_along_axis(x, i, 0), ValueError, "same number of dimensions"),
        (lambda: array.take_along_axis(x, floats, None), IndexError, "must be of integer"),
        (
            lambda: array.getitem(x, (0, 0, 0)),
            IndexError,
            "too many indices for array: there must be at most 2, not 3",
        ),
        (lambda: array.getitem(x, (..., ...)), IndexError, "single ellipsis"),
        (lambda: array.getitem(x, floats), IndexError, "arrays used as indices must be of integer"),
        (lambda: array.getitem(x, "a"), IndexError, "only integers, slices"),
        (
            lambda: array.getitem(x, mask),
            IndexError,
            "boolean index did not match indexed array along axis 0; size of axis is 2 but",
        ),
        (
            lambda: array.getitem(x, ([0, 1], [0, 1, 2])),
            IndexError,
            "could not be broadcast together with shapes",
        ),
        (
            lambda: array.getitem(x, (slice(None), i), "raise"),
            IndexError,
            "index 7 is out of bounds for axis 1",
        ),
        (
            lambda: array.getitem(x, ([5], 0)),
            IndexError,
            "index 5 is out of bounds for axis 0 with size 2",
        ),
        (lambda: array.getitem(x, (0, i, 5)), IndexError, "too many indices"),
        (
            lambda: array.setitem(x, i, floats[:2]),
            ValueError,
            "shape mismatch: value array of shape",
        ),
        (
            lambda: array.setitem(i, 0, 1.5),
            TypeError,
            r"value must be of the kind of int64, not 1\.5; cast it first",
        ),
        (lambda: array.setitem(i, 0, floats[0]), TypeError, "according to the rule 'same_kind'"),
        (lambda: array.setitem(x, 0, [1, 2, 3]), TypeError, "put on the device first"),
        (lambda: array.nonzero(x[0, 0]), ValueError, "Calling nonzero on 0d arrays"),
        (
            lambda: array.compress(mask, x, 0),
            IndexError,
            "a condition of 3 elements for an axis of 2",
        ),
        (lambda: array.extract(mask, x), ValueError, "a condition of shape"),
        (lambda: array.take([1], i), TypeError, "a must be a GpuRef"),
        (lambda: array.take(x, np.zeros(2**14), 0), TypeError, "whole numbers"),
        (
            lambda: array.take(x, np.zeros(2**14, int), 0),
            ValueError,
            "too large to go along with a call",
        ),
    ):
        with pytest.raises(error, match=text):
            await call()
    deep = await device.zeros((1,) * 9)
    zero = await device.zeros(1, "int64")
    with pytest.raises(Unsupported, match=f"more than {MOST_INDICES} arrays"):
        await array.getitem(deep, (zero,) * 9)
    for narrow in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"):
        ones = await device.zeros(1, narrow)
        with pytest.raises(Unsupported, match=f"sums of {narrow} at indices"):
            await array.add_at(ones, zero, ones)
    sealed = await device.seal(await device.put(np.zeros(3)))
    with pytest.raises(GpuRefSealed):
        await array.setitem(sealed, i, 1)


async def test_a_deterministic_device_writes_in_order() -> None:
    async with opened(deterministic=True, isolation="thread") as device:
        x = await device.zeros(2)
        index = await device.put(np.arange(100) % 2)
        values = np.random.default_rng(0).random(100)
        v = await device.put(values)
        await device.array.setitem(x, index, v)
        same(await device.get(x), values[-2:])
        await device.array.add_at(x, index, v)
        expected = values[-2:].copy()
        np.add.at(expected, np.arange(100) % 2, values)
        same(await device.get(x), expected)
