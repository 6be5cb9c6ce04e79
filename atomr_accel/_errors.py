"""The errors of the package, in one tree.

    AccelError
    ├── DeviceUnavailable        there is no such device, driver or backend here
    │   └── LibraryMissing       a vendor library is not installed
    ├── DeviceLost               the device will not come back in this program
    ├── ContextPoisoned          a fault, or the death of its host, took a context down
    │   └── KernelHung           an op outlived its deadline and its host was killed
    ├── GpuRefStale              the buffer is of an older generation, or was freed
    ├── EventStale               the event's point is of an older generation (also a RuntimeError)
    ├── GpuRefSealed             a write to a sealed buffer (also a ValueError)
    ├── OutOfMemory              no device memory left for a request
    ├── WorldBroken              a rank of a world failed while the op was in flight
    ├── LibraryError             a vendor library refused a call
    │   └── CompileError         a kernel's source does not compile
    ├── RemoteError              an exception in the host that has no type here
    └── Unsupported              not available on this platform, device or dtype

Bad arguments are plain ``ValueError`` and ``TypeError``, raised in the caller before
anything is sent. Everything an instance carries is in attributes; the message only
tells it. ``fields()`` is how an error crosses from the host to the program.
"""

from __future__ import annotations

import inspect
from types import CoroutineType
from typing import Any, ClassVar


class AccelError(Exception):
    """Base of all errors of this package."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def fields(self) -> dict[str, Any]:
        """The attributes beside the message, as plain values."""
        return {name: getattr(self, name) for name in self._fields}


class DeviceUnavailable(AccelError):
    """No device of that index and backend can be opened here.

    You get it from ``open_device`` before its body runs; never from a device that
    was open. The message says what was looked for.
    """


class LibraryMissing(DeviceUnavailable):
    """A vendor library is not installed; the message names the extra that brings it.

    Attributes:
        library: what was looked for, such as ``"cublas"``.
    """

    _fields = ("library",)

    def __init__(self, message: str, *, library: str) -> None:
        super().__init__(message)
        self.library = library


class DeviceLost(AccelError):
    """The device is gone for the rest of its ``async with`` block.

    You get it when restarts exceeded their intensity, when a restart cannot help
    (a sticky fault under ``isolation="thread"``), or from a device whose block was
    left. ``__cause__`` is the last fault.
    """


class ContextPoisoned(AccelError):
    """A sticky fault, or the death of the host, ended a context.

    Every op in flight at that moment gets an instance of its own whose ``__cause__``
    is one shared instance: the fault itself. The device is being rebuilt when you see
    it; the next op waits for that and runs in the new generation.

    Attributes:
        generation: the generation that ended.
        status: the driver's status code, or the host's exit code (negative: a signal).
        status_name: its name, such as ``"CUDA_ERROR_ILLEGAL_ADDRESS"``.
        op: the oldest op that had not finished where the fault was seen. Faults are
            asynchronous, so on a device that runs several ops at once it is a suspect,
            not a verdict.
    """

    _fields = ("generation", "status", "status_name", "op")

    def __init__(
        self, message: str, *, generation: int, status: int, status_name: str, op: str
    ) -> None:
        super().__init__(message)
        self.generation = generation
        self.status = status
        self.status_name = status_name
        self.op = op


class KernelHung(ContextPoisoned):
    """An op ran past the device's ``op_deadline``, and its host was killed."""


class GpuRefStale(AccelError):
    """The buffer's content is gone: its generation ended, or it was freed.

    Sealed buffers survive their generation and raise this only once freed.
    """


class EventStale(AccelError, RuntimeError):
    """The point that an event marks is gone: its generation ended. Record it again."""


class GpuRefSealed(AccelError, ValueError):
    """The op would write to a sealed buffer, which is read-only for good."""


class WorldBroken(AccelError):
    """A collective was not done: a rank of its world failed, or left.

    Every op in flight gets an instance of its own; ``__cause__`` is what went wrong, one instance
    for all. The world is being formed anew when you see it, and the next op waits for that. What
    the op should have written holds anything; what it only read is whole, but for the failed rank.

    Attributes:
        rank: the rank that failed, as it was in that epoch; None where that cannot be told.
        epoch: the world's epoch that ended.
    """

    _fields = ("rank", "epoch")

    def __init__(self, message: str, *, rank: int | None, epoch: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.epoch = epoch


class OutOfMemory(AccelError):
    """There is no room for a request. Nothing else is affected.

    Attributes:
        requested: bytes asked for.
        free: bytes free inside slabs, which may be in pieces.
        in_use: bytes in use.
        largest_free: bytes in the largest free piece.
    """

    _fields = ("requested", "free", "in_use", "largest_free")

    def __init__(
        self, message: str, *, requested: int, free: int = 0, in_use: int = 0, largest_free: int = 0
    ) -> None:
        super().__init__(message)
        self.requested = requested
        self.free = free
        self.in_use = in_use
        self.largest_free = largest_free


class LibraryError(AccelError):
    """A vendor library refused a call; the context is healthy.

    Attributes:
        library: such as ``"cublas"``.
        call: the function that refused, such as ``"cublasGemmEx_64"``.
        status: its status code.
        status_name: the code's name.
    """

    _fields: ClassVar[tuple[str, ...]] = ("library", "call", "status", "status_name")

    def __init__(
        self, message: str, *, library: str, call: str, status: int, status_name: str
    ) -> None:
        super().__init__(message)
        self.library = library
        self.call = call
        self.status = status
        self.status_name = status_name


class CompileError(LibraryError):
    """A kernel's source does not compile.

    Attributes:
        log: what the compiler said.
    """

    _fields = (*LibraryError._fields, "log")

    def __init__(
        self,
        message: str,
        *,
        log: str,
        library: str = "nvrtc",
        call: str = "nvrtcCompileProgram",
        status: int = 6,
        status_name: str = "NVRTC_ERROR_COMPILATION",
    ) -> None:
        super().__init__(
            message, library=library, call=call, status=status, status_name=status_name
        )
        self.log = log


class RemoteError(AccelError):
    """An exception in the host whose type could not be brought here.

    Attributes:
        type_name: the name of its type in the host.
    """

    _fields = ("type_name",)

    def __init__(self, message: str, *, type_name: str) -> None:
        super().__init__(message)
        self.type_name = type_name


class Unsupported(AccelError):
    """What was asked for is not available on this platform, device or dtype."""


class CpuFallbackWarning(RuntimeWarning):
    """``open_device`` found no CUDA device and took the CPU."""


class StandbyWarning(RuntimeWarning):
    """A device has no room for a hot standby, and keeps a warm one."""


def said_of(thing: object) -> str:
    """What a message says that an argument is, where it is not what it should be.

    The most common mistake with async functions is to forget ``await``, so that is said; and
    the coroutine is closed, so that no warning about it hides the message.
    """
    if not isinstance(thing, CoroutineType):
        return type(thing).__name__
    if inspect.getcoroutinestate(thing) != inspect.CORO_CREATED:
        return "coroutine"
    thing.close()
    return f"coroutine: did you forget `await` before {thing.__name__}(...)?"
