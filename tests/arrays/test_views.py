"""Views of buffers, held against NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atomr_accel import Device, GpuRefSealed, GpuRefStale
from atomr_accel.arrays._ref import GpuRef
from atomr_accel.lanes import Isolation
from atomr_accel.memory import MemoryMap
from atomr_accel.memory.map import Slab
from atomr_accel.ops import overlap, require_no_alias, same_place
from atomr_accel.testing import poison

from ..array_samples import Array
from ..harness import on_shared, opened, same_bits

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
    """A ref of that shape, with memory that is not mapped."""
    memory = MemoryMap("test:0")
    memory.bump()
    memory.add_slab(Slab(memory.new_slab_id(), 1 << 20, -1, sealed=False))
    block = memory.allocate(array.nbytes)
    assert block is not None
    return memory, GpuRef(block, array.shape, array.dtype, array.nbytes)


def viewing(key: Any) -> tuple[Any, ...]:
    """A key that gives a view of one element, too, where NumPy would give the element."""
    given = key if isinstance(key, tuple) else (key,)
    return given if any(index is ... for index in given) else (*given, ...)


def misaligned(view: Array, begin: int) -> bool:
    """Return whether an element has an address that is not a multiple of its size."""
    each = zip(view.shape, view.strides, strict=True)
    apart = any(stride % view.itemsize for extent, stride in each if extent > 1)
    return apart or bool((view.__array_interface__["data"][0] - begin) % view.itemsize)


View = tuple[str, Any]
"""A view of anything: its name, and the function that takes it of an array and of a ref."""


@st.composite
def next_view(draw: st.DrawFn, array: Array) -> View:
    """Draw an operation that is possible on an array like this one."""
    shape, ndim = array.shape, array.ndim
    kinds = ["index", "T", "transpose", "broadcast_to", "squeeze", "reshape", "view"]
    if ndim:
        kinds += ["swapaxes", "moveaxis"]
    if ndim > 1:
        kinds += ["mT", "diagonal", "diagonal"]
    kind = draw(st.sampled_from(kinds))
    axis = st.integers(-ndim, ndim - 1)
    if kind == "index":
        key = draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True, max_dims=5))
        key = viewing(key)
        return f"[{key}]", lambda x: x[key]
    if kind in ("T", "mT"):
        return kind, lambda x: getattr(x, kind)
    if kind == "transpose":
        order = tuple(draw(st.permutations(range(ndim))))
        return f"transpose{order}", lambda x: x.transpose(*order)
    if kind == "swapaxes":
        pair = draw(axis), draw(axis)
        return f"swapaxes{pair}", lambda x: x.swapaxes(*pair)
    if kind == "moveaxis":
        one, other = draw(axis), draw(axis)
        return (
            f"moveaxis({one}, {other})",
            lambda x: (
                np.moveaxis(x, one, other) if isinstance(x, np.ndarray) else x.moveaxis(one, other)
            ),
        )
    if kind == "broadcast_to":
        wide = tuple(draw(st.integers(1, 3)) if extent == 1 else extent for extent in shape)
        wide = (*draw(st.lists(st.integers(0, 2), max_size=1)), *wide)
        return (
            f"broadcast_to{wide}",
            lambda x: (
                np.broadcast_to(x, wide) if isinstance(x, np.ndarray) else x.broadcast_to(wide)
            ),
        )
    if kind == "squeeze":
        return kind, lambda x: x.squeeze()
    if kind == "reshape":
        flat: Any = [tuple(draw(st.permutations(shape))), (-1,)]
        flat += [(*shape[:at], -1, *shape[at + 2 :]) for at in range(ndim - 1)]
        flat += [(*shape[:at], each, -1, *shape[at + 1 :]) for at in range(ndim) for each in (1, 2)]
        new = draw(st.sampled_from(flat))
        return (
            f"reshape{new}",
            lambda x: x.reshape(new, copy=False) if isinstance(x, np.ndarray) else x.reshape(new),
        )
    if kind == "view":
        dtype = draw(st.sampled_from(["u1", "i2", "f4", "c8"]))
        return f"view({dtype})", lambda x: x.view(dtype)
    numbers = draw(st.integers(-3, 3)), draw(axis), draw(axis)
    return f"diagonal{numbers}", lambda x: x.diagonal(*numbers)


@given(shapes, st.data())
def test_chains_of_views_are_where_numpy_has_them(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    array = np.zeros(shape, np.float32)
    _, whole = buffer_like(array)
    begin, view, ref = array.__array_interface__["data"][0], array, whole
    for _ in range(5):
        called, of = data.draw(next_view(view))
        try:
            view = of(view)
        except (ValueError, IndexError):
            with pytest.raises((ValueError, IndexError)):
                of(ref)
            break
        if called.startswith("view") and misaligned(view, begin):
            # A GPU reads no element that begins elsewhere than at a multiple of its size.
            with pytest.raises(ValueError, match="copy it first"):
                of(ref)
            break
        ref = of(ref)
        assert (ref.shape, ref.dtype, ref.nbytes) == (view.shape, view.dtype, view.nbytes), called
        assert ref.contiguous == view.flags.c_contiguous
        assert not view.size or ref.block.offset == view.__array_interface__["data"][0] - begin
        for extent, has, expected in zip(view.shape, ref.strides, view.strides, strict=True):
            assert extent == 1 or not view.size or has == expected
        if ref.contiguous and ref.size:
            assert ref.strides == np.empty(ref.shape, ref.dtype).strides


@given(indexed(), indexed(), st.booleans())
def test_views_that_share_elements_overlap_and_no_others(
    one: tuple[Array, Any], other: tuple[Array, Any], turned: bool
) -> None:
    array = np.arange(4 * 4 * 4, dtype=np.int32).reshape(4, 4, 4)
    _, ref = buffer_like(array)
    try:
        first, second = array[viewing(one[1])], array[viewing(other[1])]
    except IndexError:
        return
    view, view2 = ref[one[1]], ref[other[1]]
    if turned:
        second, view2 = second.T, view2.T
    expected = np.shares_memory(first, second)
    assert overlap(view, view2) == expected == overlap(view2, view)


def test_halves_of_a_comb_are_apart() -> None:
    _, ref = buffer_like(np.zeros((8, 8)))
    assert not overlap(ref[::2], ref[1::2])
    assert not overlap(ref[:, :4], ref[:, 4:])
    assert overlap(ref[:, :5], ref[:, 4:])
    assert overlap(ref[::2], ref[::3])
    assert not overlap(ref[::2, ::2], ref[::2, 1::2])
    assert same_place(ref.T, ref.T)
    assert not same_place(ref.T, ref)
    # The bytes of elements, whatever they are called.
    assert not overlap(ref[:, 0].view("int64"), ref[:, 1])
    assert overlap(ref.view("uint8")[:, 4:8], ref[:, 0])
    require_no_alias("it", [("a", ref[::2]), ("b", ref[1::2])], [])
    with pytest.raises(ValueError, match="b shares memory with a, which it does not take"):
        require_no_alias("it", [("a", ref[::2]), ("b", ref[2])], [])
    with pytest.raises(ValueError, match="unless y is all of x"):
        require_no_alias("it", [("y", ref.T)], [("x", ref)], in_place=[("y", "x")])
    require_no_alias("it", [("y", ref.T)], [("x", ref.T)], in_place=[("y", "x")])


def test_costly_overlap_checks_assume_an_overlap() -> None:
    # Bounded subset sum: NumPy's own worst case, with large coprime strides.
    memory, _ = buffer_like(np.zeros(1))
    block = memory.allocate(1 << 19)
    assert block is not None
    ones = tuple(4 * n for n in (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049))
    comb = GpuRef(block, (5,) * 8, np.dtype("i4"), 4 * 5**8, ones)
    assert overlap(comb, comb[::2, ..., ::2])


def test_views_refuse_what_numpy_refuses() -> None:
    _, ref = buffer_like(np.zeros((2, 3, 1), np.float32))
    refused: tuple[tuple[Callable[[], GpuRef], str], ...] = (
        (lambda: ref.transpose(0, 0, 1), "repeated axis"),
        (lambda: ref.transpose(0, 1), "don't match"),
        (lambda: ref.transpose().transpose(()), "don't match"),
        (lambda: ref.transpose(()), "don't match"),
        (lambda: ref.swapaxes(0, 3), "out of bounds"),
        (lambda: ref.moveaxis(0, 7), "out of bounds"),
        (lambda: ref.moveaxis((0, 1), 0), "same number"),
        (
            lambda: ref.squeeze(1),
            r"an axis to squeeze must have size one: axis 1 of shape \(2, 3, 1\)",
        ),
        (lambda: ref.broadcast_to((4, 3, 1)), "could not be broadcast"),
        (lambda: ref.broadcast_to((3, 1)), "could not be broadcast"),
        (lambda: ref[0, 0].mT, "ndim < 2"),
        (lambda: ref[0, 0].diagonal(), "at least two"),
        (lambda: ref.diagonal(0, 1, 1), "cannot be the same"),
        (lambda: ref.T.reshape(6), r"copy it first: \(await device.copy\(ref\)\).reshape"),
        (lambda: ref.T.ravel(), "copy it first"),
        (lambda: ref.reshape(5, -1), r"into shape \(5, -1\)"),
        (lambda: ref[:, ::2, 0].view("f8"), "last axis must be contiguous"),
    )
    for wrong, message in refused:
        with pytest.raises(ValueError, match=message):
            wrong()
    assert ref.reshape(1, 6).shape == (1, 6)
    for shape in ((1.0, 6), ((True, "6"),)):  # the former equals what is known
        with pytest.raises(TypeError):
            ref.reshape(*shape)
    with pytest.raises(AttributeError, match="cannot be set"):
        ref.T.own_strides = None


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


@pytest.mark.parametrize("key", [[0, 1], np.array([0, 1]), np.array([True, False]), True, 1.0, "a"])
def test_advanced_index_is_refused(key: Any) -> None:
    _, ref = buffer_like(np.zeros((2, 2)))
    with pytest.raises(TypeError, match=r"device.array.getitem|object cannot be interpreted"):
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


async def test_a_rebuild_makes_views_stale_unless_they_are_sealed() -> None:
    async with opened() as device:
        plain = (await device.put(np.arange(10)))[3:]
        sealed = (await device.put(np.arange(10), sealed=True))[3:]
        await poison(device)
        with pytest.raises(GpuRefStale):
            await device.get(plain)
        assert same_bits(await device.get(sealed), np.arange(3, 10))


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
