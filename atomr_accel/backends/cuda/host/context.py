"""One GPU in one host: primary context, slabs, streams and events.

The host uses the primary context, so that CuPy and PyTorch called inside the host share it. Memory
comes from the driver's virtual memory management (``cuMemCreate`` and ``cuMemMap``), whose
allocations are descriptors that outlive the process.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._errors import DeviceUnavailable, OutOfMemory, Unsupported
from ....host.machine import numa_node, pcie_link
from ....wire import OFFSET_MASK, SLAB_SHIFT, DeviceInfo, Peer, StreamPlan, arrived, map_file
from .driver import NOT_READY, check, driver, failure, start_driver
from .stopwatch import CudaStopwatch, DeviceClock

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Hashable, Iterable, Iterator

_PAGE: Final = 4096
"""Granularity of managed memory in bytes."""


def _descriptor() -> Any:
    """The kind of handle that is a file descriptor."""
    return driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _non_blocking() -> Any:
    """Return the flag for streams that do not synchronize with the legacy default stream."""
    return driver.CUstream_flags.CU_STREAM_NON_BLOCKING


def _close_address() -> int:
    """Return the address of the C library's ``close``, whose argument fits a host function's."""
    address = ctypes.cast(ctypes.CDLL(None).close, ctypes.c_void_p).value
    assert address is not None
    return address


Kept = tuple[object, "Callable[[], object]"]
"""An object that is kept, and a function that releases it."""


@final
class CudaStream:
    """A stream and a pool of events to mark places in it.

    Attributes:
        queue: a number that identifies the stream.
        captures: whether work that is queued here goes into graphs. Libraries then work in memory
            of their own, because allocating in a stream adds allocation nodes, which child graphs
            and the bodies of conditional nodes must not have.
        kept: the objects that the graph being captured needs while it exists, and functions that
            release them; see ``keep``.
    """

    def __init__(self, context: CudaContext, handle: Any, *, captures: bool = False) -> None:
        self._context = context
        self.captures: Final = captures
        self.kept: list[Kept] = []
        self.handle = handle
        self.pointer: Final = int(self.handle)
        self.queue: Final = self.pointer
        self._events: list[Any] = []
        # An event that threads may sleep for interrupts the CPU when it happens, wanted or not.
        flags = driver.CUevent_flags
        sleeps = flags.CU_EVENT_BLOCKING_SYNC if context.sleeps else 0
        self._flags: Final = flags.CU_EVENT_DISABLE_TIMING | sleeps
        self._record: Final = driver.cuEventRecord
        self._query: Final = driver.cuEventQuery
        self._following = self._new_event()

    def keep(self, thing: object, give_back: Callable[[], object] = lambda: None) -> None:
        """Keep an object that the graph being captured reads at each launch.

        Args:
            thing: the object, which is referenced until the graph is gone.
            give_back: a function that is called then.
        """
        self.kept.append((thing, give_back))

    def mark(self) -> Any:
        """An event after all work queued so far."""
        event = self._events.pop() if self._events else self._new_event()
        (status,) = self._record(event, self.handle)
        if status:
            raise failure("cuEventRecord", status)
        return event

    def finished(self, token: Any) -> bool:
        """Return True if the event has happened (``cuEventQuery``)."""
        (status,) = self._query(token)
        if not status:
            if self._context.sanitized:  # only waiting for a stream has a sanitizer tell of it
                self.synchronize()
            elif self._context.prints:  # likewise the driver of what kernels have printed
                check("cuEventSynchronize", driver.cuEventSynchronize(token))
            return True
        if status == NOT_READY:
            return False
        raise failure("cuEventQuery", status)

    def wait(self, token: Any) -> None:
        """Sleep until the event has happened (``cuEventSynchronize``, without the GIL)."""
        check("cuEventSynchronize", driver.cuEventSynchronize(token))

    def release(self, token: Any) -> None:
        """Back to the pool."""
        self._events.append(token)

    def signal(self) -> int:
        """A pipe of which the driver closes the other end (``cuLaunchHostFunc``).

        The host function is the C library's ``close`` itself: it needs no GIL, so it can
        neither wait for Python nor hold the stream up.
        """
        reader, writer = os.pipe()
        check(
            "cuLaunchHostFunc",
            driver.cuLaunchHostFunc(self.handle, driver.CUhostFn(_close_address()), writer),
        )
        return reader

    def timestamp(self, event: int) -> None:
        """Record an event that notes the time (``cuEventRecord``)."""
        events = self._context.events
        if event not in events:
            events[event] = check("cuEventCreate", driver.cuEventCreate(0))
        check("cuEventRecord", driver.cuEventRecord(events[event], self.handle))

    def follow(self, other: CudaStream) -> None:
        """Make later work here wait for what ``other`` has queued by now.

        The wait takes the event's record of this moment, so one event serves all calls.
        """
        check("cuEventRecord", driver.cuEventRecord(self._following, other.handle))
        check("cuStreamWaitEvent", driver.cuStreamWaitEvent(self.handle, self._following, 0))

    def stopwatch(self) -> CudaStopwatch:
        """Return the stopwatch of this stream, shared by all its users."""
        return self._context.stopwatch(self.pointer, self.handle)

    def synchronize(self) -> None:
        """Wait for everything on this stream."""
        check("cuStreamSynchronize", driver.cuStreamSynchronize(self.handle))

    def close(self) -> None:
        """Destroy the events, and the stream if no other lane uses it."""
        if self._context.sanitized:  # which may still be looking at what ran there
            self.synchronize()
        for event in (*self._events, self._following):
            check("cuEventDestroy", driver.cuEventDestroy(event))
        if self.captures:
            check("cuStreamDestroy", driver.cuStreamDestroy(self.handle))
        else:
            self._context.release_stream(self.handle)

    def _new_event(self) -> Any:
        return check("cuEventCreate", driver.cuEventCreate(self._flags))


@contextmanager
def _released_unless_done(allocation: Any) -> Iterator[None]:
    """Release an allocation that could not be mapped, because it has no other owner."""
    try:
        yield
    except BaseException:
        driver.cuMemRelease(allocation)
        raise


@dataclass(frozen=True, slots=True)
class _Mapping:
    base: int
    nbytes: int
    allocation: Any


@dataclass(slots=True)
class _SharedStream:
    """A stream, and how many slots of lanes use it."""

    handle: Any
    users: int = 0


@final
class CudaContext:
    """The CUDA backend's context in the host.

    Attributes:
        prints: whether kernels that may print are loaded.
    """

    def __init__(self, index: int, plan: StreamPlan) -> None:
        self._plan = plan
        self.sleeps: Final = plan.sleeps
        self.deterministic: Final = plan.deterministic
        self.sanitized: Final = plan.sanitized
        self.prints = False
        self._streams: dict[Hashable, _SharedStream] = {}
        self._streams_lock = threading.Lock()
        self.events: dict[int, Any] = {}
        self._clock: DeviceClock | None = None
        self._clock_lock = threading.Lock()
        self._stopwatches: dict[int, CudaStopwatch] = {}
        version = start_driver()
        attributes = driver.CUdevice_attribute
        count: int = check("cuDeviceGetCount", driver.cuDeviceGetCount())
        if not 0 <= index < count:
            plural = "device" if count == 1 else "devices"
            raise DeviceUnavailable(
                f"there is no CUDA device {index}; the driver has {count} {plural}"
            )
        self._device = check("cuDeviceGet", driver.cuDeviceGet(index))
        if not self._attribute(attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED):
            raise DeviceUnavailable(f"CUDA device {index} has no virtual memory management")
        self.exports: Final = bool(
            self._attribute(
                attributes.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            )
        )
        self._context = check(
            "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(self._device)
        )
        self.make_current()
        name = check("cuDeviceGetName", driver.cuDeviceGetName(256, self._device))
        uuid = check("cuDeviceGetUuid", driver.cuDeviceGetUuid(self._device))
        bus = check("cuDeviceGetPCIBusId", driver.cuDeviceGetPCIBusId(32, self._device))
        address = bus.split(b"\0")[0].decode().lower()
        label = name.split(b"\0")[0].decode()
        self.compute_capability: Final = (
            self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.info: Final = DeviceInfo(
            name=label,
            backend="cuda",
            index=index,
            total_memory=check("cuDeviceTotalMem", driver.cuDeviceTotalMem(self._device)),
            compute_capability=self.compute_capability,
            driver_version=version,
            uuid=bytes(uuid.bytes).hex(),
            exports_memory=self.exports,
            pci_address=address,
            numa_node=numa_node(address),
            pcie=pcie_link(address),
            mig="MIG" in label.split(),  # the driver names an instance after its card
            multiprocessors=self._attribute(attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            shared_memory_per_block=self._attribute(
                attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            ),
        )
        self._slabs: dict[int, _Mapping] = {}
        self._bases: dict[int, int] = {}
        self._held: dict[int, tuple[int, int]] = {}  # addresses of slabs that are not mapped
        self._writable: dict[int, tuple[int, int]] = {}  # slab -> base, users
        self._pinned: dict[int, mmap.mmap] = {}
        self._managed: dict[int, int] = {}  # slab -> bytes
        self._away: set[int] = set()  # those whose pages may be on the host

    def peer(self, index: int) -> Peer:
        """Return this device's access to another one (``cuDeviceGetP2PAttribute``)."""
        other = check("cuDeviceGet", driver.cuDeviceGet(index))
        if int(other) == int(self._device):
            return Peer(access=True, atomics=True)
        if not check("cuDeviceCanAccessPeer", driver.cuDeviceCanAccessPeer(self._device, other)):
            return Peer(access=False)
        what = driver.CUdevice_P2PAttribute

        def ask(attribute: Any) -> int:
            value: int = check(
                "cuDeviceGetP2PAttribute",
                driver.cuDeviceGetP2PAttribute(attribute, self._device, other),
            )
            return value

        return Peer(
            access=True,
            atomics=bool(ask(what.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)),
            rank=ask(what.CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK),
        )

    @staticmethod
    def preload() -> None:
        """Start the driver, the part of opening a device that touches no device."""
        start_driver()

    def _attribute(self, attribute: Any) -> int:
        value: int = check(
            "cuDeviceGetAttribute", driver.cuDeviceGetAttribute(attribute, self._device)
        )
        return value

    def make_current(self) -> None:
        """Make the context this thread's."""
        check("cuCtxSetCurrent", driver.cuCtxSetCurrent(self._context))

    def open_lane(self, name: str, stream: Hashable) -> CudaStream:
        """Make the context current in this thread; return a stream, new or shared by its name."""
        self.make_current()
        priority = self._plan.priorities.get(name, 0)
        with self._streams_lock:
            key = object() if stream is None else stream
            shared = self._streams.get(key)
            if shared is None:
                handle = check(
                    "cuStreamCreateWithPriority",
                    driver.cuStreamCreateWithPriority(_non_blocking(), priority),
                )
                shared = self._streams[key] = _SharedStream(handle)
            shared.users += 1
        return CudaStream(self, shared.handle)

    def capture_stream(self) -> CudaStream:
        """A stream to capture graphs from, which no lane uses: all it is given is captured."""
        handle = check("cuStreamCreate", driver.cuStreamCreate(_non_blocking()))
        return CudaStream(self, handle, captures=True)

    def release_stream(self, handle: Any) -> None:
        """Release a lane's use of a stream; the last one destroys it."""
        with self._streams_lock:
            key = next(key for key, each in self._streams.items() if each.handle is handle)
            shared = self._streams[key]
            shared.users -= 1
            if not shared.users:
                del self._streams[key]
                stopwatch = self._stopwatches.pop(int(handle), None)
                if stopwatch is not None:
                    stopwatch.close()
                check("cuStreamDestroy", driver.cuStreamDestroy(handle))

    def free_memory(self) -> int:
        """Bytes that are free (``cuMemGetInfo``)."""
        free: int = check("cuMemGetInfo", driver.cuMemGetInfo())[0]
        return free

    def stopwatch(self, pointer: int, handle: Any) -> CudaStopwatch:
        """Return the stopwatch of a stream."""
        with self._streams_lock:
            found = self._stopwatches.get(pointer)
            if found is None:
                found = self._stopwatches[pointer] = CudaStopwatch(self._device_clock, handle)
            return found

    def _device_clock(self) -> DeviceClock:
        with self._clock_lock:
            if self._clock is None:
                self._clock = DeviceClock()
            return self._clock

    def elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two timestamps (``cuEventElapsedTime``)."""
        events = self.events
        milliseconds: float = check(
            "cuEventElapsedTime", driver.cuEventElapsedTime(events[start], events[end])
        )
        return milliseconds

    def forget_event(self, event: int) -> None:
        """Destroy the event of a timestamp (``cuEventDestroy``)."""
        found = self.events.pop(event, None)
        if found is not None:
            check("cuEventDestroy", driver.cuEventDestroy(found))

    def pointer(self, address: int) -> int:
        """The device pointer of an address."""
        return self._bases[address >> SLAB_SHIFT] + (address & OFFSET_MASK)

    def pointers(self, addresses: Iterable[int]) -> list[int]:
        """The device pointers of addresses, in one call, because launches need several."""
        bases = self._bases
        return [bases[address >> SLAB_SHIFT] + (address & OFFSET_MASK) for address in addresses]

    def writable_pointer(self, address: int) -> int:
        """Return a pointer, through the second mapping if the slab is unprotected."""
        slab = address >> SLAB_SHIFT
        base = self._writable[slab][0] if slab in self._writable else self._bases[slab]
        return base + (address & OFFSET_MASK)

    def map_pinned(self, slab: int, fd: int, nbytes: int) -> None:
        """Map shared memory and page-lock it (``cuMemHostRegister``)."""
        if slab in self._pinned:
            return
        memory = map_file(fd, nbytes)
        base = np.frombuffer(memory, dtype=np.uint8).ctypes.data
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
        check("cuMemHostRegister", driver.cuMemHostRegister(base, nbytes, flags))
        self._pinned[slab] = memory
        self._bases[slab] = base

    def host_bytes(self, address: int, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Memory shared with the program, for the CPU."""
        memory = self._pinned[address >> SLAB_SHIFT]
        return np.frombuffer(memory, np.uint8, nbytes, address & OFFSET_MASK)

    def map_pointer(self, slab: int, pointer: int, nbytes: int) -> None:
        """Give memory of this process, which others own, an address."""
        del nbytes
        self._bases[slab] = pointer

    def create_managed(self, slab: int, nbytes: int) -> int:
        """Allocate managed memory (``cuMemAllocManaged``), never more than the card has free.

        The driver has no descriptors for it, so the program cannot map it.

        The driver would allocate more, and then move pages in and out for ever. It adds pages when
        they are touched, so all of them are moved to the device here, and count as used. The driver
        would also move them away to make room for other allocations, so ``create_slab`` checks for
        room, too.
        """
        shares = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        if not self._attribute(shares):
            raise Unsupported("this device cannot share managed memory with a running host")
        self._check_room(nbytes, "managed memory")
        flags = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
        base = int(check("cuMemAllocManaged", driver.cuMemAllocManaged(nbytes, flags)))
        self._bases[slab] = base
        self._managed[slab] = nbytes
        legacy = driver.CUstream(driver.CU_STREAM_LEGACY)
        self.prefetch(slab << SLAB_SHIFT, nbytes, legacy, on_device=True)
        check("cuStreamSynchronize", driver.cuStreamSynchronize(legacy))
        return -1

    def prefetch(self, address: int, nbytes: int, stream: Any, *, on_device: bool) -> None:
        """Move managed memory to the device, or to the host (``cuMemPrefetchAsync``)."""
        slab = address >> SLAB_SHIFT
        if not on_device:
            self.may_leave(slab)
        location = self.location(on_device=on_device)
        pointer = self.pointer(address)
        # CUDA 13 has dropped the suffix, with the older function.
        move = getattr(driver, "cuMemPrefetchAsync_v2", None) or driver.cuMemPrefetchAsync
        check("cuMemPrefetchAsync", move(pointer, nbytes, location, 0, stream))
        if on_device and nbytes > self._managed[slab] - _PAGE:
            self._away.discard(slab)

    def may_leave(self, slab: int) -> None:
        """Managed memory may move to the host: keep room on the device for its return."""
        self._away.add(slab)

    def _check_room(self, nbytes: int, what: str) -> None:
        free, _ = check("cuMemGetInfo", driver.cuMemGetInfo())
        free = max(0, free - sum(self._managed[slab] for slab in self._away))
        if nbytes > free:
            raise OutOfMemory(
                f"no room for {nbytes} bytes of {what}: {free} are free on the device",
                requested=nbytes,
                free=free,
            )

    def create_slab(self, slab: int, nbytes: int, *, sealed: bool) -> int:
        """Allocate (``cuMemCreate``) and map device memory; its descriptor, or -1."""
        properties = self._properties()
        if self._managed:  # which the driver would move to the host to make room
            self._check_room(nbytes, "device memory beside managed memory")
        try:
            allocation = check("cuMemCreate", driver.cuMemCreate(nbytes, properties, 0))
        except OutOfMemory as error:
            raise OutOfMemory(
                f"no room for a slab of {nbytes} bytes on the device", requested=nbytes
            ) from error
        with _released_unless_done(allocation):
            fd = -1
            if self.exports:
                fd = int(
                    check(
                        "cuMemExportToShareableHandle",
                        driver.cuMemExportToShareableHandle(allocation, _descriptor(), 0),
                    )
                )
            try:
                self._map(slab, allocation, nbytes, sealed=sealed)
            except BaseException:
                if fd >= 0:
                    os.close(fd)
                raise
        return fd

    def map_slab(self, slab: int, fd: int, nbytes: int, *, sealed: bool) -> None:
        """Import a descriptor (``cuMemImportFromShareableHandle``) and map it."""
        allocation = check(
            "cuMemImportFromShareableHandle",
            driver.cuMemImportFromShareableHandle(arrived(fd, "a slab", nbytes), _descriptor()),
        )
        with _released_unless_done(allocation):
            self._map(slab, allocation, nbytes, sealed=sealed)

    def unmap_slab(self, slab: int) -> None:
        """Unmap a slab, if it is here, and release its allocation, or unlock shared memory."""
        held = self._held.pop(slab, None)
        if held is not None:
            check("cuMemAddressFree", driver.cuMemAddressFree(*held))
        base = self._bases.pop(slab, None)
        if base is None:
            return
        if slab in self._pinned:
            check("cuMemHostUnregister", driver.cuMemHostUnregister(base))
            del self._pinned[slab]
        elif slab in self._managed:
            del self._managed[slab]
            self._away.discard(slab)
            check("cuMemFree", driver.cuMemFree(base))
        elif slab in self._slabs:  # or others own it
            mapping = self._slabs.pop(slab)
            self._unmap(mapping.base, mapping.nbytes)
            check("cuMemRelease", driver.cuMemRelease(mapping.allocation))

    def hold_slab(self, slab: int) -> None:
        """Unmap a slab and release its allocation, but keep its address.

        A process with imported memory, mapped or not, does not return once it was parked.
        """
        mapping = self._slabs.pop(slab)
        del self._bases[slab]
        check("cuMemUnmap", driver.cuMemUnmap(mapping.base, mapping.nbytes))
        self._held[slab] = (mapping.base, mapping.nbytes)
        check("cuMemRelease", driver.cuMemRelease(mapping.allocation))

    def unprotect(self, slab: int) -> None:
        """Map a sealed slab a second time, writable, until every caller has called ``protect``."""
        base, users = self._writable.get(slab, (0, 0))
        if not users:
            mapping = self._slabs[slab]
            base = self._map_at(mapping.allocation, mapping.nbytes, writable=True)
        self._writable[slab] = (base, users + 1)

    def protect(self, slab: int) -> None:
        """Drop the writable mapping after its last user; the caller has synchronized."""
        base, users = self._writable.pop(slab)
        if users > 1:
            self._writable[slab] = (base, users - 1)
        else:
            self._unmap(base, self._slabs[slab].nbytes)

    def take(self, address: int, pointer: int, nbytes: int) -> None:
        """Copy on the device, after the work that the legacy default stream waits for."""
        if nbytes:
            legacy = driver.CUstream(driver.CU_STREAM_LEGACY)
            check(
                "cuMemcpyAsync",
                driver.cuMemcpyAsync(self.pointer(address), pointer, nbytes, legacy),
            )
            check("cuStreamSynchronize", driver.cuStreamSynchronize(legacy))

    def synchronize(self) -> None:
        """Wait for all that this process has queued (``cuCtxSynchronize``)."""
        check("cuCtxSynchronize", driver.cuCtxSynchronize())

    def check(self) -> None:
        """Raise ``StickyFault`` if the context has failed (``cuStreamQuery`` on any stream)."""
        (status,) = driver.cuStreamQuery(driver.CUstream(0))
        if status and status != NOT_READY:
            raise failure("cuStreamQuery", status)

    @staticmethod
    def flush() -> None:
        """Have the driver write the output of kernels, which it does at a synchronization."""
        driver.cuCtxSynchronize()  # which tells of the fault once more

    def close(self) -> None:
        """Release everything (thread isolation; a host process just ends)."""
        self.make_current()
        for slab in [*self._bases, *self._held]:
            self.unmap_slab(slab)
        if self._clock is not None:
            self._clock.close()
        check("cuDevicePrimaryCtxRelease", driver.cuDevicePrimaryCtxRelease(self._device))

    # --- virtual memory -----------------------------------------------------------------

    def location(self, *, on_device: bool = True) -> Any:
        """Return a memory location: this device, or the host."""
        types = driver.CUmemLocationType
        location = driver.CUmemLocation()
        location.type = (
            types.CU_MEM_LOCATION_TYPE_DEVICE if on_device else types.CU_MEM_LOCATION_TYPE_HOST
        )
        location.id = int(self._device) if on_device else 0
        return location

    def _properties(self) -> Any:
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = self.location()
        if self.exports:
            properties.requestedHandleTypes = _descriptor()
        return properties

    def _map(self, slab: int, allocation: Any, nbytes: int, *, sealed: bool) -> None:
        held, _ = self._held.get(slab, (None, 0))
        base = self._map_at(allocation, nbytes, writable=not sealed, at=held)
        self._held.pop(slab, None)
        self._slabs[slab] = _Mapping(base, nbytes, allocation)
        self._bases[slab] = base

    def _map_at(
        self, allocation: Any, nbytes: int, *, writable: bool, at: int | None = None
    ) -> int:
        """Map an allocation, by default at an address that is reserved for it."""
        access = driver.CUmemAccessDesc()
        access.location = self.location()
        flags = driver.CUmemAccess_flags
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if writable
            else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        base = at
        if base is None:
            base = check("cuMemAddressReserve", driver.cuMemAddressReserve(nbytes, 0, 0, 0))
        mapped = False
        try:
            check("cuMemMap", driver.cuMemMap(base, nbytes, 0, allocation, 0))
            mapped = True
            check("cuMemSetAccess", driver.cuMemSetAccess(base, nbytes, [access], 1))
        except BaseException:
            if mapped:
                driver.cuMemUnmap(base, nbytes)
            if at is None:
                driver.cuMemAddressFree(base, nbytes)
            raise
        return int(base)

    @staticmethod
    def _unmap(base: int, nbytes: int) -> None:
        check("cuMemUnmap", driver.cuMemUnmap(base, nbytes))
        check("cuMemAddressFree", driver.cuMemAddressFree(base, nbytes))
