"""Declared fields of messages: addresses, and numbers that differ between calls of one template."""

from __future__ import annotations

import functools
import typing
from typing import Annotated, Any, Final, TypeAlias

import msgspec

PLACE: Final = 1 << 62
"""Placeholder for an address in a template; the address's number is added to it."""

_FILLED: Final = "filled in by calls"

Address: TypeAlias = Annotated[int, _FILLED]
"""An address in a message, possibly of scratch memory, or 0 for none.

Message types annotate all their addresses with it, also those inside tuples. Call templates have
places in these fields and nowhere else.
"""

Word: TypeAlias = Annotated[int, _FILLED]
"""Four bytes of a number in an expression, which calls with one signature may vary."""


def filled_fields(value: object) -> list[Any]:
    """Return the values of a message's ``Address`` and ``Word`` fields, in the order of encoding.

    Fields of structs inside the message are included.
    """
    found: list[Any] = []
    _collect(value, False, found)
    return found


def _collect(value: object, filled: bool, found: list[Any]) -> None:
    if isinstance(value, msgspec.Struct):
        declared = _declared(type(value))
        for name in value.__struct_fields__:
            _collect(getattr(value, name), name in declared, found)
    elif isinstance(value, (tuple, list)):
        for each in value:
            _collect(each, filled, found)
    elif filled and value is not None:
        found.append(value)


@functools.cache
def _declared(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names of a struct's fields whose annotations contain ``Address`` or ``Word``."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if _is_filled(hint))


def _is_filled(hint: object) -> bool:
    if _FILLED in getattr(hint, "__metadata__", ()):
        return True
    return any(map(_is_filled, typing.get_args(hint)))
