"""The CPU as a device: memory in shared files, ops on the lane's thread.

It has the same guarantees as a GPU: sealed memory is mapped read-only, memory outlives its process,
and a simulated sticky fault ends the context for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ...._errors import DeviceUnavailable, OutOfMemory
from ....wire import (
    OFFSET_MASK,
    SLAB_SHIFT,
    DeviceInfo,
    Peer,
    StickyFault,
    StreamPlan,
    map_file,
    numpy_at,
    remap_file,
    shared_fd,
    unmap_file,
)
from ....wire.blackbox import CURRENT, SEQ

if TYPE_CHECKING:
    from collections.abc import Hashable

_Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def physical_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@final
class CpuStream:
    """A stream whose work is done when it is queued, so that waiting is never needed."""

    queue: Final = None

    def __init__(self, context: CpuContext) -> None:
        self._context = context

    def mark(self) -> None:
        """Return None, because work is never in flight."""

    def finished(self, token: object) -> bool:
        """Return True. It is never called, because ``mark`` returns no tokens."""
        return token is None

    def wait(self, token: object) -> None:
        """Return at once."""

    def release(self, token: object) -> None:
        """Do nothing."""

    def signal(self) -> int:
        """Raise an error. It is never called, because ``mark`` returns no tokens."""
        raise AssertionError("the CPU has nothing in flight")

    def timestamp(self, event: int) -> None:
        """Note the time."""
        self._context.events[event] = time.perf_counter()

    def follow(self, other: object) -> None:
        """Do nothing, because ops that the other lane has launched are done."""

    def stopwatch(self) -> CpuStopwatch:
        """Return the stopwatch of the stream."""
        return _STOPWATCH

    def close(self) -> None:
        """Do nothing."""


@final
class CpuStopwatch:
    """A stopwatch for work that is executed when it is queued."""

    def start(self) -> int:
        """Return the present time."""
        return time.monotonic_ns()

    def stop(self, begun: int) -> tuple[int, int]:
        """Return the times of begin and end."""
        return begun, time.monotonic_ns()

    def drop(self, begun: int) -> None:
        """Do nothing."""

    def read(self, token: tuple[int, int]) -> tuple[int, int]:
        """Return the times of begin and end, in nanoseconds of ``time.monotonic_ns``."""
        return token


_STOPWATCH: Final = CpuStopwatch()


class CpuContext:
    """The CPU backend's half in the host.

    Attributes:
        backend: the backend's name. Backends with other executors on the CPU set it, too.
    """

    backend: ClassVar[str] = "cpu"

    def __init__(self, index: int, plan: StreamPlan) -> None:
        del plan  # there are no streams to plan
        if index < 0:
            raise DeviceUnavailable(
                f"there is no CPU device {index}: they are counted from 0, as many as are wanted"
            )
        self._slabs: dict[int, _Bytes] = {}
        self._writable: dict[int, tuple[_Bytes, int]] = {}
        self._fds: dict[int, int] = {}
        self._held: dict[int, _Bytes] = {}
        self._fault: StickyFault | None = None
        self.events: dict[int, float] = {}
        self.info: Final = DeviceInfo(
            name=platform.processor() or platform.machine(),
            backend=self.backend,
            index=index,
            total_memory=physical_memory(),
        )

    def open_lane(self, name: str, stream: Hashable) -> CpuStream:
        """Prepare this thread: like a GPU it computes infinities and NaNs without a word."""
        del name, stream
        np.seterr(all="ignore")
        return CpuStream(self)

    def free_memory(self) -> int:
        """Contexts take none."""
        return 0

    def peer(self, index: int) -> Peer:
        """Return full access, because each device can map the files of all others."""
        del index
        return Peer(access=True, atomics=True)

    def elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two timestamps."""
        return (self.events[end] - self.events[start]) * 1e3

    def forget_event(self, event: int) -> None:
        """Forget a timestamp."""
        self.events.pop(event, None)

    def map_pinned(self, slab: int, fd: int, nbytes: int) -> None:
        """Map memory shared with the program."""
        if slab not in self._slabs:
            self._slabs[slab] = _map(fd, nbytes)

    def map_pointer(self, slab: int, pointer: int, nbytes: int) -> None:
        """Give memory of this process, which others own, an address."""
        self._slabs[slab] = numpy_at(pointer, (nbytes,), np.dtype(np.uint8), owner=None)

    def create_managed(self, slab: int, nbytes: int) -> int:
        """Make a shared file, which the device and the program use without moving it."""
        return self.create_slab(slab, nbytes, sealed=False)

    def create_slab(self, slab: int, nbytes: int, *, sealed: bool) -> int:
        """Make a shared file. The system adds pages when they are touched."""
        # The system promises more than it has, and ends who believes it.
        room = physical_memory() - sum(map(len, self._slabs.values()))
        if nbytes > room:
            raise OutOfMemory(
                f"no room for a slab of {nbytes} bytes: {room} are left", requested=nbytes
            )
        try:
            fd = shared_fd(nbytes, f"atomr-slab-{slab}")
            try:
                self.map_slab(slab, fd, nbytes, sealed=sealed)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise OutOfMemory(
                f"no room for a slab of {nbytes} bytes: {error}", requested=nbytes
            ) from error
        return fd

    def map_slab(self, slab: int, fd: int, nbytes: int, *, sealed: bool) -> None:
        """Map a slab, without write permission if it is sealed."""
        held = self._held.get(slab)
        if held is None:
            view = _map(fd, nbytes, writable=not sealed)
        else:  # read-only, as only sealed ones are held
            view = held
            remap_file(fd, _start(view), len(view))
        if sealed:
            self._fds[slab] = os.dup(fd)
        self._slabs[slab] = view
        self._held.pop(slab, None)

    def unmap_slab(self, slab: int) -> None:
        """Forget a slab, if it is here; the mapping ends with the last view."""
        self._slabs.pop(slab, None)
        self._held.pop(slab, None)
        if slab in self._fds:
            os.close(self._fds.pop(slab))

    def hold_slab(self, slab: int) -> None:
        """Unmap a sealed slab, but keep its address, which views of it have."""
        view = self._slabs[slab]
        unmap_file(_start(view), len(view))
        self._held[slab] = view
        del self._slabs[slab]
        os.close(self._fds.pop(slab))

    def unprotect(self, slab: int) -> None:
        """Map a sealed slab a second time, writable."""
        view, count = self._writable.get(slab, (None, 0))
        if view is None:
            view = _map(self._fds[slab], len(self._slabs[slab]))
        self._writable[slab] = (view, count + 1)

    def protect(self, slab: int) -> None:
        """Drop the writable mapping when its last user is done."""
        view, count = self._writable.pop(slab)
        if count > 1:
            self._writable[slab] = (view, count - 1)

    def bytes_at(self, address: int, nbytes: int, *, unsealing: bool = False) -> _Bytes:
        """The bytes of a buffer; read-only if it is sealed, except for ``unsealing``."""
        slab, offset = address >> SLAB_SHIFT, address & OFFSET_MASK
        if unsealing and slab in self._writable:
            return self._writable[slab][0][offset : offset + nbytes]
        return self._slabs[slab][offset : offset + nbytes]

    def host_bytes(self, address: int, nbytes: int) -> _Bytes:
        """Memory shared with the program."""
        return self.bytes_at(address, nbytes)

    def array(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
    ) -> np.ndarray[Any, Any]:
        """A buffer as a NumPy array; C-contiguous unless it has strides, of any sign."""
        if strides is not None:
            reaches = [(extent - 1) * step for extent, step in zip(shape, strides, strict=True)]
            low = sum(reach for reach in reaches if reach < 0)
            high = sum(reach for reach in reaches if reach > 0) + dtype.itemsize
            first = self.bytes_at(address + low, high - low)[-low : dtype.itemsize - low]
            # As plain bytes, because NumPy does not find every dtype by its name in the array
            # interface.
            plain = first.view(np.dtype((np.void, dtype.itemsize)))
            return as_strided(plain, shape, strides).view(dtype)
        nbytes = dtype.itemsize
        for extent in shape:
            nbytes *= extent
        return self.bytes_at(address, nbytes).view(dtype).reshape(shape)

    def make_current(self) -> None:
        """Threads need no preparation here."""

    def pointer(self, address: int) -> int:
        """The pointer that an address is here."""
        return _start(self._slabs[address >> SLAB_SHIFT]) + (address & OFFSET_MASK)

    def take(self, address: int, pointer: int, nbytes: int) -> None:
        """Copy from memory of this process."""
        ctypes.memmove(self.pointer(address), pointer, nbytes)

    def synchronize(self) -> None:
        """Return at once, because work is never in flight."""

    def fail(self, fault: StickyFault) -> None:
        """Simulate a sticky fault of this thread's op: from now on every op reports it."""
        fault.seq = CURRENT.words[SEQ]
        if self._fault is None:
            self._fault = fault

    def check(self) -> None:
        """Raise the fault, if there was one."""
        if self._fault is not None:
            fault = self._fault
            raise StickyFault(
                str(fault), status=fault.status, status_name=fault.status_name, seq=fault.seq
            )

    def close(self) -> None:
        """Unmap everything."""
        self._slabs.clear()
        self._held.clear()
        self._writable.clear()
        for fd in self._fds.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds.clear()


def _start(view: _Bytes) -> int:
    start: int = view.__array_interface__["data"][0]
    return start


def _map(fd: int, nbytes: int, *, writable: bool = True) -> _Bytes:
    return np.frombuffer(map_file(fd, nbytes, writable=writable), dtype=np.uint8)
