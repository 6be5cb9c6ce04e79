"""The errors of the package, in one tree.

    AccelError
    ├── DeviceUnavailable        no such device, driver or backend here
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
    ├── LinAlgError              a matrix has no such factorization (also NumPy's LinAlgError)
    ├── RemoteError              an exception in the host that has no type here
    └── Unsupported              not available on this platform, device or dtype

Bad arguments are plain ``ValueError`` and ``TypeError``, raised in the caller before
anything is sent. Everything an instance carries is in attributes; the message only
tells it. ``fields()`` is how an error crosses from the host to the program.
"""

from __future__ import annotations

import inspect
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

if TYPE_CHECKING:
    from ._reports import FaultReport


class AccelError(Exception):
    """Base of all errors of this package."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def fields(self) -> dict[str, Any]:
        """The attributes beside the message, as plain values."""
        return {name: getattr(self, name) for name in self._fields}


class DeviceUnavailable(AccelError):
    """No device of that index and backend can be opened here, or a part of it cannot be loaded.

    You get it from ``open_device`` before its body runs. The message names the missing device,
    driver or backend. An open device raises it for ops whose executor cannot be loaded.
    """


class LibraryMissing(DeviceUnavailable):
    """A vendor library is not installed; the message has a command that installs it.

    Attributes:
        library: the name of the library, such as ``"cublas"``.
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

    @property
    def report(self) -> FaultReport | None:
        """The report of the last fault, if a fault is the cause."""
        return getattr(self.__cause__, "report", None)


class ContextPoisoned(AccelError):
    """A sticky fault, or the death of the host, ended a context.

    Every op in flight at that moment gets an instance of its own whose ``__cause__``
    is one shared instance: the fault itself. The device is being rebuilt when you see
    it; the next op waits for that and runs in the new generation.

    Attributes:
        generation: the generation that ended.
        status: the driver's status code, or the host's exit code (negative: a signal).
        status_name: its name, such as ``"CUDA_ERROR_ILLEGAL_ADDRESS"``.
        op: the oldest op that had not finished where the fault was seen; ``"idle"`` if there was
            none. If the host died, a function of ``device.run`` comes before other ops. Faults are
            asynchronous, so on a device that runs several ops at once it is a suspect,
            not a verdict.
        report: all facts about the fault; None if a supervisor has restarted the device without
            one.
        culprit: whether the op that raises this has itself ended the context; False if that is not
            certain.
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
        self.report: FaultReport | None = None
        self.culprit = False


class KernelHung(ContextPoisoned):
    """An op ran past the ``op_deadline`` of its device or world, and its host was killed."""


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

    Every op in flight raises its own instance; ``__cause__`` is the original error, shared by all.
    The world is already forming again when you see this error, and the next op waits for that.
    Buffers that the op should have written have undefined contents. Buffers that it only read are
    intact, except on the failed rank.

    Attributes:
        rank: the rank that failed, numbered as in that epoch; None if it is unknown.
        epoch: the world's epoch that ended.
    """

    _fields = ("rank", "epoch")

    @property
    def report(self) -> FaultReport | None:
        """The report of the fault, if a fault of the rank's device is the cause."""
        return getattr(self.__cause__, "report", None)

    def __init__(self, message: str, *, rank: int | None, epoch: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.epoch = epoch


class OutOfMemory(AccelError):
    """A request for memory found no room. Other work is not affected.

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


class LinAlgError(AccelError, np.linalg.LinAlgError):
    """A matrix has no such factorization, or its iteration did not converge.

    The lane goes on, and the other matrices of the stack have their results.

    Attributes:
        index: which matrix, counted over the leading dimensions in row-major order.
        info: what LAPACK says of it: the leading minor that is not positive definite, the pivot
            that is zero, or how much did not converge. -1000 stands for NaN or infinity in it.
    """

    _fields = ("index", "info")

    def __init__(self, message: str, *, index: int, info: int) -> None:
        super().__init__(message)
        self.index = index
        self.info = info


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
    """The request is not available on this platform, device or dtype."""


class CpuFallbackWarning(RuntimeWarning):
    """``open_device`` found no CUDA device and took the CPU."""


class StandbyWarning(RuntimeWarning):
    """A device has no room for a hot standby, and keeps a warm one."""


class EarlierErrors:
    """Notes about the errors of earlier attempts.

    The errors themselves are released. The frames in their tracebacks refer to buffers of the
    attempts, and the next attempt needs that memory. A frame that kept a list of the errors would
    be in those tracebacks itself, and such a cycle lasts until garbage collection.
    """

    __slots__ = ("_notes",)

    def __init__(self) -> None:
        self._notes: list[str] = []

    def __len__(self) -> int:
        return len(self._notes)

    def add(self, error: Exception) -> None:
        """One more attempt has failed."""
        try:
            said = repr(error)
        except Exception:  # noqa: BLE001 (the program's own class, which may do anything)
            said = object.__repr__(error)
        self._notes.append(f"attempt {len(self) + 1} ended with {said}")

    def tell(self, error: Exception) -> None:
        """Add notes of them to the error of the last attempt.

        That may be an instance which was raised, and told of others, before.
        """
        told = getattr(error, "__notes__", ())
        for note in self._notes:
            if note not in told:
                error.add_note(note)


class LastError(EarlierErrors):
    """Like ``EarlierErrors``, but keeps the latest error, because it may be the last.

    ``with LastError() as failed:`` keeps it until the block is left.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        super().__init__()
        self._last: Exception | None = None

    def __enter__(self) -> LastError:
        return self

    def __exit__(self, *_error: object) -> None:
        self._last = None  # its traceback has the frame of the block in it

    def add(self, error: Exception) -> None:
        """One more has failed, which may be the last."""
        if self._last is not None:
            super().add(self._last)
        self._last = error

    def throw(self) -> NoReturn:
        """Raise the last one, which tells of those before."""
        error, self._last = self._last, None
        assert error is not None
        self.tell(error)
        try:
            raise error
        finally:
            del error


def is_awaitable(thing: object) -> bool:
    """Return True if a function that has returned this is an async one.

    Refs and expressions can be awaited as far as Python knows, but only to raise an error.
    """
    return inspect.isawaitable(thing) and not hasattr(thing, "NOT_AWAITED")


def check_awaitable(what: str, made: object) -> None:
    """Raise a `TypeError` unless a function that has returned this is an async one."""
    if not is_awaitable(made):
        raise TypeError(
            f"{what} must be an async function, and returned {said_of(made)}: write `async def`"
        )


def said_of(thing: object) -> str:
    """Return a description of an argument of the wrong type, for an error message.

    The most common mistake with async functions is to forget ``await``, so that is said; and
    the coroutine is closed, so that no warning about it hides the message.
    """
    if not isinstance(thing, CoroutineType):
        return type(thing).__name__
    if inspect.getcoroutinestate(thing) != inspect.CORO_CREATED:
        return "coroutine"
    thing.close()
    return f"coroutine: did you forget `await` before {thing.__name__}(...)?"
