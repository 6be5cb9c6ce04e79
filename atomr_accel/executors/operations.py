"""Handlers of declared ops: functions that get operands instead of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from .._dtypes import DTYPES
from .._errors import said_of
from ..backends import Later

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..wire import Message
    from ..wire.operations import OperandLayout, Operation

    Functions = Mapping[type[Operation[Any]], Callable[..., Any]]
    Handlers = dict[type[Message], Callable[[Any], Any]]


class PlacedOperand(NamedTuple):
    """An operand on a device.

    Attributes:
        pointer: of its first element.
        shape: extents.
        dtype: name of the element type.
        strides: in bytes; None without gaps.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None


def array_handlers(context: Any, functions: Functions) -> Handlers:
    """Return handlers that give functions NumPy arrays, on the CPU.

    Args:
        context: the executor's context. Each handler checks it first.
        functions: by operation. They get the operands and values by name, and write to those that
            are results; an operand that is absent is None.
    """

    def array(address: int, layout: OperandLayout) -> Any:
        return context.array(address, layout.shape, DTYPES[layout.dtype], layout.strides)

    return {
        kind.message: _handler(kind, function, array, context.check)
        for kind, function in functions.items()
    }


def pointer_handlers(context: Any, functions: Functions) -> Handlers:
    """Return handlers that give functions operands with pointers, as calls of a vendor need them.

    Args:
        context: the executor's context.
        functions: as for ``array_handlers``; operands are ``PlacedOperand``.
    """

    def placed(address: int, layout: OperandLayout) -> PlacedOperand:
        return PlacedOperand(context.pointer(address), layout.shape, layout.dtype, layout.strides)

    return {kind.message: _handler(kind, function, placed) for kind, function in functions.items()}


def _handler(
    kind: type[Operation[Any]],
    function: Callable[..., Any],
    operand: Callable[[int, OperandLayout], Any],
    check: Callable[[], object] | None = None,
) -> Callable[[Any], Any]:
    operands, values = tuple(kind.operands), tuple(kind.values)
    returns: Any = kind.message.returns

    def handle(message: Any) -> Any:
        if check is not None:
            check()
        given = {
            name: None if layout is None else operand(address, layout)
            for name, address, layout in zip(
                operands, message.addresses, message.layouts, strict=True
            )
        }
        for name in values:
            given[name] = getattr(message, name)
        made = function(**given)
        if isinstance(made, Later) or (made is None and returns is None):
            return made
        return _answer(kind, function, made, returns)

    return handle


def _answer(
    kind: type[Operation[Any]], function: Callable[..., Any], made: object, returns: Any
) -> Any:
    """Return an answer, if it is of the type that the op has declared."""
    who = f"{getattr(function, '__qualname__', function)}, which executes {kind.__name__},"
    if returns is None:
        raise TypeError(f"{who} must return nothing, not {said_of(made)}; write to the results")
    try:
        return msgspec.convert(made, returns)
    except msgspec.ValidationError as error:
        raise TypeError(f"{who} must return {returns}, not {said_of(made)}: {error}") from None
