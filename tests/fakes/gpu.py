"""A whole GPU of the host's memory: the fake driver with a device, streams and virtual memory.

So the CUDA backend's own context, streams and memory lane run without a GPU. Memory that
may not be written is protected by the page tables, as on a device.
"""

# ruff: noqa: N802 (the names are the vendor's)

from __future__ import annotations

import ctypes
import mmap
import os
from types import SimpleNamespace
from typing import Any, Final

from .driver import ENUMS, INVALID_VALUE, NUMBERS, SUCCESS, FakeDriver, Struct

GRANULARITY: Final = 2 << 20
MEMORY: Final = 1 << 30
NOT_READY: Final = ENUMS["CUresult"]["CUDA_ERROR_NOT_READY"]
OUT_OF_MEMORY: Final = ENUMS["CUresult"]["CUDA_ERROR_OUT_OF_MEMORY"]

_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_FAILED: Final = ctypes.c_void_p(-1).value

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _mmap(at: int | None, nbytes: int, flags: int, fd: int = -1) -> int:
    address: int | None = _libc.mmap(at, nbytes, _PROT_NONE, flags, fd, 0)
    if address is None or address == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    return address


class FakeGpu(FakeDriver):
    """The driver of a machine with one device.

    Attributes:
        alive: objects that were made and not given back, by handle or address.
        fault: the status of every call that asks how the context is, once it has failed.
        late: how often each event is asked for before it has happened.
    """

    def __init__(self, late: int = 0) -> None:
        super().__init__()
        self.alive: dict[int, Any] = {}
        self.fault = 0
        self.late = late
        self._asked: dict[int, int] = {}
        attributes = ENUMS["CUdevice_attribute"]
        self.attributes = dict.fromkeys(attributes.values(), 1)
        self.attributes[attributes["CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"]] = 9
        self.attributes[attributes["CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR"]] = 0
        self.attributes[attributes["CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"]] = 132
        shared = attributes["CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]
        self.attributes[shared] = 227 << 10
        self.peer_attributes: dict[int, int] = {}  # none: other devices are out of reach

    def _make(self, thing: Any, handle: int | None = None) -> Any:
        handle = next(self._handles) if handle is None else handle
        self.alive[handle] = thing
        return SUCCESS, handle

    def _end(self, handle: int) -> Any:
        return (INVALID_VALUE,) if self.alive.pop(handle, None) is None else (SUCCESS,)

    # --- the device -----------------------------------------------------------------------

    def cuInit(self, _flags: int) -> Any:
        return (SUCCESS,)

    def cuDriverGetVersion(self) -> Any:
        return SUCCESS, 12090

    def cuDeviceGetCount(self) -> Any:
        return SUCCESS, 1

    def cuDeviceGet(self, ordinal: int) -> Any:
        return SUCCESS, ordinal

    def cuDeviceGetAttribute(self, attribute: int, _device: int) -> Any:
        return SUCCESS, self.attributes[attribute]

    def cuDeviceGetName(self, length: int, _device: int) -> Any:
        return SUCCESS, b"Fake".ljust(length, b"\0")

    def cuDeviceGetUuid(self, _device: int) -> Any:
        return SUCCESS, SimpleNamespace(bytes=bytes(16))

    def cuDeviceGetPCIBusId(self, length: int, device: int) -> Any:
        return SUCCESS, b"FFFF:%02X:00.0" % device + bytes(length - 12)

    def cuDeviceCanAccessPeer(self, _device: int, _peer: int) -> Any:
        return SUCCESS, int(bool(self.peer_attributes))

    def cuDeviceGetP2PAttribute(self, attribute: int, _source: int, _target: int) -> Any:
        return SUCCESS, self.peer_attributes[attribute]

    def cuDeviceTotalMem(self, _device: int) -> Any:
        return SUCCESS, MEMORY

    def cuMemGetInfo(self) -> Any:
        return SUCCESS, MEMORY, MEMORY

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        return self._make("context", -1 - device)

    def cuDevicePrimaryCtxRelease(self, device: int) -> Any:
        return self._end(-1 - device)

    def cuCtxSetCurrent(self, _context: int) -> Any:
        return (SUCCESS,)

    # --- streams and events ---------------------------------------------------------------

    def cuStreamCreate(self, _flags: int) -> Any:
        return self._make("stream")

    def cuStreamCreateWithPriority(self, _flags: int, _priority: int) -> Any:
        return self._make("stream")

    def cuStreamDestroy(self, stream: int) -> Any:
        return self._end(stream)

    def cuStreamQuery(self, _stream: int) -> Any:
        return (self.fault,)

    def cuStreamWaitEvent(self, _stream: int, _event: int, _flags: int) -> Any:
        return (SUCCESS,)

    def cuLaunchHostFunc(self, _stream: int, function: int, data: int) -> Any:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(data)
        return (SUCCESS,)

    def cuEventCreate(self, _flags: int) -> Any:
        return self._make("event")

    def cuEventRecord(self, event: int, _stream: object) -> Any:
        self._asked[event] = 0
        return (SUCCESS,)

    def cuEventQuery(self, event: int) -> Any:
        self._asked[event] += 1
        return (self.fault or (NOT_READY if self._asked[event] <= self.late else 0),)

    def cuEventDestroy(self, event: int) -> Any:
        return self._end(event)

    # --- memory ---------------------------------------------------------------------------

    def cuMemHostRegister(self, address: int, nbytes: int, flags: int) -> Any:
        assert flags == NUMBERS["CU_MEMHOSTREGISTER_PORTABLE"] | 2
        self._make(nbytes, address)
        return (SUCCESS,)

    def cuMemHostUnregister(self, address: int) -> Any:
        return self._end(address)

    def cuMemCreate(self, nbytes: int, wanted: Struct, _flags: int) -> Any:
        types = self.CUmemAllocationType, self.CUmemLocationType
        assert wanted.type is types[0].CU_MEM_ALLOCATION_TYPE_PINNED
        assert wanted.location.type is types[1].CU_MEM_LOCATION_TYPE_DEVICE
        if nbytes % GRANULARITY:
            return INVALID_VALUE, 0
        files = [os.fstat(thing.fd).st_size for thing in self.alive.values() if is_file(thing)]
        if sum(files) + nbytes > MEMORY:
            return OUT_OF_MEMORY, 0
        fd = os.memfd_create("fake")
        os.truncate(fd, nbytes)
        return self._make(SimpleNamespace(fd=fd))

    def cuMemExportToShareableHandle(self, allocation: int, _kind: int, _flags: int) -> Any:
        return SUCCESS, os.dup(self.alive[allocation].fd)

    def cuMemImportFromShareableHandle(self, fd: int, _kind: int) -> Any:
        return self._make(SimpleNamespace(fd=os.dup(int(fd))))

    def cuMemRelease(self, allocation: int) -> Any:
        os.close(self.alive[allocation].fd)
        return self._end(allocation)

    def cuMemAddressReserve(self, nbytes: int, _align: int, _at: int, _flags: int) -> Any:
        address = _mmap(None, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return self._make(nbytes, address)

    def cuMemAddressFree(self, address: int, nbytes: int) -> Any:
        assert self.alive[address] == nbytes
        _libc.munmap(address, nbytes)
        return self._end(address)

    def cuMemMap(self, at: int, nbytes: int, offset: int, allocation: int, _flags: int) -> Any:
        assert self.alive[at] == nbytes
        assert not offset
        _mmap(at, nbytes, mmap.MAP_SHARED | _MAP_FIXED, self.alive[allocation].fd)
        return (SUCCESS,)

    def cuMemUnmap(self, at: int, nbytes: int) -> Any:
        assert self.alive[at] == nbytes
        _mmap(at, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED)
        return (SUCCESS,)

    def cuMemSetAccess(self, at: int, nbytes: int, access: list[Struct], count: int) -> Any:
        assert len(access) == count == 1
        writes = access[0].flags == self.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _libc.mprotect(at, nbytes, mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0))
        return (SUCCESS,)


def is_file(thing: object) -> bool:
    """Return whether an object is an allocation."""
    return isinstance(thing, SimpleNamespace)
