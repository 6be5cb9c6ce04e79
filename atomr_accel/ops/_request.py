"""Requests: calls as values.

The methods of a library check their arguments and make a request. A request can be awaited
(``perform``, here), collected in a batch or a recording (``device/batches``), or sent to the
library's actor as a message.

A request asks its preparer for memory for results, and for the answers of other requests that come
first. If the preparer has to wait for one of these, it then prepares the request again from the
beginning, because a rebuild may have happened. So ``prepare`` may be called several times. It then
receives the same things again, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar, final

import msgspec
import trio

from ..actors import Message

if TYPE_CHECKING:
    import numpy as np

    from .. import wire
    from ..memory import Block, Epoch, GpuRef, MemoryMap
    from ._library import DeviceView, LaneSpec, OpSubmitter, Submitted
    from ._traces import Trace

T = TypeVar("T")


class Answered(msgspec.Struct, frozen=True):
    """Callable that makes a result from the lane's answer and from buffers.

    It is the ``finish`` of requests whose calls may be traced: calls with one signature differ in
    the buffers alone.

    Attributes:
        make: returns the result of an answer and the buffers.
        refs: the buffers.
    """

    make: Callable[[Any, tuple[GpuRef, ...]], Any]
    refs: tuple[GpuRef, ...]

    def __call__(self, answer: Any) -> Any:
        """Return the result."""
        return self.make(answer, self.refs)


class Submission(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A request that is ready to be submitted now.

    Attributes:
        message: the message that the lane executes; None if there is nothing to execute.
        reads: the blocks it reads.
        writes: the blocks it writes.
        result: the caller's result; if None, the lane's answer.
        finish: makes the result from the lane's answer. Such a request cannot be in a batch.
        sent: called right before it is submitted.
        placed: called once the op, with those before and after it, has its place in the program's
            order. Ops that are submitted from then on see its writes.
        done: called after the op has succeeded; for an op of a batch, after the whole batch has.
            Never called for an op that is only recorded.
        before: requests that are submitted right before it, with nothing in between. They may have
            such requests themselves; their results are not used.
        after: requests that are submitted right after it. ``around`` adds to both.
    """

    message: Any
    reads: Iterable[Block]
    writes: Iterable[Block]
    result: T | None = None
    finish: Callable[[Any], T] | None = None
    sent: Callable[[], None] | None = None
    placed: Callable[[], None] | None = None
    done: Callable[[], None] | None = None
    before: tuple[Request[Any], ...] = ()
    after: tuple[Request[Any], ...] = ()

    def around(
        self, before: Iterable[Request[Any]] = (), after: Iterable[Request[Any]] = ()
    ) -> Submission[T]:
        """Return a copy with further steps, outside those that it has."""
        return msgspec.structs.replace(
            self, before=(*before, *self.before), after=(*self.after, *after)
        )

    def steps(self, request: Request[T], preparer: Preparer) -> list[Step]:
        """Return all steps of a request in order: those before, the request itself, those after."""
        return [
            *_steps_of(self.before, preparer),
            (request, self),
            *_steps_of(self.after, preparer),
        ]


Step = tuple["Request[Any]", Submission[Any]]
"""A request and its submission."""


def _steps_of(requests: Iterable[Request[Any]], preparer: Preparer) -> list[Step]:
    return [step for each in requests for step in each.prepare(preparer).steps(each, preparer)]


class HostObjects(Protocol):
    """Owner of executors, in which ops keep things for later ops."""

    def keep(self, lane: str, name: str, release: wire.Message) -> Block:
        """Return a block that stands for something that the host keeps; see ``DeviceView.keep``."""


class Preparer(Protocol):
    """Interface that a request uses while it is prepared."""

    @property
    def home(self) -> DeviceView:
        """Device, batch or recording that executes the request.

        Libraries use it as the key of things that they keep for it, such as workspaces.
        """

    @property
    def memory(self) -> MemoryMap:
        """The map of the device's memory."""

    @property
    def host_objects(self) -> HostObjects:
        """Device or recording in which ops keep things for later ops."""

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer, for a result or as scratch memory."""

    def obtain(self, make: Callable[[Preparer], Block]) -> Block:
        """Return a block other than arguments and outputs, which each call has to ask for.

        Args:
            make: returns the block: a workspace, or one that stands for something in the host.
        """

    def depends(self, still: Callable[[], bool]) -> None:
        """Declare that the submission depends on more than the arguments.

        Args:
            still: called before a later call with the same signature skips its preparation. It
                returns whether preparing again would give the same submission.
        """

    def stand_in(self, ref: GpuRef) -> GpuRef:
        """Return the ref to use for a buffer inside an argument, such as an expression.

        In a recording, this is the ref that ``replay`` can replace by another.
        """

    def perform(self, request: Request[T]) -> T | None:
        """Have another request carried out first.

        Returns:
            Its result; None if results come later, as in a batch.
        """


class TracedPreparer(Preparer, Protocol):
    """A preparer of calls that were traced."""

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef | None:
        """Return an uninitialised result of ``nbytes`` bytes, or None if making it has to wait."""


class Preparing:
    """Answers of all preparers that carry requests out. One that traces notes them instead."""

    __slots__ = ()

    def obtain(self: Any, make: Callable[[Preparer], Block]) -> Block:
        """Return the block that ``make`` gives."""
        return make(self)

    def depends(self, still: Callable[[], bool]) -> None:
        """Do nothing: the request was prepared just now."""

    def stand_in(self, ref: GpuRef) -> GpuRef:
        """Return the buffer itself."""
        return ref


class Request(Message[T], Generic[T], frozen=True):
    """An op to be executed.

    Attributes:
        lane: the lane that executes it.
        name: the op's name, such as ``"blas.gemm"``.
        prepare: checks that its buffers are valid now, and makes its outputs.
        key: identifies the answer if another request performs this one first. Equal keys share one
            answer. Without keys, answers are matched by their order. A request that keeps an
            answer, and so does not ask for it when it is prepared again, needs a key.
    """

    lane: LaneSpec
    name: str
    prepare: Callable[[Preparer], Submission[T]]
    key: Hashable = None

    if not TYPE_CHECKING:  # to type checkers, it is nothing to be awaited

        def __await__(self) -> NoReturn:
            raise TypeError(
                f"{self.name} is a request, which is sent and not awaited itself: to its library's "
                "actor, as in `await device.blas.ref.ask(request)`, or in a batch by "
                "`batch.perform(request)`"
            )


class Pending(Exception):
    """Signals that a request has to wait: for memory, a lane, or the answer to another request."""

    def __init__(
        self, wanted: tuple[tuple[int, ...], np.dtype[Any]] | Request[Any] | LaneSpec
    ) -> None:
        super().__init__()
        self.wanted = wanted


@final
class ImmediatePreparer(Preparing):
    """Preparer of requests that find all they need; the device has one."""

    __slots__ = ("home", "host_objects", "memory", "try_empty")

    def __init__(self, device: OpSubmitter) -> None:
        self.home: Final[DeviceView] = device
        self.host_objects: Final[HostObjects] = device
        self.memory: Final = device.memory
        self.try_empty: Final = device.try_empty

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer, if memory is free right now."""
        made = self.try_empty(shape, dtype, math.prod(shape) * dtype.itemsize)
        if made is None:
            raise Pending((shape, dtype))
        return made

    def perform(self, request: Request[T]) -> T | None:
        """Raise ``Pending``: no answer has arrived yet."""
        raise Pending(request)


@final
class WaitingPreparer(Preparing):
    """Preparer of a request that had to wait: it keeps the results of the waits."""

    __slots__ = (
        *("_answered", "_answers", "_by_key", "_device", "_given", "_made"),
        *("home", "host_objects", "memory"),
    )

    def __init__(self, device: OpSubmitter) -> None:
        self._device = device
        self.home: Final[DeviceView] = device
        self.host_objects: Final[HostObjects] = device
        self.memory: Final = device.memory
        self._made: list[GpuRef] = []
        self._answers: list[tuple[Epoch, Any]] = []
        self._by_key: dict[Hashable, tuple[Epoch, Any]] = {}
        self._given = self._answered = 0

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer; the one made at this point before, if still valid."""
        if self._given < len(self._made):
            ref = self._made[self._given]
            known = ref.shape == shape and ref.dtype is dtype
            if known and ref._block.epoch is self.memory.epoch:
                self._given += 1
                return ref
            del self._made[self._given :]
        made = self._device.try_empty(shape, dtype, math.prod(shape) * dtype.itemsize)
        if made is None:
            raise Pending((shape, dtype))
        self._made.append(made)
        self._given += 1
        return made

    def perform(self, request: Request[T]) -> T | None:
        """Return the answer; one of an older generation does not count."""
        if request.key is not None:
            found_epoch, answer = self._by_key.get(request.key, (None, None))
            if found_epoch is not self.memory.epoch:
                raise Pending(request)
            return answer
        if self._answered < len(self._answers):
            epoch, answer = self._answers[self._answered]
            if epoch is self.memory.epoch:
                self._answered += 1
                found: T = answer
                return found
            del self._answers[self._answered :]
        raise Pending(request)

    async def provide(self, wanted: Any) -> None:
        """Wait for the missing thing, and begin again."""
        if isinstance(wanted, Request):
            epoch = self.memory.epoch
            answer = await perform(self._device, wanted)
            if wanted.key is None:
                self._answers.append((epoch, answer))
            else:
                self._by_key[wanted.key] = epoch, answer
        elif isinstance(wanted, tuple):
            self._made.append(await self._device.empty(*wanted))
        else:
            await self._device.open_lane(wanted)
        self._given = self._answered = 0


@final
class _Nothing:
    """Stands for the op if there is nothing to execute."""

    async def wait(self) -> None:
        """Return after a checkpoint."""
        await trio.lowlevel.checkpoint()


_NOTHING: Final = _Nothing()


@final
class _Together:
    """An op with those before and after it."""

    def __init__(self, op: Submitted, before: list[Any], after: list[Any]) -> None:
        self._op = op
        self._before = before
        self._after = after

    async def wait(self) -> Any:
        """Wait for all ops; return the answer of the main one.

        Cancellation withdraws the main op and the ops after it, because only their effects are
        visible to others. Ops before it are not withdrawn, since the main op may be on its way.
        """
        try:
            answer = await self._op.wait()
        except trio.Cancelled:
            after = [op for op in self._after if op is not _NOTHING]
            if not any(op.sent for op in after):
                for op in after:
                    op.withdraw()
            raise
        for op in (*self._before, *self._after):
            if op is not _NOTHING:
                await op.wait()
        return answer


def submit(
    device: OpSubmitter, request: Request[T], preparer: ImmediatePreparer | WaitingPreparer
) -> tuple[Submission[T], Submitted]:
    """Submit a request now.

    Returns:
        The submission, and the op on its way.

    Raises:
        Pending: the request has to wait for something first.
    """
    submission = request.prepare(preparer)
    port = device.ports.get(request.lane.name)
    if port is None:
        raise Pending(request.lane)
    op: Submitted
    if submission.before or submission.after:
        op = _submit_all(device, request, submission, preparer)
    elif submission.message is None:
        op = _NOTHING
    else:
        if submission.sent is not None:
            submission.sent()
        op = device.submit(
            port, request.name, submission.message, submission.reads, submission.writes
        )
    if submission.placed is not None:
        submission.placed()
    return submission, op


def _submit_all(
    device: OpSubmitter,
    request: Request[T],
    submission: Submission[T],
    preparer: ImmediatePreparer | WaitingPreparer,
) -> Submitted:
    """Submit a request with the requests before and after it, once all are known to be ready."""
    steps = submission.steps(request, preparer)
    for each, _ in steps:
        if each.lane.name not in device.ports:
            raise Pending(each.lane)
    if submission.sent is not None:
        submission.sent()
    ops: list[Any] = [
        _NOTHING
        if made.message is None
        else device.submit(
            device.ports[each.lane.name], each.name, made.message, made.reads, made.writes
        )
        for each, made in steps
    ]
    at = next(at for at, (_, made) in enumerate(steps) if made is submission)
    return _Together(ops[at], ops[:at], ops[at + 1 :])


def send(
    device: OpSubmitter, trace: Trace, refs: list[GpuRef], words: list[int]
) -> tuple[Any, Submitted] | None:
    """Submit a call that was traced; its result, and the op on its way.

    None where something has to be waited for first: then it is made in full.
    """
    ports = device.ports
    if not trace.lanes <= ports.keys():
        return None
    try:
        addresses, blocks, result = trace.call(device.first_try, refs, words)
    except Pending:
        return None
    if len(trace.ops) == 1:
        only = trace.ops[0]
        return result, only.submit(device, ports[only.lane], addresses, blocks)
    ops = [each.submit(device, ports[each.lane], addresses, blocks) for each in trace.ops]
    return result, _Together(ops[trace.own], ops[: trace.own], ops[trace.own + 1 :])


async def result(submission: Submission[T], op: Submitted) -> T:
    """Wait for a submission; return its result."""
    answer = await op.wait()
    if submission.done is not None:
        submission.done()
    if submission.finish is not None:
        return submission.finish(answer)
    given: Any = answer if submission.result is None else submission.result
    return given  # type: ignore[no-any-return]


async def perform(
    device: OpSubmitter, request: Request[T], submitted: Callable[[], object] | None = None
) -> T:
    """Carry out a request: submit it, with nothing awaited since it was prepared, and wait.

    Args:
        device: the device that carries it out.
        request: the request to carry out.
        submitted: called as soon as it has its place in the program's order.

    Returns:
        Its result.
    """
    preparer: ImmediatePreparer | WaitingPreparer = device.first_try
    while True:
        try:
            submission, op = submit(device, request, preparer)
        except Pending as pending:
            wanted: Any = pending.wanted
        else:
            if submitted is not None:
                submitted()
            return await result(submission, op)
        if not isinstance(preparer, WaitingPreparer):
            preparer = WaitingPreparer(device)
        await preparer.provide(wanted)
