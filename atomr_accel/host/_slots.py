"""A stream of a lane, its executor, and the ops queued there."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, final

from ..wire import (
    Elapsed,
    ForgetEvent,
    RecordEvent,
)
from ..wire.messages import Withdrawn
from .templates import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..wire.interface import Executor, Fusion, HostContext, Stream
    from ._lane import Lane
    from .templates import HostTemplate


def _refuse(message: Malformed) -> None:
    raise TypeError(f"no handler of the lane takes the message: {message.why}")


def _nothing(_message: object) -> None:
    """Do nothing, as the op is withdrawn."""


@final
class OpGroup:
    """Ops that are answered together, once the device is done with them.

    Attributes:
        ops: their sequence numbers and results, in order.
        token: the token at which all are done.
        steps: tokens of some of them, with the number of ops that are done then.
        since: the time when the last step was reached, or when the group was complete.
    """

    __slots__ = ("gone", "ops", "since", "steps", "token")

    def __init__(self, ops: list[tuple[int, Any]], token: Any, steps: deque[tuple[int, Any]]):
        self.ops = ops
        self.token = token
        self.steps = steps
        self.since = time.perf_counter() if steps else 0.0
        self.gone = 0

    def take(self, count: int) -> list[tuple[int, Any]]:
        """Take the first ``count`` ops, without those taken before."""
        taken, self.ops = self.ops[: count - self.gone], self.ops[count - self.gone :]
        self.gone = count
        self.since = time.perf_counter()
        return taken


@final
class StreamSlot:
    """A stream, its executor, and the ops queued there.

    Args:
        fuse: whether ops that come together may be launched together.

    Attributes:
        lane: the lane of the slot.
        number: its number in the lane.
        unmarked: launched ops with their results that are not in a group yet.
        steps: tokens of some of them, with the number of ops that are done when the token is.
        in_flight: groups of ops, in order.
    """

    __slots__ = (
        "_prepare",
        "executor",
        "fusions",
        "handlers",
        "in_flight",
        "lane",
        "number",
        "steps",
        "stream",
        "unmarked",
    )

    def __init__(
        self,
        context: HostContext,
        stream: Stream,
        executor: Executor,
        *,
        fuse: bool = True,
    ) -> None:
        self.lane: Lane | None = None
        self.number = 0
        self.stream = stream
        self.executor = executor
        self.fusions: Mapping[type, Fusion] = getattr(executor, "fusions", {}) if fuse else {}
        self.handlers = {
            Withdrawn: _nothing,
            Malformed: _refuse,
            RecordEvent: lambda message: stream.timestamp(message.event),
            ForgetEvent: lambda message: context.forget_event(message.event),
            Elapsed: lambda message: context.elapsed(message.start, message.end),
            **executor.handlers,
        }
        self._prepare = getattr(executor, "preparers", {})
        self.unmarked: list[tuple[int, Any]] = []
        self.steps: deque[tuple[int, Any]] = deque()
        self.in_flight: deque[OpGroup] = deque()

    def prepare_call(self, template: HostTemplate) -> Callable[[Sequence[int]], Any]:
        """Return the function that makes a template's calls here, and keep it in the template."""
        prepare = self._prepare.get(template.kind)
        call: Callable[[Sequence[int]], Any] | None = prepare and prepare(template)
        if call is None:
            call = template.caller(self.handlers[template.kind])
        template.calls[self] = call
        return call
