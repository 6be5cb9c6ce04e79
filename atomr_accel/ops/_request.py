"""Requests: calls as values.

The methods of a library check their arguments and make a request. A request can be awaited
(``perform``), collected in a batch or a recording (``device/batches``), or sent to the
library's actor as a message.

A request asks its preparer for memory for results, and for the answers of other requests that come
first. If the preparer has to wait for one of these, it then prepares the request again from the
beginning, because a rebuild may have happened. So ``prepare`` may be called several times. It then
receives the same things again, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

import msgspec

from ..actors import Message
from ..arrays import GpuRef  # with those below, since help() evaluates the fields of a Struct
from ..memory import Block, MemoryMap
from ._library import LaneSpec

if TYPE_CHECKING:
    import numpy as np

    from .. import wire
    from ._library import DeviceView

T = TypeVar("T")


class Answered(msgspec.Struct, frozen=True):
    """Callable that makes a result from the lane's answer and from buffers.

    It is the ``finish`` of requests whose calls may have templates: calls with one signature
    differ in the buffers alone.

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
        finish: makes the result from the lane's answer.
        sent: called right before it is submitted.
        placed: called once the op, with those before and after it, has its place in the program's
            order. Ops that are submitted from then on see its writes.
        done: called after the op has succeeded; for an op of a batch, after the whole batch has.
            Never called for an op that is only recorded.
        answers: whether the result comes from the lane's answer. Batches and recordings, which have
            no answers, refuse such a request.
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

    @property
    def answers(self) -> bool:
        """Return whether the result comes from the lane's answer."""
        returns = None if self.message is None else self.message.returns
        return self.finish is not None or (self.result is None and returns is not None)

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


class TemplatePreparer(Preparer, Protocol):
    """A preparer of calls that have templates."""

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef | None:
        """Return an uninitialised result of ``nbytes`` bytes, or None if making it has to wait."""


class Preparing:
    """Answers of all preparers that carry requests out. A template's maker notes them instead."""

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
        home: memory of the only device that can carry it out; if None, the buffers decide.
    """

    lane: LaneSpec
    name: str
    prepare: Callable[[Preparer], Submission[T]]
    key: Hashable = None
    home: MemoryMap | None = None

    if not TYPE_CHECKING:  # to type checkers, it is nothing to be awaited

        def __await__(self) -> NoReturn:
            raise TypeError(
                f"{self.name} is a request, which is sent and not awaited itself; write "
                "`await device.ref.ask(request)`, or `batch.perform(request)` in a batch"
            )


class DurableRoom(msgspec.Struct, frozen=True):
    """A need for memory that survives, for a buffer of ``nbytes``."""

    nbytes: int


class Pending(Exception):
    """Signals that a request has to wait: for memory, a lane, or the answer to another request."""

    def __init__(
        self, wanted: tuple[tuple[int, ...], np.dtype[Any]] | DurableRoom | Request[Any] | LaneSpec
    ) -> None:
        super().__init__()
        self.wanted = wanted
