"""A stream of a lane: what executes ops there, and those that are queued."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, final

from ..wire import (
    CallByTemplate,
    CallWithTemplate,
    Elapsed,
    ForgetEvent,
    Message,
    RecordEvent,
)
from ..wire._messages import Withdrawn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ._lane import Lane
    from ._protocol import Executor, Fusion, HostContext, Stream
    from ._templates import Template


class Malformed(Message, frozen=True):
    """What is executed in the place of a message that no executor can read."""

    why: str


def _refuse(message: Malformed) -> None:
    raise TypeError(message.why)


def _nothing(_message: object) -> None:
    """What a withdrawn op does."""


@final
class Later:
    """What a handler returns whose answer only the device knows, once it is done with the op.

    Attributes:
        read: gives the answer then, or raises what the op failed with. It is called in the lane's
            thread, and waits for nothing: what it reads the handler has had copied here.
    """

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read


@final
class Group:
    """Ops that are answered together, once the device is done with them.

    Attributes:
        ops: their numbers and results, in order.
        token: tells when all are done.
        steps: tokens of some of them, with how many ops are done by then.
        since: when the last of these was reached, or when the group was complete.
    """

    __slots__ = ("gone", "ops", "since", "steps", "token")

    def __init__(self, ops: list[tuple[int, Any]], token: Any, steps: deque[tuple[int, Any]]):
        self.ops = ops
        self.token = token
        self.steps = steps
        self.since = time.perf_counter() if steps else 0.0
        self.gone = 0

    def take(self, count: int) -> list[tuple[int, Any]]:
        """The ops that are done when ``count`` are, without those taken before."""
        taken, self.ops = self.ops[: count - self.gone], self.ops[count - self.gone :]
        self.gone = count
        self.since = time.perf_counter()
        return taken


@final
class StreamSlot:
    """A stream, its executor, and what is queued there.

    Args:
        number: that of its stream, where lanes share streams: there is one slot of that number
            in each lane.
        fuse: whether ops that come together may be launched together.

    Attributes:
        lane: whose slot it is.
        unmarked: launched ops with their results, not in a group yet.
        steps: tokens of some of them, with how many of them are done by then.
        in_flight: groups of ops, in order.
    """

    __slots__ = (
        "_calls",
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
        number: int | None = None,
        *,
        fuse: bool = True,
    ) -> None:
        self.lane: Lane | None = None
        self.number = number
        self.stream = stream
        self.executor = executor
        self.fusions: Mapping[type, Fusion] = getattr(executor, "fusions", {}) if fuse else {}
        self.handlers = {
            Withdrawn: _nothing,
            Malformed: _refuse,
            RecordEvent: lambda message: stream.timestamp(message.event),
            ForgetEvent: lambda message: context.forget_event(message.event),
            Elapsed: lambda message: context.elapsed(message.start, message.end),
            CallWithTemplate: self._execute,
            CallByTemplate: self._execute,
            **executor.handlers,
        }
        self._prepare = getattr(executor, "preparers", {})
        self._calls: dict[int, Callable[[Sequence[int]], Any]] = {}
        self.unmarked: list[tuple[int, Any]] = []
        self.steps: deque[tuple[int, Any]] = deque()
        self.in_flight: deque[Group] = deque()

    def _execute(self, request: CallWithTemplate | CallByTemplate) -> Any:
        """A call by a template, which was found to be there when the request was accepted."""
        call = self._calls.get(request.number)
        if call is None:
            assert self.lane is not None
            template = self.lane.templates.find(request)
            call = self._calls[request.number] = self._prepared(template)
        return call(request.addresses)

    def forget(self, number: int) -> None:
        """Another template takes the place of one."""
        self._calls.pop(number, None)

    def _prepared(self, template: Template) -> Callable[[Sequence[int]], Any]:
        """What executes a message, given addresses."""
        prepare = self._prepare.get(template.kind)
        call: Callable[[Sequence[int]], Any] | None = prepare and prepare(template)
        if call is not None:
            return call
        handler = self.handlers[template.kind]
        return lambda addresses: handler(template.filled(addresses))
