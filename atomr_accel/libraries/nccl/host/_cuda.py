"""Collectives on CUDA: two communicators of NCCL for each rank.

Ranks meet in the first. Its calls never block: a thread of the library carries them out, and its
status is polled until they are done. The second is split off the first and does all collectives.
Its calls block, which saves the thread that the library would make for each of them: 25 us instead
of 150.

Either may wait for a rank that is gone. The other lane then aborts the first, which ends the waits
in both, because they share the flag that the library's waits and kernels look at. Only when no call
is inside the second any more is that one aborted, too.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from ctypes import byref, c_int, c_void_p, create_string_buffer
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

import numpy as np

from ...._dtypes import DTYPES
from ....executors.vendor import Id128, VendorLibrary
from ..wire.exchange import REDUCING, exchange, raise_aborted
from ..wire.messages import (
    ID_BYTES,
    AbortCommunicator,
    AskBegun,
    BeginReplay,
    Collect,
    CollectiveStep,
    Join,
    MakeId,
)
from ._prototypes import (
    BYTES,
    HOST_IMMEDIATE,
    IN_PROGRESS,
    PROTOTYPES,
    REDUCTIONS,
    STATUS_NAMES,
    TYPES,
    config,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream

_EAGER_SECONDS: Final = 500e-6
"""Time for which a call's status is polled without naps, each of which takes some 70 us at least.

The library needs about as long for a collective whose ranks are connected.
"""

_NAP_SECONDS: Final = 20e-6
_LONGEST_NAP: Final = 1e-3

_DIRECT: Final = REDUCING | {"broadcast", "all_gather"}
"""Collectives that are one call of the library."""


@cache
def _library() -> VendorLibrary:
    return VendorLibrary("nccl", PROTOTYPES, STATUS_NAMES)


@final
class _MeetingEnd:
    """The communicator in which ranks meet (``ncclComm_t``). Its calls do not block."""

    def __init__(self, library: VendorLibrary) -> None:
        self._library = library
        self.cell: Final = c_void_p()
        self._status = c_int()
        self._ask = library.prepare("ncclCommGetAsyncError", self.cell, byref(self._status))
        self._lock = threading.Lock()  # held for as long as a call is inside the library
        self._aborted = False

    def carry_out(self, function: str, *args: Any) -> None:
        """Call a function about the communicator, and wait until the library has done it."""
        with self._lock:
            if self._aborted:
                raise_aborted()
            status = self._library.functions[function](*args)
        if status not in (0, IN_PROGRESS):
            raise self._library.error(function, status)
        self.settle(function)

    def settle(self, function: str) -> None:
        """Wait until the library has finished a call, without its lock."""
        until = time.perf_counter() + _EAGER_SECONDS
        nap = _NAP_SECONDS
        while (status := self._poll()) == IN_PROGRESS:
            if time.perf_counter() >= until:
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)
        if status:
            raise self._library.error(function, status)

    def _poll(self) -> int:
        with self._lock:
            if self._aborted:
                raise_aborted()
            if not self.cell.value:
                return 0
            failure = self._ask()
            if failure:
                raise self._library.error("ncclCommGetAsyncError", failure)
            return self._status.value

    def abort(self) -> None:
        """End the communicator, and all waits in those that were split off it."""
        with self._lock:
            if not self._aborted:
                self._aborted = True
                if self.cell.value:
                    self._library.call("ncclCommAbort", self.cell)


@final
class CudaCommunicator:
    """One rank's end of a communicator.

    Attributes:
        rank: which rank it is.
        size: the number of ranks.
        begun: the number of ops begun; the first one joins.
    """

    def __init__(self, library: VendorLibrary, rank: int, size: int) -> None:
        self._library = library
        self.rank: Final = rank
        self.size: Final = size
        self.begun = 1  # it joins
        self._meeting: Final = _MeetingEnd(library)
        self._cell = c_void_p()
        self._status = c_int()
        self._ask = library.prepare("ncclCommGetAsyncError", self._cell, byref(self._status))
        self._lock = threading.Lock()  # held for as long as a call is inside the library
        self._ended = False

    def join(self, meeting: bytes) -> None:
        """Be there once all others are."""
        met, found, rank = self._meeting, Id128.from_buffer_copy(meeting), self.rank
        how = config(blocking=False)
        met.carry_out("ncclCommInitRankConfig", byref(met.cell), self.size, found, rank, how)
        how = config(blocking=True)
        met.carry_out("ncclCommSplit", met.cell, 0, rank, byref(self._cell), how)

    @property
    def handle(self) -> c_void_p:
        """The vendor's handle of the communicator that does the collectives."""
        return self._cell

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Call functions about the communicator in the block, during which it is not freed."""
        with self._lock:
            if self._ended:
                raise_aborted()
            yield

    def end_waits(self) -> None:
        """Stop the ops under way, and begin no others."""
        self._ended = True
        self._meeting.abort()

    def abort(self) -> None:
        """End both communicators, with their ops on the device.

        It returns when no recording holds ops of them any more.
        """
        self.end_waits()
        with self._lock:  # a call that was inside has returned by now
            if self._cell.value:
                self._library.call("ncclCommAbort", self._cell)
                self._cell.value = None

    def ask(self) -> int:
        """Return the number of ops that were begun.

        Raises:
            LibraryError: an op has failed meanwhile.
        """
        if self._lock.acquire(blocking=False):  # else a call is inside, and will tell
            try:
                if self._cell.value and not self._ended:
                    status = self._ask() or self._status.value
                    if status:
                        raise self._library.error("ncclCommGetAsyncError", status)
            finally:
                self._lock.release()
        return self.begun


# The communicators of a context. None stands for one that was aborted before this rank began to
# join it. It must not join: the others are gone, and it would wait for ever.
_communicators: Final[WeakKeyDictionary[Any, dict[int, CudaCommunicator | None]]] = (
    WeakKeyDictionary()
)


@final
class CudaCollectives:
    """Queues collectives on its stream."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._library: Final = _library()
        self._call: Final = self._library.call
        self._pointer = context.pointer
        self._stream = stream
        self._joined = _communicators.setdefault(context, {})
        self.handlers: Final = {
            MakeId: self._make_id,
            Join: self._join,
            Collect: self._collect,
            BeginReplay: self._begin_replay,
        }

    @staticmethod
    def preload() -> None:
        """Load the library."""
        _library()

    def close(self) -> None:
        """End all waits in the remaining communicators.

        They are not freed, which could wait for recordings of another lane.
        """
        for communicator in self._joined.values():
            if communicator is not None:
                communicator.end_waits()
        self._joined.clear()

    def _make_id(self, _message: MakeId) -> bytes:
        cell = create_string_buffer(ID_BYTES)
        self._library.call("ncclGetUniqueId", cell)
        return cell.raw

    def _join(self, message: Join) -> None:
        joined = CudaCommunicator(self._library, message.rank, message.size)
        if self._joined.setdefault(message.communicator, joined) is None:
            del self._joined[message.communicator]
            raise_aborted()
        joined.join(message.meeting)

    def _found(self, number: int) -> CudaCommunicator:
        joined = self._joined.get(number)
        if joined is None:
            raise_aborted()
        return joined

    def _begin_replay(self, message: BeginReplay) -> None:
        self._found(message.communicator).begun += 1

    def _collect(self, message: Collect) -> None:
        joined = self._found(message.communicator)
        joined.begun += not message.recorded
        made: list[c_int] = []
        steps = [step for step in message.steps if step.longest]
        with joined.inside():
            try:
                if len(steps) == 1 and steps[0].kind in _DIRECT:
                    self._queue(joined, steps[0], made)  # a group of its own
                else:
                    self._queue_together(joined, steps, made)
            finally:
                for cell in made:
                    self._call("ncclRedOpDestroy", cell.value, joined.handle)

    def _queue_together(
        self, joined: CudaCommunicator, steps: Sequence[CollectiveStep], made: list[c_int]
    ) -> None:
        self._call("ncclGroupStart")
        try:
            for step in steps:
                self._queue(joined, step, made)
        finally:
            # Also where a call has failed: the group is this thread's, and would go on.
            self._call("ncclGroupEnd")

    def _queue(self, joined: CudaCommunicator, step: CollectiveStep, made: list[c_int]) -> None:
        source = self._pointer(step.source) if step.source else 0
        target = self._pointer(step.target) if step.target else 0
        end = joined.handle, self._stream.pointer
        itemsize = DTYPES[step.dtype].itemsize
        if step.kind in REDUCING:
            count = step.count * (2 if step.dtype.startswith("complex") else 1)
            how = TYPES[step.dtype], self._operator(joined, step, made)
            match step.kind:
                case "all_reduce":
                    self._call("ncclAllReduce", source, target, count, *how, *end)
                case "reduce":
                    self._call("ncclReduce", source, target, count, *how, step.root, *end)
                case _:
                    self._call("ncclReduceScatter", source, target, count, *how, *end)
            return
        match step.kind:
            case "broadcast":
                if joined.rank == step.root and not target:
                    target = source  # in place: it is there already
                nbytes = step.count * itemsize
                self._call("ncclBroadcast", source, target, nbytes, BYTES, step.root, *end)
            case "all_gather":
                self._call("ncclAllGather", source, target, step.count * itemsize, BYTES, *end)
            case _:
                # The library has no such collectives in all its releases: they are sends.
                plan = exchange(step, joined.rank, joined.size)
                gives = plan.gives * (len(plan.takers) if plan.parts == 1 else 1)
                for to, piece in zip(plan.takers, gives, strict=False):
                    if piece.length:
                        at = source + piece.begin * itemsize
                        self._call("ncclSend", at, piece.length * itemsize, BYTES, to, *end)
                for piece in plan.takes:
                    if piece.length:
                        at = target + piece.begin * itemsize
                        self._call("ncclRecv", at, piece.length * itemsize, BYTES, piece.rank, *end)

    def _operator(self, joined: CudaCommunicator, step: CollectiveStep, made: list[c_int]) -> int:
        """``ncclRedOp_t``; one that multiplies is made for the call."""
        if step.scale is None:
            return REDUCTIONS[step.reduction]
        cell = c_int()
        # Complex numbers are summed as pairs of real ones.
        dtype = {"complex64": "float32", "complex128": "float64"}.get(step.dtype, step.dtype)
        scalar = np.asarray(step.scale).astype(DTYPES[dtype])
        self._call(
            "ncclRedOpCreatePreMulSum",
            byref(cell),
            scalar.ctypes.data,
            TYPES[step.dtype],
            HOST_IMMEDIATE,
            joined.handle,
        )
        made.append(cell)
        return cell.value


@final
class CudaAborts:
    """Aborts communicators, and reports their progress, while the other lane waits."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        del stream
        self._joined = _communicators.setdefault(context, {})
        self.handlers: Final = {
            AbortCommunicator: self._abort,
            AskBegun: self._ask_begun,
        }

    def close(self) -> None:
        """Do nothing: the other lane's executor aborts the remaining communicators."""

    def _abort(self, message: AbortCommunicator) -> None:
        joined = self._joined.setdefault(message.communicator, None)
        if joined is not None:
            del self._joined[message.communicator]
            joined.abort()

    def _ask_begun(self, message: AskBegun) -> int:
        joined = self._joined.get(message.communicator)
        return 0 if joined is None else joined.ask()
