"""A stream of a lane, its executor, and the ops queued there."""

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

    from ..wire.interface import Executor, Fusion, HostContext, Stream
    from ._lane import Lane
<<<<<<< HEAD
    from ._protocol import Executor, Fusion, HostContext, Stream

_UINT64: Final = b"\xcf"
"""Prefix that msgpack writes before a number of 64 bits."""


@final
class Template:
    """A message with places for addresses.

    Args:
        encoded: the encoded message, with ``PLACE | i`` for the i-th address.
        decode: reads messages of its lane.

    Attributes:
        message: the decoded message.
        kind: its type.
        count: number of addresses that it takes.
        calls: the functions that make its calls, given addresses, by the slot that makes them.

    Raises:
        ProtocolViolation: the message is invalid.
    """

    __slots__ = ("_decode", "_encoded", "_fill", "calls", "count", "kind", "message")

    def __init__(self, encoded: bytes, decode: Callable[[Any], Message]) -> None:
        try:
            self.message: Final = decode(encoded)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolViolation(f"a template cannot be read: {error}") from error
        self.kind: Final = type(self.message)
        self.calls: Final[dict[StreamSlot, Callable[[Sequence[int]], Any]]] = {}
        places = _places(self.message)
        self.count: Final = len(places)
        markers = [_UINT64 + (PLACE | at).to_bytes(8, "big") for at in range(self.count)]
        starts = [encoded.find(marker) for marker in markers]
        once = all(encoded.count(marker) == 1 for marker in markers)
        if not once or starts != sorted(starts) or sorted(places) != [*range(self.count)]:
            raise ProtocolViolation(f"a template has the places {places}")
        layout, pieces, end = ">", [], 0
        for start in starts:
            pieces.append(encoded[end : start + 1])
            layout += f"{start + 1 - end}sQ"
            end = start + 9
        layout += f"{len(encoded) - end}s"
        self._encoded: Final = (*pieces, encoded[end:])
        self._fill: Final = struct.Struct(layout).pack
        self._decode: Final = decode

    def filled(self, addresses: Sequence[int]) -> Message:
        """The message of a call."""
        message: Message = self.caller(_same)(addresses)
        return message

    def caller(self, handler: Callable[[Any], Any]) -> Callable[[Sequence[int]], Any]:
        """Return a function that has ``handler`` execute the message of a call."""
        encoded, fill, decode = self._encoded, self._fill, self._decode
        parts: list[Any] = [None] * (2 * self.count + 1)
        parts[::2] = encoded

        def call(addresses: Sequence[int]) -> Any:
            parts[1::2] = addresses
            return handler(decode(fill(*parts)))

        return call


@final
class Templates:
    """The call templates of a lane, by number.

    Args:
        decode: reads messages of the lane.
    """

    def __init__(self, decode: Callable[[Any], Message]) -> None:
        self._decode = decode
        self._known: dict[int, Template] = {}

    def add(self, request: CallWithTemplate) -> Template | None:
        """Keep the template of a call; what had its number before.

        Raises:
            ProtocolViolation: it cannot be.
        """
        number = request.number
        if not 0 <= number < MOST_TEMPLATES:
            raise ProtocolViolation(f"a template has the number {number}")
        former = self._known.get(number)
        self._known[number] = Template(bytes(request.message), self._decode)
        return former

    def find(self, request: CallWithTemplate | CallByTemplate) -> Template:
        """Return the template of a call.

        Raises:
            ProtocolViolation: the template does not exist, or takes other addresses.
        """
        template = self._known.get(request.number)
        if template is None or len(request.addresses) != template.count:
            raise ProtocolViolation(
                f"no template {request.number} takes {len(request.addresses)} addresses"
            )
        return template


def _places(value: Any) -> list[int]:
    """The places in a message."""
    if type(value) is int:
        return [value ^ PLACE] if value >= PLACE else []
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        value = [*value, *value.values()]
    elif not isinstance(value, (list, tuple)):
        return []
    return [place for each in value for place in _places(each)]
=======
    from .templates import Template
>>>>>>> h31-seam


class Malformed(Message, frozen=True):
    """Stands for a message that no executor can read."""

    why: str


def _refuse(message: Malformed) -> None:
    raise TypeError(message.why)


def _same(message: Message) -> Message:
    """Return the message itself."""
    return message


def _nothing(_message: object) -> None:
    """Do nothing, as the op is withdrawn."""


@final
class Group:
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
        number: the stream's number if lanes share streams. Each lane has one slot of that number.
        fuse: whether ops that come together may be launched together.

    Attributes:
        lane: the lane of the slot.
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
            **executor.handlers,
        }
        self._prepare = getattr(executor, "preparers", {})
        self.unmarked: list[tuple[int, Any]] = []
        self.steps: deque[tuple[int, Any]] = deque()
        self.in_flight: deque[Group] = deque()

    def prepare_call(self, template: Template) -> Callable[[Sequence[int]], Any]:
        """Return the function that makes a template's calls here, and keep it in the template."""
        prepare = self._prepare.get(template.kind)
        call: Callable[[Sequence[int]], Any] | None = prepare and prepare(template)
        if call is None:
            call = template.caller(self.handlers[template.kind])
        template.calls[self] = call
        return call
