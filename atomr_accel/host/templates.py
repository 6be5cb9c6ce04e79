"""Call templates in a host: calls that differ only in addresses share one, which is sent once."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ..wire import (
    MOST_TEMPLATES,
    PLACE,
    CallByTemplate,
    CallWithTemplate,
    Message,
    ProtocolViolation,
    filled_fields,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UINT64: Final = b"\xcf"
"""Prefix that msgpack writes before a number of 64 bits."""


class Malformed(Message, frozen=True):
    """Stands for a message that no executor can read."""

    why: str


@final
class HostTemplate:
    """A message with places for addresses.

    Args:
        encoded: the encoded message, with ``PLACE | i`` for the i-th address.
        decode: reads messages of its lane.

    Attributes:
        message: the decoded message; ``Malformed`` if no executor can read it.
        kind: its type.
        count: number of addresses that it takes; None for any.
        calls: the functions that make its calls, given addresses, by the slot that makes them.
    """

    __slots__ = ("_decode", "_encoded", "_fill", "calls", "count", "kind", "message")

    def __init__(self, encoded: bytes, decode: Callable[[Any], Message]) -> None:
        self.count: int | None = None
        try:
            self.message: Message = decode(encoded)
        except msgspec.ValidationError as error:
            self.message = Malformed(str(error))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolViolation(f"a template cannot be read: {error}") from error
        self.kind: Final = type(self.message)
        self.calls: Final[dict[object, Callable[[Sequence[int]], Any]]] = {}
        if self.kind is not Malformed:
            self._find_places(encoded, decode)

    def _find_places(self, encoded: bytes, decode: Callable[[Any], Message]) -> None:
        filled = [each for each in filled_fields(self.message) if each >= PLACE]
        self.count = len(filled)
        markers = [_UINT64 + (PLACE | at).to_bytes(8, "big") for at in range(self.count)]
        starts = [encoded.find(marker) for marker in markers]
        once = all(encoded.count(marker) == 1 for marker in markers)
        in_order = starts == sorted(starts) and filled == [PLACE | at for at in range(self.count)]
        if not once or not in_order:
            raise ProtocolViolation(f"a template has the places {filled}")
        layout, pieces, end = ">", [], 0
        for start in starts:
            pieces.append(encoded[end : start + 1])
            layout += f"{start + 1 - end}sQ"
            end = start + 9
        layout += f"{len(encoded) - end}s"
        self._encoded = (*pieces, encoded[end:])
        self._fill = struct.Struct(layout).pack
        self._decode = decode

    def filled(self, addresses: Sequence[int]) -> Message:
        """The message of a call."""
        message: Message = self.caller(_same)(addresses)
        return message

    def caller(self, handler: Callable[[Any], Any]) -> Callable[[Sequence[int]], Any]:
        """Return a function that has ``handler`` execute the message of a call."""
        if self.count is None:
            return lambda _addresses: handler(self.message)
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
        self._known: dict[int, HostTemplate] = {}

    def add(self, request: CallWithTemplate) -> HostTemplate | None:
        """Keep the template of a call; what had its number before."""
        number = request.number
        if not 0 <= number < MOST_TEMPLATES:
            raise ProtocolViolation(f"a template has the number {number}")
        former = self._known.get(number)
        self._known[number] = HostTemplate(bytes(request.message), self._decode)
        return former

    def find(self, request: CallWithTemplate | CallByTemplate) -> HostTemplate:
        """Return the template of a call."""
        template = self._known.get(request.number)
        if template is None or template.count not in (None, len(request.addresses)):
            raise ProtocolViolation(
                f"no template {request.number} takes {len(request.addresses)} addresses"
            )
        return template


def _same(message: Message) -> Message:
    """Return the message itself."""
    return message
