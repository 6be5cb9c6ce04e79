"""Batches: GPU work as a nursery.

Calls inside the block return refs at once. Ops go to the host in frames while the block
still runs; leaving it waits for all of them, and an error raises there.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import sys
import weakref
from collections import deque
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    Never,
    NoReturn,
    TypeVar,
    final,
    overload,
)

import numpy as np
import trio

from ..._dtypes import as_dtype
from ..._errors import ContextPoisoned, DeviceLost, OutOfMemory
from ...actors.blocks import EntersAsync
from ...arrays import GpuRef
from ...arrays.expressions import Expression
from ...lanes import Port, uninterrupted
from ...memory import SLICE, Hold
from ...ops import LaneSpec, Pending, recorded_call, require_readable
from ...wire import Copy
from ..calls._run import check_is_there
from ..core import MEMORY_LANE
from ..data.arrays import copying
from ..data.transfer import ENDED, SMALL, after, as_host_array, bytes_of, room_for
from .collector import CollectingDevice, Collector

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableSequence
    from types import CoroutineType, TracebackType

    from ...lanes import Bytes, HostHandle, Op, Piece
    from ...memory import Block
    from ...ops import Facade, Request
    from ...wire import Message
    from ..calls._run import OnDevice

T = TypeVar("T")

_numbers: Final = itertools.count(1)

_LARGEST_FRAME: Final = 32
"""Largest number of ops in a frame. Frames are sent while the block runs, so the host works
meanwhile.

The first frames are smaller, each twice the last, so that the device starts with the block.
"""

_USUAL_FRAME: Final = 8
"""Ops that a frame grows to in short batches, so that few ops are unsent when the block ends."""

_FRAMES: Final = 16
"""Divisor for long batches: frames there grow to this share of the ops so far, up to the
largest."""


_CALLS: Final = 64
"""Calls of the device in a batch's block after which those that have begun are dropped."""

_ONLY_HERE: Final = 2
"""``sys.getrefcount`` of an object that only a local variable of the caller has."""

_SLICE: Final = 512
"""Number of ops and buffers that are handled in one turn of the loop, at the end of the block."""


class _SubmittedCopy(NamedTuple):
    """A copy to or from staging memory that was submitted."""

    piece: Piece
    op: Op
    host: HostHandle


@final
class BatchResult(Generic[T]):
    """A result of ``batch.get`` or ``batch.run``, whose value exists once the block has ended."""

    def __init__(self) -> None:
        self._value: tuple[T] | None = None

    @property
    def value(self) -> T:
        """The array that was fetched, or what the function returned.

        Raises:
            RuntimeError: the batch has not been left, or it has failed.
        """
        if self._value is None:
            raise RuntimeError("there is no result before the batch's block is left, without error")
        return self._value[0]

    def _set(self, value: T) -> None:
        """Have a value, now that the batch has ended well."""
        self._value = (value,)

    def __repr__(self) -> str:
        if self._value is None:
            return "<Later: no value before the batch's block is left, without error>"
        return f"<Later: {self._value[0]!r}>"

    def _refuse(self, *_args: object, **_named: object) -> NoReturn:
        raise TypeError("this is a result of a batch: use `later.value` after the batch's block")

    if not TYPE_CHECKING:  # to type checkers, it is no array and nothing to be awaited
        __array__ = __await__ = __getitem__ = __iter__ = __len__ = __float__ = _refuse

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a function was given what batch.get or batch.run has returned, which stands for a "
            "result that is there once the batch's block is left: pass `later.value` then, or have "
            "one function do all of it"
        )


@final
@uninterrupted
class Batch(EntersAsync, Collector):
    """Collects ops inside ``async with device.batch() as batch:``.

    Attributes are the device's libraries, whose methods return refs at once. The refs can be used
    in the batch right away, and elsewhere after it. If anything in the batch fails, or the block
    raises, all refs that the batch has made are freed.

    Calls raise the same errors as outside a batch. Errors found before sending are raised at once.
    Others are raised at the end of the block: ``ContextPoisoned`` if the device fails,
    ``DeviceLost`` if it is lost or closed, an op's own error, or an ``ExceptionGroup`` of several.
    A call outside the block raises ``RuntimeError``.
    """

    _entered_by = "device.batch() as batch"

    def __init__(self, device: CollectingDevice) -> None:
        super().__init__(device)
        self._ops: deque[Op] = deque()
        self._number = next(_numbers)
        self._instruments = self.core.instruments
        self._made: list[weakref.ref[Block]] = []
        # The bytes and the number of each promise.
        self._promised: weakref.WeakKeyDictionary[Block, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._promises = 0
        self._wanted = 0  # bytes of all promises
        self._lacking = 0  # how many of these had no room
        self._later: deque[Callable[[], Awaitable[None]]] = deque()
        self.late: bool = False  # whether memory is promised or a call deferred
        self._fetched: list[tuple[Bytes, _SubmittedCopy]] = []
        self._entered = False
        self._unsent = 0
        self._frame = 1
        self._ports_unsent: set[Port] = set()
        self._open = False
        self._filling = False
        self._unawaited: list[tuple[CoroutineType[Any, Any, Any], str]] = []

    async def __aenter__(self) -> Batch:
        if self._entered:
            raise RuntimeError("a batch is entered once; make another: device.batch()")
        self._entered = True
        await self.core.ready()
        self.ports: dict[str, Any] = dict(self.core.ports)
        self._epoch = self.memory.epoch
        self._open = True
        self._task = trio.lowlevel.current_task()
        self._around = around = self.core.open_batches.get(self._task)
        self.depth: int = len(self._task.child_nurseries) if around is None else around.depth
        self.core.open_batches[self._task] = self
        if self.recorder is not None:
            self.recorder.entered(self)
        return self

    # --- what a batch offers beside the libraries -------------------------------------------

    @recorded_call
    def put(self, array: object) -> GpuRef:
        """Copy an array to a new buffer; ``batch.copy(batch.put(x), to)`` writes one.

        Args:
            array: a NumPy array, or an object that ``numpy.asarray`` accepts. Do not change it
                before the block is left.

        Returns:
            A ref with the array's shape and dtype.
        """
        # Large arrays are rearranged, if needed, at the end of the block, in a thread.
        if isinstance(array, np.ndarray) and array.nbytes > SMALL:
            host: np.ndarray[Any, Any] = array
        else:
            host = as_host_array(array)
        piece = self._piece(host.nbytes)
        if piece is None:  # it is deferred, so buffers without content must not be used elsewhere
            self.late = True
        try:
            ref = self.output(host.shape, as_dtype(host.dtype.newbyteorder("=")))
        except BaseException:
            if piece is not None:
                piece.release()
            raise
        if piece is not None and self.late:  # the buffer does not fit
            piece.release()
            piece = None
        if piece is not None:
            np.copyto(piece.view(host.nbytes), bytes_of(host))
            message = Copy(ref.block.address, piece.address, host.nbytes)
            moving = self._move("put", piece, message, (), (ref.block,))
            after(self.core, moving.host, moving.op, piece.release)
            return ref

        async def transfer() -> None:
            await self.provide((ref.block,))
            await self.made_on._upload(host, ref)

        self.put_off(transfer)
        return ref

    @recorded_call
    def get(self, ref: GpuRef | Expression) -> BatchResult[np.ndarray[Any, Any]]:
        """Copy a buffer from the device, with its content at this point of the batch.

        Args:
            ref: the buffer, any view of one, or an expression. The device copies a view that is not
                contiguous, and computes an expression, to a contiguous buffer first.

        Returns:
            ``later``, whose ``later.value`` is the array once the block has ended without error.
        """
        if isinstance(ref, Expression):
            self._check()
            ref = self._add_request(self.core.evaluation(ref))
        require_readable(ref, self.memory, "ref", strided=True)
        self._check()
        if not ref.contiguous:
            ref = self.collect(copying, self, (ref, None), {})
        block = ref.block
        host = room_for(ref)
        later: BatchResult[np.ndarray[Any, Any]] = BatchResult()
        piece = self._piece(host.nbytes)
        if piece is not None:
            message = Copy(piece.address, block.address, host.nbytes)
            moving = self._move("get", piece, message, (block,), ())
            self._fetched.append((bytes_of(host), moving))
            self._done.append(partial(later._set, host))
            return later

        async def transfer() -> None:
            await self.provide((ref.block,))
            await self.made_on._download(ref, host)
            self._done.append(partial(later._set, host))

        self.put_off(transfer)
        return later

    @overload
    def run(  # of a function that is not annotated
        self,
        function: Callable[..., Never],
        *args: object,
        lane: str = ...,
        init: Callable[[], object] | None = ...,
    ) -> BatchResult[Any]: ...
    @overload
    def run(
        self,
        function: Callable[..., OnDevice],
        *args: object,
        lane: str = ...,
        init: Callable[[], object] | None = ...,
    ) -> BatchResult[GpuRef]: ...
    @overload
    def run(
        self,
        function: Callable[..., tuple[OnDevice, ...]],
        *args: object,
        lane: str = ...,
        init: Callable[[], object] | None = ...,
    ) -> BatchResult[tuple[GpuRef, ...]]: ...
    @overload
    def run(
        self,
        function: Callable[..., T],
        *args: object,
        lane: str = ...,
        init: Callable[[], object] | None = ...,
    ) -> BatchResult[T]: ...
    def run(
        self,
        function: Callable[..., object],
        *args: object,
        lane: str = "run",
        init: Callable[[], object] | None = None,
    ) -> BatchResult[Any]:
        """Call a Python function in the host, at this point of the batch.

        The function is called when the block ends, and its arguments are read then. Later calls of
        the batch wait until it has returned, so ops that are called outside the batch meanwhile
        come before them. Arguments and errors are those of ``device.run``.

        Returns:
            ``later``, whose ``later.value`` is the result once the block has ended.
        """
        self._check()
        for argument in args:
            check_is_there(argument)
            if isinstance(argument, BatchResult):
                argument.__reduce__()
        later: BatchResult[Any] = BatchResult()
        promised = self._promises

        async def call() -> None:
            # The function cannot use later promises, because their ops come later.
            await self.provide(self._promised_until(promised))
            result = await self.made_on.run(function, *args, lane=lane, init=init)
            self._done.append(partial(later._set, result))

        self.put_off(call)
        return later

    def _promised_until(self, number: int) -> list[Block]:
        """Return the blocks that still wait for memory, of the first ``number`` promises."""
        # They are in order, and all but a few of the earlier ones have memory.
        return [
            *itertools.takewhile(lambda block: self._promised[block][1] <= number, self._promised)
        ]

    def put_off(self, step: Callable[[], Awaitable[None]]) -> None:
        """Defer a function to the end of the block."""
        self.late = True
        self._later.append(step)

    def when_placed(self, call: Callable[[], None]) -> None:
        """Call back once all that was collected so far has its place in the program's order."""
        if not self.late:
            call()
            return

        async def call_later() -> None:
            call()

        self.put_off(call_later)

    def _piece(self, nbytes: int) -> Piece | None:
        """Staging memory for a small array that can be moved now."""
        if nbytes > SMALL or self.late:
            return None
        self._check()
        return self.core.staging.try_acquire(nbytes)

    def _move(
        self,
        name: str,
        piece: Piece,
        message: Copy,
        reads: tuple[Block, ...],
        writes: tuple[Block, ...],
    ) -> _SubmittedCopy:
        """Submit a copy to or from staging memory."""
        context = self.core.context
        try:
            assert context is not None  # or the batch's generation would be over
            self.submit(self.ports[MEMORY_LANE], name, message, reads, writes)
        except BaseException:
            piece.release()
            raise
        return _SubmittedCopy(piece, self._ops[-1], context.host)

    # --- what facades ask for -------------------------------------------------------------

    def collect(
        self,
        make: Callable[..., Request[T]],
        facade: Facade[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        """Carry out a call at once; its result gets its content later."""
        now = self._open and self.memory.epoch is self._epoch and not self.late
        if now and facade.templated:
            found = facade.call_templates.find(make, facade, self, args, kwargs)
            if found is not None and found[0].finish is None:  # there are no answers here
                trace, refs, words = found
                if trace.lanes <= self.ports.keys():
                    self._filling = True
                    try:
                        addresses, blocks, result = trace.call(self, refs, words)
                    except Pending:  # results do not fit
                        late = True
                    else:
                        late = self.late  # a lane must be opened for its results
                    finally:
                        self._filling = False
                    if not late:
                        for each in trace.ops:
                            port = self.ports[each.lane]
                            op = each.submit(self.core, port, addresses, blocks)
                            self._note(op, port)
                        return result  # type: ignore[no-any-return]
        return super().collect(make, facade, args, kwargs)

    def _add_request(self, request: Request[T]) -> T:
        if request.lane.name not in self.ports:  # it is deferred, and its results have no content
            self.late = True
        return super()._add_request(request)

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return a buffer. If memory is short, it gets its memory at the end of the block."""
        memory = self.memory
        if not self._open or memory.epoch is not self._epoch:
            self._check()
        nbytes = math.prod(shape) * dtype.itemsize
        made = None if self.late else self.try_empty(shape, dtype, nbytes)
        if made is not None:
            return made
        if self._filling:
            raise Pending((shape, dtype))
        self.core.growth.require_possible(nbytes)
        block = memory.promise()
        self._promises += 1
        self._promised[block] = nbytes, self._promises
        self._look_for_room(nbytes)
        self.late = True
        self._made.append(weakref.ref(block))
        return GpuRef(block, shape, dtype, nbytes)

    def _look_for_room(self, nbytes: int) -> None:
        """Note the bytes of promised memory that do not fit in the present slabs."""
        self._wanted += nbytes
        if self._wanted - self.memory.plain_free <= self._lacking:
            return
        if not self._lacking:  # perhaps there is, where ops are answered by now
            self._take_answers()
        self.memory.collect(SLICE)
        self._lacking = max(self._lacking, self._wanted - self.memory.plain_free)

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef | None:
        """Return a buffer if memory is available, else None."""
        block = self.memory.allocate(nbytes) or self._reused(nbytes)
        if block is None:
            return None
        self._made.append(weakref.ref(block))
        return GpuRef(block, shape, dtype, nbytes)

    def _reused(self, nbytes: int) -> Block | None:
        """Return a block in the memory of ops that are answered by now, or None.

        While the block runs, only this method takes answers.
        """
        self._take_answers()
        return self.memory.allocate(nbytes)

    def _take_answers(self) -> None:
        for port in self.ports.values():
            port.take_answers()
        self._check()  # they may tell of a fault

    def submit(
        self,
        port: Port | LaneSpec,
        name: str,
        message: Message,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> None:
        """Submit an op now, or at the end if it needs what takes a wait."""
        if not self._open or self.memory.epoch is not self._epoch:
            self._check()
        if self.late or isinstance(port, LaneSpec):
            # Before the call is ordered, memory that is freed meanwhile could be reused, and a
            # sealed buffer could move.
            reads, writes = tuple(reads), tuple(writes)
            holds = [Hold(block) for block in (*reads, *writes)]

            async def submit_later() -> None:
                try:
                    await self.provide((*reads, *writes))
                    lane = await self.core.open_lane(port) if isinstance(port, LaneSpec) else port
                    self._check_epoch()
                    self._note(self.core.submit(lane, name, message, reads, writes))
                finally:
                    for hold in holds:
                        hold.release()

            self.put_off(submit_later)
        else:
            self._note(self.core.submit(port, name, message, reads, writes), port)

    def _note(self, op: Op, port: Port | None = None) -> None:
        """Note an op of this batch that was just submitted, and the port that has to send it."""
        self._ops.append(op)
        if self._instruments.each_op:
            self._instruments("op_in_batch", op, self._number)
        if port is not None:
            self._ports_unsent.add(port)
            self._unsent = unsent = self._unsent + 1
            if unsent == self._frame:
                self._send()

    def _send(self) -> None:
        """Send what there is; the next frame is larger."""
        self._unsent = 0
        usual = max(_USUAL_FRAME, len(self._ops) // _FRAMES)
        self._frame = min(2 * self._frame, usual, _LARGEST_FRAME)
        for port in self._ports_unsent:
            port.encode()
        for port in self._ports_unsent:  # together: ops of one come after those of another
            port.push()
        self._ports_unsent.clear()

    def _check(self) -> None:
        if not self._open:
            how = "was left" if self._entered else "is not entered"
            raise RuntimeError(f"calls belong inside the batch's block, which {how}")
        self._check_epoch()

    def _check_epoch(self) -> None:
        if self.memory.epoch is not self._epoch:
            raise self.core.lifecycle.why_over("the batch", self._epoch.generation)

    async def provide(self, blocks: Iterable[Block]) -> None:
        """Allocate memory for the given blocks that have none yet."""
        for block in dict.fromkeys(block.base for block in blocks):
            if block not in self._promised:
                continue
            nbytes, _ = self._promised[block]
            while not self.memory.provide(block, nbytes):
                try:
                    await self.core.growth.grow(nbytes)
                except OutOfMemory:
                    if not await self._another_is_done():
                        raise
                self._check_epoch()
            del self._promised[block]
            if block.epoch is None:  # freed before it had any: the deferred call holds it as long
                self.memory.free(block)

    async def _another_is_done(self) -> bool:
        """Wait for the oldest op in flight, which may free memory; return False without one."""
        for op in self._ops:
            if not op.answered:
                with contextlib.suppress(Exception):  # which is raised when its turn comes
                    await op.wait()
                return True
        return False

    def note_unawaited(self, call: CoroutineType[Any, Any, Any], facade: Facade[Any]) -> None:
        """Note a call of the device itself in the block, of which nothing is seen if forgotten."""
        library = facade.library
        owner = f"batch.{library}" if library else f"batch.using({type(facade).__name__.lower()})"
        self._unawaited.append((call, f"{owner}.{call.__name__}(...)"))
        if len(self._unawaited) == _CALLS:
            self._unawaited = [each for each in self._unawaited if not _has_begun(each[0])]

    def _look_for_unawaited(self, *, alert: bool) -> None:
        """Raise if an op of the device was called in the block and not awaited."""
        forgotten: list[str] = []
        while self._unawaited:
            call, write = self._unawaited.pop()
            # Nobody else has it: no variable of the program, and no task that will begin it.
            if not _has_begun(call) and sys.getrefcount(call) == _ONLY_HERE:
                call.close()  # or Python warns of it as well
                forgotten.append(write)
        if forgotten and alert:
            raise TypeError(
                "an op in a batch's block must be awaited or be the batch's, not neither, because "
                f"then it does nothing; write: {', '.join(reversed(forgotten))}"
            )

    # --- the end ----------------------------------------------------------------------------

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._open = False
        if self._around is None:
            del self.core.open_batches[self._task]
        else:
            self.core.open_batches[self._task] = self._around
        failure = error
        try:
            self._look_for_unawaited(alert=error is None)
            if error is None:
                await self._finish()
            else:
                await self._abandon()
        except BaseException as caught:
            failure = caught
            await self._abandon()
            raise
        finally:
            if self.recorder is not None:
                self.recorder.left(self, failure, body=error is not None)
            del failure  # its traceback has this frame in it
            await self._release_all()
        if error is not None:
            await trio.lowlevel.checkpoint()

    async def placed(self) -> None:
        """Wait until all that was collected so far has its place in the program's order."""
        self._check()
        while self.late:
            await self._place()
            if not (self._later or self._promised):  # no other task has added any meanwhile
                self.late = False
                self._wanted = self._lacking = 0

    async def _place(self) -> None:
        """Submit deferred calls, and allocate memory for their results."""
        promised = sum(nbytes for nbytes, _ in self._promised.values())
        lacking = min(self._lacking, promised)
        if lacking:  # for these, and the next batch that is like this one
            await self.core.growth.grow_ahead(lacking)
            self._check_epoch()
        while self._later:
            step = self._later.popleft()
            await step()
            del step  # including its objects, so that later calls can use its memory
        await self.provide(tuple(self._promised))

    async def _finish(self) -> None:
        errors: list[Exception] = []
        try:
            await self._place()
        except (ContextPoisoned, DeviceLost):
            raise
        except Exception as error:  # noqa: BLE001 - what comes after it is not begun
            error.add_note("in a batch, as its block was left")
            errors.append(error)
        waited = False
        for number in itertools.count(1):
            if not self._ops:
                break
            op = self._ops[0]
            failure: Exception | None = None
            if op.proof is None and op.succeeded:
                pass
            elif op.proof is not None or not op.answered:
                waited = True
                try:
                    await op.wait()
                except Exception as error:  # noqa: BLE001 - collected, and raised below
                    failure = error
            else:
                failure = op.take_error()
            self._ops.popleft()
            if failure is not None:
                failure.add_note(f"in a batch, at {op.name}")
                if isinstance(failure, ENDED):  # which has taken the others down, too
                    try:
                        raise failure
                    finally:
                        del failure, errors  # which would hold what holds them
                errors.append(failure)
            if number % _SLICE == 0:
                await trio.lowlevel.checkpoint()
        if not waited:
            await trio.lowlevel.checkpoint()
        if errors:
            several = ExceptionGroup("several ops of a batch failed", errors)
            try:
                raise several if len(errors) > 1 else errors[0]
            finally:
                failure = None  # none of them may hold what holds it
                del errors, several
        self._check_epoch()  # a fault after the last answer has taken the results down
        for data, (piece, _, _) in self._fetched:
            np.copyto(data, piece.view(len(data)))
            piece.release()
        self._fetched.clear()
        for done in self._done:
            done()

    async def _release_all(self) -> None:
        """Drop all references, to free temporary buffers now, before garbage collection."""
        self._drop_libraries()
        self._promised.clear()
        self._done.clear()
        self.scratch.clear()
        for pieces in (self._ops, self._made, self._later):
            await _drop(pieces)
        self.memory.collect(SLICE)  # also of deferred calls that are not done

    async def _abandon(self) -> None:
        """Withdraw ops that are not sent, and free the batch's refs."""
        if self.memory.epoch is self._epoch:  # else the fault has taken the ops down
            for op in self._ops:
                op.withdraw()
        for _, (piece, op, host) in self._fetched:
            after(self.core, host, op, piece.release)
        self._fetched.clear()
        for number, made in enumerate(self._made, 1):
            block = made()
            # Dropped refs are free already, and refs of another generation are refused anyway.
            if block is not None and block.epoch is self.memory.epoch:
                self.memory.free(block)
            del block
            if number % _SLICE == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()


def _has_begun(call: CoroutineType[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(call) != inspect.CORO_CREATED


async def _drop(pieces: MutableSequence[Any]) -> None:
    """Empty a sequence that may hold thousands of objects, in slices."""
    for number in range(len(pieces), 0, -1):
        pieces.pop()
        if number % _SLICE == 0:
            await trio.lowlevel.cancel_shielded_checkpoint()
