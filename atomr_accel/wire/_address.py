"""The device's address space, which means the same in every process, and shared files.

An address is ``slab << SLAB_SHIFT | offset``. Only a host converts it to a pointer, with the base
at which it has mapped the slab.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import tempfile
from typing import Any, Final

import numpy as np

from .._errors import OutOfMemory

SLAB_SHIFT: Final = 40
OFFSET_MASK: Final = (1 << SLAB_SHIFT) - 1

_EXHAUSTED: Final = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN})

_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10  # on Linux and macOS; the standard library does not name it

_HAS_SEALS: Final = hasattr(fcntl, "F_ADD_SEALS")
_F_SEAL_FUTURE_WRITE: Final = 0x10  # which the standard library does not name everywhere


def shared_fd(nbytes: int, name: str) -> int:
    """Return the descriptor of an anonymous file of ``nbytes``, which lives until it is closed.

    A process with the descriptor cannot change the file's size. Touching a mapping beyond the end
    of a file would kill the process.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:  # no memfd outside Linux: an unlinked file does the same, less quickly
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, nbytes)
        if _HAS_SEALS:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_read_only(fd: int) -> None:
    """Refuse writes to a file of ``shared_fd`` from now on, except through present mappings."""
    if _HAS_SEALS:
        wanted = _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        present = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if present & wanted != wanted:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, wanted)


def arrived(fd: int, what: str, nbytes: int) -> int:
    """Return a descriptor that should have come with a message; -1 means that it did not.

    Raises:
        OutOfMemory: it did not arrive, because the system drops descriptors without room for them.
    """
    if fd < 0:
        raise OutOfMemory(
            f"the descriptor of {what} did not arrive, because this process has too many open "
            "files (RLIMIT_NOFILE)",
            requested=nbytes,
        )
    return fd


def map_file(fd: int, nbytes: int, *, writable: bool = True) -> mmap.mmap:
    """Map a file of ``shared_fd``, made by this process or another one.

    All shared memory is mapped by this function.

    Raises:
        OutOfMemory: no address space, no descriptor left, or the file's did not arrive.
        ValueError: the file is smaller than ``nbytes``, or another process could truncate it.
    """
    arrived(fd, "shared memory", nbytes)  # mmap would take -1 for anonymous memory
    present = os.fstat(fd).st_size
    if present < nbytes:
        raise ValueError(f"the descriptor has {present} bytes, not the {nbytes} it should have")
    if _HAS_SEALS and not _seals_of(fd) & fcntl.F_SEAL_SHRINK:
        raise ValueError(
            "the descriptor is of a file that can be truncated, which would end whoever has it "
            "mapped; seal its size with fcntl.F_SEAL_SHRINK"
        )
    try:
        return mmap.mmap(fd, nbytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    except OSError as error:
        if error.errno in _EXHAUSTED:
            raise OutOfMemory(
                f"{nbytes} bytes of shared memory cannot be mapped: {error}", requested=nbytes
            ) from error
        raise


def unmap_file(start: int, nbytes: int) -> None:
    """Release the pages of a mapping, but keep its addresses. Touching them ends the process.

    Args:
        start: where ``map_file`` has mapped a file.
        nbytes: the length of that mapping.
    """
    _map_over(start, nbytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


def remap_file(fd: int, start: int, nbytes: int) -> None:
    """Map a file read-only where ``unmap_file`` has kept addresses for it."""
    arrived(fd, "shared memory", nbytes)
    _map_over(start, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd)


def _map_over(start: int, nbytes: int, protection: int, flags: int, fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    at, size = ctypes.c_void_p(start), ctypes.c_size_t(nbytes)
    libc.mmap.restype = ctypes.c_void_p
    found = libc.mmap(at, size, protection, flags | _MAP_FIXED, fd, ctypes.c_long(0))
    if found != start:
        code = ctypes.get_errno()
        raise OSError(code, f"{nbytes} bytes cannot be mapped at {start:#x}: {os.strerror(code)}")


def _seals_of(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # of a file that can have none
        return 0


class _OwnedMemory:
    """An array interface for NumPy, which keeps the owner alive as long as the array."""

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self._owner = owner


def numpy_at(
    pointer: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    owner: object,
    read_only: bool = False,
    strides: tuple[int, ...] | None = None,
) -> np.ndarray[Any, Any]:
    """Memory of this process as a NumPy array, which keeps ``owner`` alive."""
    if 0 in shape:
        return np.empty(shape, dtype)
    size = dtype.itemsize
    interface = {
        "data": (pointer, read_only),
        "shape": shape,
        "strides": tuple(stride * size for stride in strides or strides_of(shape)),
        # NumPy has no words for some dtypes.
        "typestr": dtype.str if dtype.isbuiltin == 1 else f"|V{size}",
        "version": 3,
    }
    array: np.ndarray[Any, Any] = np.asarray(_OwnedMemory(interface, owner)).view(dtype)
    return array


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a C-contiguous array, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
