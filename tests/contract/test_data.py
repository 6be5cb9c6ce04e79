"""Moving arrays to the device and back, and making buffers there."""

from __future__ import annotations

import math
import pickle
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef, GpuRefStale, OutOfMemory
from atomr_accel._dtypes import DTYPES
from atomr_accel.lanes import CHUNK

from ..array_samples import LAYOUTS, Array, arrays, dtypes, layouts, random_bits, shapes
from ..harness import on_shared, same_bits, settled

# --- there and back ------------------------------------------------------------------------


@given(array=arrays(), layout=layouts, sealed=st.booleans())
@on_shared
async def test_put_array_comes_back_bit_for_bit(
    device: Device, array: Array, layout: str, sealed: bool
) -> None:
    ref = await device.put(LAYOUTS[layout](array), sealed=sealed)
    assert (ref.shape, ref.dtype, ref.nbytes) == (array.shape, array.dtype, array.nbytes)
    assert (ref.size, ref.ndim, ref.sealed) == (array.size, array.ndim, sealed)
    assert same_bits(await device.get(ref), array)


@given(array=arrays(), layout=layouts.filter(lambda name: name not in ("big-endian", "read-only")))
@on_shared
async def test_get_fills_out_in_any_layout(device: Device, array: Array, layout: str) -> None:
    out = LAYOUTS[layout](np.zeros_like(array))
    ref = await device.put(array)
    assert await device.get(ref, out=out) is out
    assert same_bits(out, array)


@pytest.mark.parametrize(
    "thing",
    [3, 2.5, True, 1j, np.float32(1), [1, 2], [], [[]], (1.0, 2.0), range(4), [[1, 2], [3, 4]]],
    ids=repr,
)
@on_shared
async def test_put_takes_what_asarray_takes(device: Device, thing: Any) -> None:
    assert same_bits(await device.get(await device.put(thing)), np.asarray(thing))


@pytest.mark.parametrize(
    "thing",
    [
        None,
        pytest.param(object(), id="object"),
        pytest.param([object()], id="[object]"),
        "text",
        ["text"],
        b"bytes",
        {"a": 1},
        10**30,
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, [("a", ">f4")]),
        np.zeros(2, np.longdouble),
        np.zeros(2, np.clongdouble),
        np.zeros(2, ml_dtypes.int4),
        np.zeros(2, ml_dtypes.float8_e4m3b11fnuz),
    ],
    ids=repr,
)
@on_shared
async def test_put_refuses_what_a_device_cannot_hold(device: Device, thing: Any) -> None:
    with pytest.raises(TypeError, match="cannot live in device memory"):
        await device.put(thing)


@on_shared
async def test_put_refuses_a_ragged_list_and_a_ref(device: Device) -> None:
    with pytest.raises(ValueError, match="inhomogeneous"):
        await device.put([[1, 2], [3]])
    with pytest.raises(TypeError, match=r"await device\.copy"):
        await device.put(await device.put(1.0))


@on_shared
async def test_the_array_may_change_once_it_was_put(device: Device) -> None:
    array = np.arange(1000)
    ref = await device.put(array)
    array[:] = -1
    assert np.array_equal(await device.get(ref), np.arange(1000))


@on_shared
async def test_a_dtype_is_the_same_object_wherever_it_came_from(device: Device) -> None:
    array = np.eye(3, dtype=np.float32)
    travelled = pickle.loads(pickle.dumps(array))
    assert travelled.dtype is not array.dtype  # or this test proves nothing
    one, other = await device.put(array), await device.put(travelled)
    assert one.dtype is other.dtype
    await device.blas.gemm(one, other)
    longs = await device.put(np.zeros(2, np.longlong))
    assert longs.dtype is np.dtype(np.int64)


@pytest.mark.parametrize("nbytes", [CHUNK - 1, CHUNK, CHUNK + 1, 4 * CHUNK + 1, 9 * CHUNK + 4097])
@pytest.mark.parametrize("sealed", [False, True])
@on_shared
async def test_large_arrays_travel_in_pieces(device: Device, nbytes: int, sealed: bool) -> None:
    array = random_bits((nbytes,), np.dtype(np.uint8), nbytes)
    ref = await device.put(array, sealed=sealed)
    assert same_bits(await device.get(ref), array)


@on_shared
async def test_many_large_transfers_share_the_staging_memory(device: Device) -> None:
    sources = [random_bits((3 * CHUNK + 5,), np.dtype(np.uint8), seed) for seed in range(6)]
    same = []

    async def there_and_back(source: Array) -> None:
        ref = await device.put(source)
        same.append(same_bits(await device.get(ref), source))

    async with trio.open_nursery() as nursery:
        for source in sources:
            nursery.start_soon(there_and_back, source)
    assert same == [True] * len(sources)
    assert device.core.staging._pool.in_use == 0


@on_shared
async def test_out_must_fit(device: Device) -> None:
    ref = await device.put(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"out must have shape \(2, 3\), not \(3, 2\)"):
        await device.get(ref, out=np.zeros((3, 2), np.float32))
    with pytest.raises(TypeError, match="out must have dtype float32, not float64"):
        await device.get(ref, out=np.zeros((2, 3)))
    with pytest.raises(TypeError, match="out must have dtype float32, not >f4"):
        await device.get(ref, out=np.zeros((2, 3), ">f4"))
    with pytest.raises(TypeError, match=r"must be a numpy.ndarray, not list"):
        await device.get(ref, out=[[0.0] * 3] * 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="read-only"):
        await device.get(ref, out=LAYOUTS["read-only"](np.zeros((2, 3), np.float32)))


@on_shared
async def test_out_may_be_of_a_subclass(device: Device) -> None:
    array = np.arange(6.0).reshape(2, 3)
    ref = await device.put(array)
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(np.zeros((2, 3)))
    assert await device.get(ref, out=matrix) is matrix
    assert np.array_equal(matrix, array)


@pytest.mark.parametrize("thing", [None, 1, np.zeros(2), "ref"], ids=repr)
@on_shared
async def test_get_free_and_seal_take_refs_only(device: Device, thing: Any) -> None:
    for call in (device.get, device.free, device.seal):
        with pytest.raises(TypeError, match=f"must be a GpuRef, not {type(thing).__name__}"):
            await call(thing)


# --- making buffers ------------------------------------------------------------------------


@given(shape=shapes, dtype=dtypes)
@on_shared
async def test_zeros_are_zeros_even_in_used_memory(
    device: Device, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> None:
    zeros = np.zeros(shape, dtype)
    await device.free(await device.put(random_bits(shape, dtype, 1)))
    ref = await device.zeros(shape, dtype)
    assert same_bits(await device.get(ref), zeros)


@given(shape=shapes, dtype=dtypes, seed=st.integers(0, 99))
@on_shared
async def test_full_repeats_any_element(
    device: Device, shape: tuple[int, ...], dtype: np.dtype[Any], seed: int
) -> None:
    value = random_bits((), dtype, seed)
    ref = await device.full(shape, value.reshape(-1)[0], dtype)
    assert same_bits(await device.get(ref), np.full(shape, value, dtype))


@given(shape=shapes, dtype=dtypes)
@on_shared
async def test_empty_has_what_zeros_has_but_content(
    device: Device, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> None:
    ref = await device.empty(shape, dtype)
    assert (ref.shape, ref.dtype) == (shape, dtype)
    got = await device.get(ref)
    assert (got.shape, got.dtype) == (shape, dtype)


@pytest.mark.parametrize("value", [1, True, 2.5, 1j, np.float16(3)], ids=repr)
@on_shared
async def test_full_takes_its_dtype_from_the_value(device: Device, value: Any) -> None:
    ref = await device.full(3, value)
    assert same_bits(await device.get(ref), np.full(3, value))


@pytest.mark.parametrize("name", DTYPES)
@on_shared
async def test_dtypes_go_by_name_too(device: Device, name: str) -> None:
    assert (await device.empty(2, name)).dtype is DTYPES[name]


@pytest.mark.parametrize("shape", [5, np.int64(5), (5,), [5], np.array([2, 3])], ids=repr)
@on_shared
async def test_shapes_are_what_numpy_takes(device: Device, shape: Any) -> None:
    assert (await device.empty(shape)).shape == np.empty(shape).shape


@on_shared
async def test_buffers_that_cannot_be(device: Device) -> None:
    with pytest.raises(ValueError, match="negative dimensions"):
        await device.empty((2, -1))
    with pytest.raises(ValueError, match=r"must be a scalar, not of shape \(2,\)"):
        await device.full(2, [1, 2])  # type: ignore[arg-type]
    for shape in (2.5, (2, 2.5), "ab", None, (2, None)):
        with pytest.raises(TypeError):
            await device.empty(shape)  # type: ignore[arg-type]
    for dtype in (object, "O", "U3", "M8[s]", np.longdouble, "no such dtype"):
        with pytest.raises(TypeError):
            await device.zeros(2, dtype)
    with pytest.raises(TypeError, match="cannot live in device memory"):
        await device.full(2, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot live in device memory"):
        await device.full(2, None)  # type: ignore[arg-type]
    for nothing in (None, "text", object(), [1, None]):
        kind = type(nothing).__name__
        with pytest.raises(
            TypeError, match=f"array must be an array of numbers.*not {kind}: dtype"
        ):
            await device.put(nothing)


@pytest.mark.parametrize("shape", [True, np.True_, (2, False), 2.0, (2, 3.0), "3", None])
@on_shared
async def test_a_shape_is_made_of_whole_numbers(device: Device, shape: Any) -> None:
    with pytest.raises(TypeError):
        np.empty(shape)
    with pytest.raises(TypeError, match="a shape is a whole number or a sequence"):
        await device.empty(shape)
    async with device.batch() as batch, device.record() as recording:
        for collector in (batch, recording):
            with pytest.raises(TypeError, match="a shape is a whole number or a sequence"):
                collector.empty(shape)


@settings(max_examples=40)
@given(shape=st.lists(st.integers(0, 2**66), min_size=1, max_size=4))
@example(shape=[2**32, 2**32])
@example(shape=[2**63, 2])
@example(shape=[2**31, 2**31, 4])
@example(shape=[0, 2**40])
@on_shared
async def test_sizes_are_counted_exactly(device: Device, shape: list[int]) -> None:
    nbytes = 2 * math.prod(shape)
    error: Any = ValueError if max(shape) >= 2**63 else OutOfMemory
    with pytest.raises(error) if nbytes > 2**44 or error is ValueError else nullcontext():
        if 2**24 < nbytes <= 2**44:
            return  # as much as some device might have
        ref = await device.empty(shape, np.int16)  # type: ignore[arg-type]
        assert (ref.shape, ref.nbytes, ref.size) == (tuple(shape), nbytes, nbytes // 2)
    async with device.batch() as batch, device.record() as recording:
        for collector in (batch, recording):
            with pytest.raises(error) if nbytes > 2**44 or error is ValueError else nullcontext():
                made = collector.empty(shape, np.int16)  # type: ignore[arg-type]
                assert (made.shape, made.nbytes) == (tuple(shape), nbytes)


NUMBERS: Any = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-300, 300),
    st.floats(),
    st.floats(-200, 200),
    st.booleans(),
    st.complex_numbers(),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats(width=32).map(np.float32),
)


@pytest.mark.slow
@settings(max_examples=200)
@given(value=NUMBERS, dtype=dtypes)
@example(value=300, dtype=DTYPES["int8"])
@example(value=-1, dtype=DTYPES["uint16"])
@example(value=float("nan"), dtype=DTYPES["int32"])
@example(value=1.5, dtype=DTYPES["uint8"])
@example(value=10**30, dtype=DTYPES["bfloat16"])
@on_shared
async def test_fill_and_full_take_a_value_as_numpys_fill_does(
    device: Device, value: Any, dtype: np.dtype[Any]
) -> None:
    expected = np.zeros(2, dtype)
    error: type[Exception] | None = None
    if isinstance(value, complex) and dtype.kind != "c":
        error = TypeError  # where NumPy would drop a part, or has an error of its own
    else:
        try:
            with np.errstate(all="ignore"):
                plain = value.item() if isinstance(value, np.generic) else value
                expected.fill(plain if dtype.isbuiltin == 1 else float(value))
        except (OverflowError, ValueError) as refusal:
            error = type(refusal)
    ref = await device.zeros(2, dtype)
    for call in (device.fill(ref, value), device.full(2, value, dtype)):
        if error is not None:
            with pytest.raises(error):
                await call
        else:
            got = await device.get(await call)
            assert got.tobytes() == expected.tobytes() or np.isnan(got.astype(complex)).all()


@pytest.mark.parametrize("value", ["1", b"1", None, object, np.datetime64(3, "s")], ids=repr)
@on_shared
async def test_a_value_is_a_number(device: Device, value: Any) -> None:
    ref = await device.zeros(2)
    with pytest.raises(TypeError, match="must be a number"):
        await device.fill(ref, value)
    with pytest.raises(TypeError, match="must be a number"):
        await device.full(2, value, np.float32)


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=30), seed=st.integers(0, 99))
@example(sizes=[0, 0, 0, 1, 0], seed=0)
@on_shared
async def test_buffers_never_overlap(device: Device, sizes: list[int], seed: int) -> None:
    arrays = [random_bits((n,), np.dtype(np.uint8), seed + i) for i, n in enumerate(sizes)]
    refs: list[GpuRef] = []
    async with trio.open_nursery() as nursery:

        async def put(array: Array) -> None:
            refs.append(await device.put(array))

        for array in arrays:
            nursery.start_soon(put, array)
    contents = sorted([(await device.get(ref)).tobytes() for ref in refs])
    assert contents == sorted(array.tobytes() for array in arrays)


# --- refs ----------------------------------------------------------------------------------


@on_shared
async def test_a_ref_tells_what_it_is_and_is_no_array(device: Device) -> None:
    ref = await device.put(np.zeros((2, 3), np.float32))
    scalar = await device.put(1.0)
    assert {ref: "value"}[ref] == "value"
    assert len({ref, scalar}) == 2
    assert (len(ref), ref.ndim, ref.size) == (2, 2, 6)
    assert (ref.device, ref.generation) == (device.name, device.generation)
    assert not ref.is_stale
    assert repr(ref) == f"<GpuRef float32[2, 3] on {device.name}, generation {ref.generation}>"
    with pytest.raises(TypeError, match=r"len\(\) of a 0-d GpuRef"):
        len(scalar)
    uses: list[Callable[[Any], object]] = [np.asarray, list, bool]
    for use in uses:
        for any_ref in (ref, scalar, await device.empty(0)):
            with pytest.raises(TypeError, match=r"await device\.get\(ref\)"):
                use(any_ref)


@on_shared
async def test_a_freed_ref_is_refused_everywhere(device: Device) -> None:
    ref = await device.put(np.eye(2, dtype=np.float32))
    good = await device.put(np.eye(2, dtype=np.float32))
    await device.free(ref)
    assert ref.is_stale
    assert "freed" in repr(ref)
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: device.get(ref),
        lambda: device.free(ref),
        lambda: device.seal(ref),
        lambda: device.blas.gemm(ref, good),
        lambda: device.blas.gemm(good, ref),
        lambda: device.blas.gemm(good, good, out=ref),
    ]
    for use in uses:
        with pytest.raises(GpuRefStale, match="was freed"):
            await use()


@on_shared
async def test_a_dropped_ref_frees_itself(device: Device) -> None:
    kept = device.statistics().memory.used  # workspaces of libraries that other tests have used
    ref = await device.put(np.zeros(1000))
    before = device.statistics().memory
    assert before.used >= kept + ref.nbytes
    assert before.used + before.free == before.capacity
    del ref
    await settled(device)  # ``put`` returns while a small array is still on its way
    assert device.statistics().memory.used == kept
