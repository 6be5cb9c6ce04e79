"""Calls as people read them."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._dtypes import DTYPES
from ._entries import (
    ArrayValue,
    DType,
    Fields,
    Formula,
    FunctionValue,
    HandleValue,
    Items,
    NumberValue,
    Opaque,
    Pairs,
    Partial,
    Ref,
    Slice,
)

if TYPE_CHECKING:
    from ._entries import CallEntry, DoneEntry, Value

_LONGEST = 60


def text_of(call: CallEntry, done: DoneEntry | None = None) -> str:
    """A call, and how it has ended: ``7 blas.gemm(#1, #2, alpha=2.0) -> #3``.

    It is one line, and has nothing in it that a terminal would take for a command.
    """
    return "".join(each if each.isprintable() else _escaped(each) for each in _text_of(call, done))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _text_of(call: CallEntry, done: DoneEntry | None) -> str:
    target = call.target if isinstance(call.target, str) else f"#{call.target.id}"
    given = [value_text(each) for each in call.args]
    given += [f"{name}={value_text(each)}" for name, each in call.kwargs.items()]
    where = f" in #{call.collector}" if call.collector else ""
    text = f"{call.number} {target}.{call.method}({', '.join(given)}){where}"
    if done is None:
        return f"{text} -> ?"
    if done.outcome == "error":
        first_line = done.error[1].partition("\n")[0]
        return f"{text} raised {done.error[0]}: {first_line}"
    if done.outcome == "cancelled":
        return f"{text} was cancelled"
    return text if done.result is None else f"{text} -> {value_text(done.result)}"


def value_text(value: Value) -> str:
    """Return the text of an argument or a result."""
    if isinstance(value, NumberValue):
        if value.dtype == "int" and len(value.data) > _LONGEST:
            return f"{value.data[:_LONGEST].decode()}..."
        value = number_of(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= _LONGEST else f"{value[:_LONGEST]!r}..."
    if isinstance(value, Ref):
        size = math.prod(value.shape) * DTYPES[value.dtype].itemsize
        whole = not value.offset and value.strides is None and value.nbytes in (0, size)
        shape = "x".join(map(str, value.shape)) or "scalar"
        return f"#{value.id}" if whole else f"#{value.id}[{shape} at {value.offset}]"
    if isinstance(value, ArrayValue):
        return f"<{value.dtype} {value.shape}>"
    if isinstance(value, HandleValue):
        return f"#{value.id}"
    if isinstance(value, FunctionValue):
        return f"{value.module}.{value.name}"
    if isinstance(value, Partial):
        return f"partial({', '.join(map(value_text, (value.function, *value.args)))})"
    if isinstance(value, Items):
        inside = ", ".join(map(value_text, value.items))
        return f"[{inside}]" if value.kind == "list" else f"({inside})"
    if isinstance(value, Pairs):
        return f"{{{', '.join(f'{value_text(a)}: {value_text(b)}' for a, b in value.items)}}}"
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Slice):
        if value.start == "...":
            return "..."
        return f"slice({value.start}, {value.stop}, {value.step})"
    if isinstance(value, Formula):
        return f"<expression of {', '.join(map(value_text, value.operands))}>"
    if isinstance(value, Fields):
        return f"<{value.of.name}>"
    if isinstance(value, Opaque):
        return value.text
    return repr(value)


def number_of(value: NumberValue) -> Any:
    """Return the number, the bytes or the text."""
    if value.dtype == "int":
        return int(value.data, 0)
    if value.dtype == "str":
        return value.data.decode("utf-8", "surrogatepass")
    if value.dtype == "complex":
        return complex(value.data.decode())
    if value.dtype == "bytes":
        return value.data
    return np.frombuffer(value.data, dtype_of(value.dtype))[0]


def dtype_of(text: str) -> np.dtype[Any]:
    """Return the dtype for a name, or for fields."""
    if text.startswith("["):
        made: np.dtype[Any] = np.lib.format.descr_to_dtype(ast.literal_eval(text))
        return made
    return DTYPES.get(text) or np.dtype(text)
