"""The driver's checkpoints of processes, and NVML, behind the same symbols.

They are C functions with the prototypes of ``backends.cuda.host.parking``, which ctypes calls.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from atomr_accel.backends.cuda.host.parking import (
    CHECKPOINTED,
    LOCKED,
    NVML_PROTOTYPES,
    PROTOTYPES,
    RUNNING,
    MemoryInfo,
)

FAILED: Final = 3
ILLEGAL_STATE: Final = 401
NOT_SUPPORTED: Final = 801
NAMES: Final = {
    ILLEGAL_STATE: b"CUDA_ERROR_ILLEGAL_STATE",
    NOT_SUPPORTED: b"CUDA_ERROR_NOT_SUPPORTED",
}


class _Symbols:
    """An object with a C function for each method that a table names."""

    def __init__(self, prototypes: dict[str, tuple[Any, ...]]) -> None:
        for name, types in prototypes.items():
            method = getattr(self, f"_{name}")
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *types)(method))


class FakeCheckpoints(_Symbols):
    """A driver, and the processes that it knows.

    Args:
        free: bytes of free memory of the device.

    Attributes:
        free: the same, at present.
        states: the states of processes.
        held: bytes that each process has on the device, by process id.
        fails: the status that a function returns, by name.
        calls: the names of the functions that were called.
    """

    def __init__(self, free: int) -> None:
        self.free = free
        self.states: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.fails: dict[str, int] = {}
        self.calls: list[str] = []
        self.timeout = 0
        super().__init__(PROTOTYPES)

    def _move(self, name: str, pid: int, before: int, after: int) -> int:
        self.calls.append(name)
        if name in self.fails:
            self.states[pid] = FAILED
            return self.fails[name]
        if self.states[pid] != before:
            return ILLEGAL_STATE
        self.states[pid] = after
        return 0

    def _cuInit(self, flags: int) -> int:  # noqa: N802 (the driver's names)
        assert not flags
        return 0

    def _cuGetErrorName(self, status: int, name: Any) -> int:  # noqa: N802
        name[0] = NAMES[status]
        return 0

    def _cuCheckpointProcessGetState(self, pid: int, state: Any) -> int:  # noqa: N802
        state[0] = self.states[pid]
        return 0

    def _cuCheckpointProcessLock(self, pid: int, arguments: int) -> int:  # noqa: N802
        words = (ctypes.c_uint * 16).from_address(arguments)
        self.timeout = words[0]
        assert not any(words[1:])  # they are reserved
        return self._move("lock", pid, RUNNING, LOCKED)

    def _cuCheckpointProcessCheckpoint(self, pid: int, arguments: int | None) -> int:  # noqa: N802
        assert arguments is None
        status = self._move("checkpoint", pid, LOCKED, CHECKPOINTED)
        self.free += 0 if status else self.held[pid]
        return status

    def _cuCheckpointProcessRestore(self, pid: int, arguments: int | None) -> int:  # noqa: N802
        assert arguments is None
        assert self.free >= self.held[pid], "a return without room loses the process"
        status = self._move("restore", pid, CHECKPOINTED, LOCKED)
        self.free -= 0 if status else self.held[pid]
        return status

    def _cuCheckpointProcessUnlock(self, pid: int, arguments: int | None) -> int:  # noqa: N802
        assert arguments is None
        return self._move("unlock", pid, LOCKED, RUNNING)


class FakeMemoryReadings(_Symbols):
    """NVML, as far as it tells how much memory is free.

    Args:
        device: whose memory it reads.
        uuid: the only device's.
    """

    def __init__(self, device: FakeCheckpoints, uuid: str) -> None:
        self._device = device
        self._uuid = uuid.encode()
        super().__init__(NVML_PROTOTYPES)

    def _nvmlInitWithFlags(self, flags: int) -> int:  # noqa: N802 (NVML's names)
        assert not flags
        return 0

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        if uuid != self._uuid:
            return 6
        handle[0] = 0x1234
        return 0

    def _nvmlDeviceGetMemoryInfo(self, handle: int, info: int) -> int:  # noqa: N802
        assert handle == 0x1234
        there = MemoryInfo.from_address(info)
        there.free = self._device.free
        return 0
