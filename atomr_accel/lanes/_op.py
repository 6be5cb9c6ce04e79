"""One request on its way to a lane, and its answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import msgspec
import trio

from ..wire import WITHDRAWN
from ._interrupts import uninterrupted
from .instrument import UNMEASURED, op_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..memory import Block
    from ..wire import CallByTemplate, Message
    from ._port import Port
    from .instrument import MeasuredTimes, OpTimes, Outcome, WatchedDevice


UNTIMED: Final = -1
"""Submission time of an op whose times are not taken. Instruments that count ops count it."""

UNWATCHED: Final = 0
"""Submission time of an op that no instrument watched. It is not counted."""


@final
class MessageTemplate(msgspec.Struct, frozen=True, eq=False):
    """A message with places for addresses, which a lane's host keeps after the first call.

    Attributes:
        number: its number in the host, until another template replaces it.
        encoded: the message.
        returns: the type of its value, as for a message.
        unchecked: whether it can go out of bounds, as for a message.
    """

    number: int
    encoded: msgspec.Raw
    returns: Any = None
    unchecked: bool = False

    # Templates have none of these properties of messages.
    required: ClassVar[bool] = False
    lasting: ClassVar[bool] = False
    bulky: ClassVar[bool] = False
    pickles: ClassVar[bool] = False


@final
@uninterrupted
class Op(msgspec.Struct, eq=False, weakref=True):
    """One request on its way: submitted, sent, answered.

    Attributes:
        port: the lane that executes it.
        seq: its place in the device's program order.
        name: its name, such as ``"blas.gemm"``.
        message: the message for the lane.
        reads: the blocks it reads, until it is answered.
        writes: the blocks it writes, until it is answered.
        payload: the call that names the template, if ``message`` is a template.
        dependencies: ``(lane, seq)`` of the ops in flight it must come after.
        sent: whether it was handed to the socket; until then it can be withdrawn.
        answered: whether it is over, with any outcome.
        withdrawn: whether the host does nothing for it.
        task: the task that waits for it, if any.
        value: the value of the answer, if it has one.
        on_answer: called once it is over.
        proof: the op that digests the durable buffers which this one writes, if any. Waiting for
            this op includes it.
        submitted_at: when it was submitted, if an instrument wants times (see ``OpTimes``); else
            ``UNTIMED`` or ``UNWATCHED``.
        sent_at: when it was sent, if times are taken.
        answered_at: when it was answered, if times are taken.
        measured: the host times of the op, if times are taken.
    """

    port: Port
    seq: int
    name: str
    message: Message | MessageTemplate
    reads: Iterable[Block]
    writes: Iterable[Block]
    payload: CallByTemplate | None = None
    dependencies: tuple[tuple[int, int], ...] = ()
    sent: bool = False
    answered: bool = False
    withdrawn: bool = False
    task: trio.lowlevel.Task | None = None
    value: Any = None
    on_answer: Callable[[], None] | None = None
    proof: Op | None = None
    submitted_at: int = UNTIMED
    sent_at: int = 0
    answered_at: int = 0
    measured: MeasuredTimes | None = None
    _error: Exception | None = None
    _make_error: Callable[[Op], Exception] | None = None

    async def wait(self) -> Any:
        """Wait for the result. A cancelled caller withdraws the op if it has not been sent.

        The caller gets the error, and the op keeps a copy. Otherwise the op and the error would
        hold each other, and all frames of the traceback, until the next garbage collection.
        """
        if self.answered:
            await trio.lowlevel.checkpoint()
        else:
            assert self.task is None, f"another task waits for {self.name}; use when_answered"
            self.task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self.proof is not None:
            await self._wait_proven(self.proof)
        if self._error is None and self._make_error is None:
            return self.value
        error = self.take_error()
        assert error is not None
        try:
            raise error
        finally:
            del error

    async def _wait_proven(self, proof: Op) -> None:
        """Wait for the digests of what the op has written, also if it has failed."""
        try:
            await proof.wait()
        except Exception:
            if self._error is None and self._make_error is None:
                raise

    @property
    def succeeded(self) -> bool:
        """True if the op is over without an error."""
        return self.answered and self._error is None and self._make_error is None

    @property
    def error(self) -> Exception | None:
        """Error with which the op failed, once it is answered.

        The error is created on first use. A fault that ends thousands of ops thus creates each
        error only when its task runs.
        """
        if self._make_error is not None:
            self._error, self._make_error = self._make_error(self), None
        return self._error

    def take_error(self) -> Exception | None:
        """Return the error for a caller that raises it, and keep a copy: see ``wait``."""
        error = self.error
        if error is not None:
            self._error = _like(error)
        return error

    # --- for instruments: see ``_instrument`` -----------------------------------------------

    @property
    def lane(self) -> str:
        """Name of its lane."""
        return self.port.name

    @property
    def device(self) -> WatchedDevice:
        """Device of the op."""
        return self.port.device

    @property
    def nbytes(self) -> int:
        """Bytes that the op copies or fills; 0 for other ops, and after the answer."""
        nbytes: int = getattr(self.message, "nbytes", 0)
        return nbytes

    @property
    def times(self) -> OpTimes | None:
        """Times of the op so far; None if no instrument wanted times when it was submitted."""
        if self.submitted_at <= UNWATCHED:
            return None
        row = UNMEASURED if self.measured is None else self.measured.rows[self.seq]
        return op_times(self.submitted_at, self.sent_at, self.answered_at, row)

    @property
    def outcome(self) -> Outcome:
        """Outcome of the op, right before it is answered."""
        if self._make_error is not None:
            return "lost"
        if self._error is not None:
            return "failed"
        return "withdrawn" if self.withdrawn else "done"

    def result(self) -> Any:
        """Return the result of an answered op, or raise its error."""
        if self._error is None and self._make_error is None:
            return self.value
        error = self.error
        assert error is not None
        try:
            raise error
        finally:
            del error

    def wake(self) -> None:
        """Let the caller go on, if it still waits."""
        if self.task is not None:
            self.port.due += 1  # it runs in this turn, and is likely to submit again
            trio.lowlevel.reschedule(self.task)
            self.task = None

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the op is over, however; now, if it is already."""
        if self.answered:
            callback()
        elif self.on_answer is None:
            self.on_answer = callback
        else:
            self.on_answer = partial(_call_both, self.on_answer, callback)

    def withdraw(self) -> None:
        """Let the host do nothing for it, if it is not on its way there yet."""
        if not self.sent and not self.message.required:
            self.message, self.payload, self.withdrawn = WITHDRAWN, None, True

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        # The caller leaves now. If the host has the op, the op keeps its buffers until it is
        # answered, so that memory under a running kernel is not reused. If not, it is sent
        # as an empty op, because others may be ordered after it.
        self.task = None
        self.withdraw()
        return trio.lowlevel.Abort.SUCCEEDED


def _call_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def _like(error: Exception) -> Exception:
    """Return a copy of an error without its traceback."""
    try:
        like = type(error).__new__(type(error), *error.args)
        like.args = error.args
        vars(like).update(vars(error))
    except Exception:  # noqa: BLE001 (made by the program's own code, which may do anything)
        return error
    like.__cause__ = error.__cause__
    return like
