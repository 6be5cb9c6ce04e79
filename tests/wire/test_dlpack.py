"""Memory that is lent by DLPack."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel._dtypes import DTYPES
from atomr_accel.wire.interop import CPU, CUDA, DeviceArray, _borrow_capsule, borrow, lend

from ..array_samples import LAYOUTS, Array, arrays, shapes
from ..dropping import DROPS, TAKES, failures
from ..forked import in_child
from ..harness import same_bits

VERSIONED: Final = np.lib.NumpyVersion(np.__version__) >= "2.1.0"

dtypes: Final = st.sampled_from([dtype for name, dtype in DTYPES.items() if "float4" not in name])
versions: Final = st.sampled_from([None, (0, 8), (1, 0), (1, 1), (2, 0)])


class Owner:
    """Whatever keeps lent memory alive."""


@given(
    data=st.data(),
    shape=shapes | st.just((1,) * 64) | st.just((2,) * 40),
    dtype=dtypes,
    version=versions,
    device=st.tuples(st.sampled_from([CPU, CUDA]), st.integers(0, 15)),
    read_only=st.booleans(),
)
def test_a_capsule_says_what_was_lent_and_keeps_its_owner(
    data: st.DataObject,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    version: tuple[int, int] | None,
    device: tuple[int, int],
    read_only: bool,
) -> None:
    steps = data.draw(st.none() | st.tuples(*[st.integers(-7, 7)] * len(shape)))
    strides = None if steps is None else tuple(step * dtype.itemsize for step in steps)
    pointer = 1 << 40  # nothing is there: lending does not touch the memory
    owner = Owner()
    alive = weakref.ref(owner)
    capsule = lend(
        pointer,
        shape,
        dtype,
        device,
        owner=owner,
        read_only=read_only,
        max_version=version,
        strides=strides,
    )
    del owner
    found = _borrow_capsule(capsule)
    assert (found.shape, found.dtype) == (shape, dtype)
    assert found.pointer == (0 if 0 in shape else pointer)
    assert (found.device_type, found.device) == device
    told = VERSIONED and version is not None and version >= (1, 0)
    assert ("versioned" in repr(capsule)) == told
    assert found.read_only == (read_only and told)
    assert found.strides == (None if found.contiguous else steps)
    if steps is None or 0 in shape:
        assert found.contiguous
    assert (alive() is not None) == (0 not in shape)
    del capsule, found
    assert alive() is None


class Lent:
    """An array whose memory is lent."""

    def __init__(self, array: Array, strides: tuple[int, ...] | None, *, read_only: bool) -> None:
        self.array = array
        self.strides = strides
        self.read_only = read_only
        self.owners: list[weakref.ref[Owner]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_options: Any) -> Any:
        owner = Owner()
        self.owners.append(weakref.ref(owner))
        return lend(
            self.array.__array_interface__["data"][0],
            self.array.shape,
            self.array.dtype,
            (CPU, 0),
            owner=owner,
            read_only=self.read_only,
            max_version=max_version,
            strides=self.strides,
        )

    def kept(self) -> int:
        """Number of owners that are alive."""
        return sum(owner() is not None for owner in self.owners)


strided: Final = st.sampled_from(["contiguous", "fortran", "transposed", "every other", "reversed"])


def lent(array: Array, layout: str, *, read_only: bool) -> Lent:
    """Lend an array in a layout."""
    part = LAYOUTS[layout](array)
    return Lent(part, part.strides, read_only=read_only)


@given(array=arrays(), layout=strided, read_only=st.booleans())
def test_lent_memory_is_the_array(array: Array, layout: str, read_only: bool) -> None:
    source = lent(array, layout, read_only=read_only)
    if array.dtype.name == "float4_e2m1fn":
        with pytest.raises(BufferError, match="has no float4"):
            source.__dlpack__()
        return
    found = borrow(source).as_numpy()
    assert same_bits(found, array)
    assert found.size == 0 or np.shares_memory(found, source.array)
    if array.dtype.isbuiltin == 1:
        taken = np.from_dlpack(source)
        assert same_bits(taken, array)
        if VERSIONED and array.size:
            assert taken.flags.writeable != read_only
        del taken
    del found
    assert source.kept() == 0


def test_errors_pass_while_lent_arrays_are_dropped() -> None:
    @given(
        array=arrays().filter(lambda array: "float4" not in array.dtype.name),
        layout=strided,
        read_only=st.booleans(),
        drop=st.sampled_from(list(DROPS)),
    )
    def pass_errors(array: Array, layout: str, read_only: bool, drop: str) -> None:
        source = lent(array, layout, read_only=read_only)
        assert failures(source, [drop]) == []
        assert source.owners
        assert source.kept() == 0

    in_child(pass_errors)


def test_errors_pass_while_arrays_of_a_gpu_are_dropped() -> None:
    """NumPy refuses them, so their capsules are dropped unused."""

    @given(shape=shapes, dtype=dtypes, sealed=st.booleans())
    def pass_errors(shape: tuple[int, ...], dtype: np.dtype[Any], sealed: bool) -> None:
        array = DeviceArray(1 << 40, shape, dtype, device=3, sealed=sealed)
        alive = weakref.ref(array)
        assert failures(array, DROPS) == []
        del array
        assert alive() is None

    in_child(pass_errors)


@pytest.mark.parametrize("take", TAKES)
def test_another_thread_drops_what_it_took(take: str) -> None:
    source = lent(np.ones((2, 3)), "transposed", read_only=False)
    taken = [TAKES[take](source)]
    assert source.kept() == 1
    dropping = threading.Thread(target=taken.clear)
    dropping.start()
    dropping.join()
    assert source.kept() == 0
