"""Checks that an entry has a form that this package writes, which its digest does not show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .._dtypes import DTYPES
from ._describe import DEEPEST
from ._entries import ArrayValue, CallEntry, Formula, NumberValue, Ref
from ._text import number_of

if TYPE_CHECKING:
    from ._entries import Entry

_MOST_BYTES: Final = 1 << 63


def check(entry: Entry) -> None:
    """See that the values in an entry are some."""
    if isinstance(entry, CallEntry) and not entry.method.isidentifier():
        raise ValueError(f"{entry.method!r} is no method")
    todo: list[tuple[Any, int]] = [(entry, 0)]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, tuple | list):
            todo += [(each, depth) for each in value]
        elif isinstance(value, dict):
            todo += [(each, depth) for each in value.values()]
        elif isinstance(value, msgspec.Struct):
            if depth > DEEPEST + 2:  # the entry itself, and the content of the last container
                raise ValueError("it is too deep")
            _check_value(value)
            todo += [(getattr(value, name), depth + 1) for name in value.__struct_fields__]


def _check_value(value: Any) -> None:
    if isinstance(value, Ref | ArrayValue):
        if min(value.shape, default=0) < 0:
            raise ValueError(f"{value.shape} is no shape")
        if math.prod(value.shape) * DTYPES[value.dtype].itemsize >= _MOST_BYTES:
            raise ValueError(f"{value.shape} is too large a shape")
    elif isinstance(value, NumberValue):
        number_of(value)
    elif isinstance(value, Formula):
        sizes = {"operand": len(value.operands), "constant": len(value.constants)}
        for at, step in enumerate(value.steps):
            before = sizes.get(step.kind, at)
            if not all(0 <= each < before for each in step.args) or step.dtype not in DTYPES:
                raise ValueError("it is no expression")
            if step.kind in sizes and not step.args:
                raise ValueError("it is no expression")
        if not 0 <= value.result < len(value.steps):
            raise ValueError("it is no expression")
