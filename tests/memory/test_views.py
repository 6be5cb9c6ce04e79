"""Views of buffers, held against NumPy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atomr_accel import GpuRefSealed, GpuRefStale
from atomr_accel.libraries._arguments import overlap
from atomr_accel.memory import MemoryMap
from atomr_accel.memory._map import Slab
from atomr_accel.memory._ref import GpuRef
from atomr_accel.testing import poison

from ..harness import on_shared, opened, program, same_bits

if TYPE_CHECKING:
    from atomr_accel import Device
    from atomr_accel.lanes import Isolation

    from ..arrays import Array

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[Array, Any]:
    """An array, and a basic index of it: of the leading axes more often than of others."""
    shape = draw(shapes)
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    if draw(st.booleans()):
        return array, draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    whole = draw(st.integers(0, len(shape)))
    key: list[Any] = []
    for extent in shape[:whole]:
        if not extent:
            break
        key.append(draw(st.integers(-extent, extent - 1)))
    key.append(slice(draw(st.integers(-5, 5)), draw(st.integers(-5, 5))))
    return array, tuple(key[: len(shape)])


def buffer_like(array: Array) -> tuple[MemoryMap, GpuRef]:
    """A ref of that shape, with memory that nobody has mapped."""
    memory = MemoryMap("test:0")
    memory.bump()
    memory.add_slab(Slab(memory.new_slab_id(), 1 << 20, -1, sealed=False))
    block = memory.allocate(array.nbytes)
    assert block is not None
    return memory, GpuRef(block, array.shape, array.dtype, array.nbytes)


@given(indexed())
def test_a_view_is_where_numpy_has_it(case: tuple[Array, Any]) -> None:
    array, key = case
    _, ref = buffer_like(array)
    expected = np.asarray(array[key])
    if not expected.flags.c_contiguous:
        with pytest.raises(ValueError, match="is not contiguous"):
            ref[key]
        return
    view = ref[key]
    assert (view.shape, view.dtype, view.nbytes) == (expected.shape, array.dtype, expected.nbytes)
    if expected.size:
        where = (view._block.address - ref._block.address) // array.itemsize
        assert where == expected.ravel()[0]


@given(indexed(), st.data())
def test_views_of_views(case: tuple[Array, Any], data: st.DataObject) -> None:
    array, key = case
    part = np.asarray(array[key])
    if not part.flags.c_contiguous:
        return
    again = data.draw(hnp.basic_indices(part.shape, allow_ellipsis=True))
    expected = np.asarray(part[again])
    if expected.flags.c_contiguous and expected.size:
        _, ref = buffer_like(array)
        view = ref[key][again]
        assert view.shape == expected.shape
        where = (view._block.address - ref._block.address) // array.itemsize
        assert where == expected.ravel()[0]


@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), st.data())
def test_reshape_is_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    array = np.zeros(shape, np.float32)
    wanted: Any = data.draw(
        st.one_of(
            st.permutations(shape).map(tuple),
            st.just((-1,)),
            st.lists(st.integers(-1, 6), max_size=3).map(tuple),
        )
    )
    _, ref = buffer_like(array)
    try:
        expected = array.reshape(wanted)
    except ValueError:
        with pytest.raises(ValueError, match="cannot reshape a buffer of shape"):
            ref.reshape(wanted)
    else:
        assert ref.reshape(wanted).shape == expected.shape
        if wanted:
            assert ref.reshape(*wanted).shape == expected.shape


@given(indexed(), indexed())
def test_overlap_is_numpys(one: tuple[Array, Any], other: tuple[Array, Any]) -> None:
    array = np.arange(4 * 4 * 4, dtype=np.int32).reshape(4, 4, 4)
    _, ref = buffer_like(array)
    parts = []
    for _, key in (one, other):
        try:
            parts.append((array[key], ref[key]))
        except (IndexError, ValueError):
            return
    (first, view), (second, view2) = parts
    if first.size and second.size:
        assert overlap(view, view2) == np.shares_memory(first, second)


@pytest.mark.parametrize("key", [[0, 1], np.array([0, 1]), np.array([True, False]), True, 1.0, "a"])
def test_what_is_no_basic_index_is_refused(key: Any) -> None:
    _, ref = buffer_like(np.zeros((2, 2)))
    with pytest.raises(TypeError, match=r"fetch it first|object cannot be interpreted"):
        ref[key]


def test_seeing_bytes_as_another_dtype() -> None:
    _, ref = buffer_like(np.zeros((2, 6), np.float32))
    assert ref.view(np.uint8).shape == (2, 24)
    assert ref.view(np.float64).shape == (2, 3)
    assert ref.view(np.int32).shape == (2, 6)
    assert ref.view("bfloat16").dtype.name == "bfloat16"
    with pytest.raises(ValueError, match="no whole number of complex128"):
        ref[:, :].view(np.complex128)[0, 0].view(np.float64)[0]
    with pytest.raises(TypeError, match="cannot live in device memory"):
        ref.view(object)


# --- on a device ------------------------------------------------------------------------------


@given(indexed())
@on_shared
async def test_a_part_can_be_put_and_fetched(device: Device, case: tuple[Array, Any]) -> None:
    array, key = case
    if not np.asarray(array[key]).flags.c_contiguous:
        return
    ref = await device.put(array)
    assert same_bits(await device.get(ref[key]), np.asarray(array[key]))
    changed = np.asarray(array[key]) * -1 - 7
    assert await device.put(changed, out=ref[key]) is not ref
    array[key] = changed
    assert same_bits(await device.get(ref), array)
    await device.fill(ref[key], 5)
    array[key] = 5
    assert same_bits(await device.get(ref), array)


@on_shared
async def test_parts_of_one_buffer_are_copied_and_multiplied(device: Device) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    ref = await device.put(array)
    assert (await device.copy(ref[0], ref[2])).shape == (4,)
    assert same_bits(await device.get(ref[2]), array[0])
    with pytest.raises(ValueError, match="shares memory"):
        await device.copy(ref[:2], ref[1:])
    product = await device.blas.gemm(ref[1:], ref[1:].reshape(4, 2))
    whole = await device.get(ref[1:])
    assert np.allclose(await device.get(product), whole @ whole.reshape(4, 2))


@on_shared
async def test_views_keep_the_memory_and_share_its_fate(device: Device) -> None:
    used = device.statistics().memory.used
    ref = await device.put(np.arange(1000))
    view = ref[500:].reshape(2, 250)[1]
    del ref
    assert same_bits(await device.get(view), np.arange(750, 1000))
    assert device.statistics().memory.used > used
    other = view[:10]
    await device.free(view)
    for gone in (view, other):
        assert gone.is_stale
        with pytest.raises(GpuRefStale):
            await device.get(gone)
    assert device.statistics().memory.used == used


@on_shared
async def test_sealing_a_part_seals_the_whole(device: Device) -> None:
    ref = await device.put(np.arange(100))
    part = ref[10:20]
    assert await device.seal(part) is part
    assert ref.sealed
    assert same_bits(await device.get(part), np.arange(10, 20))
    assert same_bits(await device.get(ref[90:]), np.arange(90, 100))
    with pytest.raises(GpuRefSealed):
        await device.fill(ref[:5], 0)
    with pytest.raises(GpuRefSealed):
        await device.put(np.arange(10), out=part)
    plain = await device.unseal(part)
    await device.fill(plain, 3)
    assert same_bits(await device.get(part), np.arange(10, 20))
    with pytest.raises(ValueError, match="not sealed"):
        await device.unseal(plain)


@program
async def test_a_rebuild_makes_views_stale_unless_they_are_sealed() -> None:
    async with opened() as device:
        plain = (await device.put(np.arange(10)))[3:]
        sealed = (await device.put(np.arange(10), sealed=True))[3:]
        await poison(device)
        with pytest.raises(GpuRefStale):
            await device.get(plain)
        assert same_bits(await device.get(sealed), np.arange(3, 10))


@program
async def test_a_kernel_sees_a_part(isolation: Isolation) -> None:
    def double(cells: Any, n: int) -> None:
        cells[:n] *= 2

    source = """extern "C" __global__ void twice(float* cells, int n) {
        if (threadIdx.x < n) cells[threadIdx.x] *= 2;
    }"""
    async with opened(isolation=isolation) as device:
        kernel = await device.nvrtc.compile(source, "twice", cpu=double)
        ref = await device.put(np.ones(10, np.float32))
        await kernel.launch(1, 32, ref[4:7], 3)
        assert list(await device.get(ref)) == [1, 1, 1, 1, 2, 2, 2, 1, 1, 1]
