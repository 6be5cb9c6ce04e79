"""Shared files: a mapped file exists, has the right size, and keeps it."""

from __future__ import annotations

import ast
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atomr_accel
from atomr_accel import OutOfMemory
from atomr_accel.backends.cpu.host.context import CpuContext
from atomr_accel.lanes import PinnedPool
from atomr_accel.memory import Slab
from atomr_accel.wire import SLAB_SHIFT, StreamPlan, make_read_only, map_file, shared_fd

from ..harness import descriptors

PAGE = 4096


@pytest.fixture
def context() -> Iterator[CpuContext]:
    context = CpuContext(0, StreamPlan())
    yield context
    context.close()


@pytest.mark.slow
def test_memory_is_mapped_in_one_place_only() -> None:
    """The program checks it there; ``mmap`` itself takes -1 for private memory."""
    package = Path(atomr_accel.__file__).parent
    calls = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (ast.unparse(node.func) == "mmap.mmap")
    ]
    # The other one maps nothing to look at: it sees whether there is room for a stack.
    assert sorted(calls) == ["wire/_address.py", "wire/threads.py"]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_descriptor_that_did_not_arrive_maps_nothing(context: CpuContext, sealed: bool) -> None:
    with pytest.raises(OutOfMemory, match="did not arrive"):
        context.map_slab(1, -1, PAGE, sealed=sealed)
    with pytest.raises(OutOfMemory, match="did not arrive"):
        context.map_pinned(1, -1, PAGE)
    fd = shared_fd(PAGE, "test")
    os.pwrite(fd, b"here", 0)
    try:
        context.map_pinned(1, fd, PAGE)  # nor is it taken for mapped
    finally:
        os.close(fd)
    assert bytes(context.bytes_at(1 << SLAB_SHIFT, 4)) == b"here"


def test_unmapping_what_was_not_mapped_is_nothing(context: CpuContext) -> None:
    context.unmap_slab(7)
    os.close(context.create_slab(7, PAGE, sealed=True))
    context.unmap_slab(7)
    context.unmap_slab(7)


def test_views_of_a_slab_that_is_held_are_valid_again(context: CpuContext) -> None:
    fd = context.create_slab(7, PAGE, sealed=True)
    os.pwrite(fd, b"here", 0)
    view = context.bytes_at(7 << SLAB_SHIFT, 4)
    assert bytes(view) == b"here"
    context.hold_slab(7)
    with pytest.raises(KeyError):
        context.bytes_at(7 << SLAB_SHIFT, 4)
    os.pwrite(fd, b"back", 0)
    context.map_slab(7, fd, PAGE, sealed=True)
    assert bytes(view) == b"back"
    assert context.bytes_at(7 << SLAB_SHIFT, 4).ctypes.data == view.ctypes.data
    context.hold_slab(7)
    context.unmap_slab(7)
    context.map_slab(7, fd, PAGE, sealed=True)
    os.close(fd)
    assert bytes(context.bytes_at(7 << SLAB_SHIFT, 4)) == b"back"


@given(size=st.integers(1, 5), wanted=st.integers(1, 5), writable=st.booleans())
def test_only_what_is_there_is_mapped(size: int, wanted: int, writable: bool) -> None:
    fd = shared_fd(size * PAGE, "test")
    try:
        if wanted > size:
            with pytest.raises(ValueError, match=f"has {size * PAGE} bytes, not the"):
                map_file(fd, wanted * PAGE, writable=writable)
            return
        view = np.frombuffer(map_file(fd, wanted * PAGE, writable=writable), np.uint8)
        assert (len(view), view.flags.writeable) == (wanted * PAGE, writable)
        for other in (0, 9 * PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, other)
        assert not view.any()
    finally:
        os.close(fd)


def test_a_file_that_can_shrink_is_not_mapped(tmp_path: Path) -> None:
    loose = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for fd in (loose, plain):
        os.ftruncate(fd, PAGE)
        with pytest.raises(ValueError, match="can be truncated"):
            map_file(fd, PAGE)
        os.close(fd)


def test_read_only_is_for_good_and_leaves_mappings_there_are() -> None:
    fd = shared_fd(PAGE, "test")
    before = map_file(fd, PAGE)
    make_read_only(fd)
    make_read_only(fd)
    before[:4] = b"fill"
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    for each in (fd, again):
        with pytest.raises(PermissionError):
            map_file(each, PAGE)
        with pytest.raises(PermissionError):
            os.pwrite(each, b"x", 0)
        with pytest.raises(PermissionError):
            fcntl.fcntl(each, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert map_file(each, PAGE, writable=False)[:4] == b"fill"
        os.close(each)


def test_a_file_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full)
        with pytest.raises(OSError, match="No space left"):
            shared_fd(PAGE, "test")
        with pytest.raises(OSError, match="No space left"):
            PinnedPool(1 << 20, lambda: 1).try_acquire(PAGE)
    with pytest.raises(OutOfMemory, match=r"cannot be mapped: .*Cannot allocate memory"):
        PinnedPool(1 << 50, lambda: 1).reserve()  # more than there are addresses
    assert descriptors() == before


def test_sealed_slab_has_a_descriptor() -> None:
    with pytest.raises(ValueError, match="and has none"):
        Slab(1, PAGE, -1, sealed=True)
