"""Parking hosts on CUDA by the driver's checkpoints of processes.

The driver copies what a process has on the device to memory of that process, and releases it on the
device, contexts included. It needs no context in the process that asks for this. Memory that
was imported must be unmapped and released before, and without room a return ends in a process that
is lost. So the room is looked up first, by NVML.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from typing import Any, Final, final

from ...._errors import LibraryError, OutOfMemory, Unsupported

PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuCheckpointProcessGetState": (c_int, POINTER(c_int)),
    "cuCheckpointProcessLock": (c_int, c_void_p),
    "cuCheckpointProcessCheckpoint": (c_int, c_void_p),
    "cuCheckpointProcessRestore": (c_int, c_void_p),
    "cuCheckpointProcessUnlock": (c_int, c_void_p),
}
"""The driver's functions, with the types of their parameters. All return a status."""

NVML_PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    "nvmlInitWithFlags": (c_uint,),
    "nvmlDeviceGetHandleByUUID": (c_char_p, POINTER(c_void_p)),
    "nvmlDeviceGetMemoryInfo": (c_void_p, c_void_p),
}
"""NVML's functions, likewise."""

RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
"""States of a process: ``CU_PROCESS_STATE_RUNNING`` and so on."""

LOCK_MILLISECONDS: Final = 10_000
"""Time within which the process has to finish its calls of the driver."""

MARGIN: Final = 64 << 20
"""Bytes of room beyond what a process has released, because releases come in larger pieces."""


class LockArguments(ctypes.Structure):
    """``CUcheckpointLockArgs``."""

    _fields_ = (
        ("timeoutMs", c_uint),
        ("reserved0", c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class MemoryInfo(ctypes.Structure):
    """``nvmlMemory_t``: bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def bound(library: Any, prototypes: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return functions of a library by name."""
    functions = {}
    for name, types in prototypes.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise Unsupported(
                f"parking hosts needs {name} of the driver; update NVIDIA's driver to 580 or "
                "newer, or ask for hot standbys: Standby(hot=1)"
            ) from None
        function.restype, function.argtypes = c_int, types
        functions[name] = function
    return functions


def loaded(name: str) -> ctypes.CDLL:
    """Load a library that comes with the driver."""
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise Unsupported(
            f"parking hosts needs {name} of NVIDIA's driver, which cannot be loaded: {error}; ask "
            "for hot standbys: Standby(hot=1)"
        ) from error


@final
class CudaParker:
    """Parks hosts, and restores them."""

    def __init__(self, driver: Any = None, nvml: Any = None) -> None:
        self._driver: Final = bound(driver or loaded("libcuda.so.1"), PROTOTYPES)
        self._nvml: Final = bound(nvml or loaded("libnvidia-ml.so.1"), NVML_PROTOTYPES)
        self._call("cuInit", 0)
        self._ask("nvmlInitWithFlags", 0)

    def check(self) -> None:
        """Return, because both libraries have all functions."""

    def park(self, pid: int, uuid: str) -> int:
        """Lock a process and take its checkpoint; see ``Parker``."""
        before = self._free(uuid)
        arguments = LockArguments(timeoutMs=LOCK_MILLISECONDS)
        self._call("cuCheckpointProcessLock", pid, byref(arguments))
        self._call("cuCheckpointProcessCheckpoint", pid, None)
        return max(0, self._free(uuid) - before)

    def restore(self, pid: int, uuid: str, nbytes: int) -> None:
        """Restore a process from its checkpoint and unlock it; see ``Parker``."""
        free = self._free(uuid)
        if free < nbytes + MARGIN:
            raise OutOfMemory(
                f"a parked host needs {nbytes + MARGIN} bytes of the device's memory, and {free} "
                "are free",
                requested=nbytes,
                free=free,
            )
        state = c_int(-1)
        self._call("cuCheckpointProcessGetState", pid, byref(state))
        if state.value != CHECKPOINTED:
            raise LibraryError(
                f"process {pid} is in state {state.value}, and has no checkpoint to return from",
                library="cuda",
                call="cuCheckpointProcessGetState",
                status=state.value,
                status_name="CU_PROCESS_STATE",
            )
        self._call("cuCheckpointProcessRestore", pid, None)
        self._call("cuCheckpointProcessUnlock", pid, None)

    def _free(self, uuid: str) -> int:
        handle = c_void_p()
        parts = (uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])
        name = f"GPU-{'-'.join(parts)}".encode()
        self._ask("nvmlDeviceGetHandleByUUID", name, byref(handle))
        info = MemoryInfo()
        self._ask("nvmlDeviceGetMemoryInfo", handle, byref(info))
        return int(info.free)

    def _call(self, function: str, *args: Any) -> None:
        status = self._driver[function](*args)
        if status:
            # An error about memory is no OutOfMemory here: the process may be lost.
            named = c_char_p()
            self._driver["cuGetErrorName"](status, byref(named))
            name = (named.value or b"unknown status").decode()
            raise _failure("cuda", function, status, name)

    def _ask(self, function: str, *args: Any) -> None:
        status = self._nvml[function](*args)
        if status:
            raise _failure("nvml", function, status, f"NVML status {status}")


def _failure(library: str, function: str, status: int, name: str) -> LibraryError:
    text = f"{function} returned {name} ({status})"
    return LibraryError(text, library=library, call=function, status=status, status_name=name)
