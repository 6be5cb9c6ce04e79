"""Methods of facades from declarations of ops."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, get_args, get_origin

import msgspec

from .._dtypes import DTYPES, NAMES
from .._errors import said_of
from ..arrays import GpuRef
from ..wire.operations import In, OperandLayout, Operation, Out, argument_types
from ..wire.options import flag, real, whole
from ._arguments import (
    require_alignment,
    require_dtype,
    require_no_alias,
    require_readable,
    require_ref,
    require_shape,
    require_writable,
)
from ._op import op
from ._request import Request, Submission

if TYPE_CHECKING:
    from ..memory import Block
    from ._library import LaneSpec
    from ._request import Preparer

P = ParamSpec("P")
T = TypeVar("T")

Plan = Callable[[Any, "Preparer"], Mapping[str, Any]]

_RANKS: Final = ("no dimensions", "one dimension", "two dimensions", "three dimensions")
_CHECKS: Final[dict[Any, Callable[[Any, str], Any]]] = {
    bool: flag,
    int: whole,
    float: partial(real, finite=False),
}


def op_of(
    kind: Callable[P, Operation[T]], lane: LaneSpec, *, plan: Plan | None = None
) -> DeclaredOp[P, T]:
    """Make an op of a declaration, named by the attribute that it is assigned to.

    It checks its arguments, allocates results that are not given, refuses memory that operands
    share, and makes the message. Values of type bool, int, float and ``Literal`` are checked in
    the call.

    Args:
        kind: a subclass of ``Operation``.
        lane: the lane that executes it.
        plan: called with the call and its preparer after operands are checked. It returns values
            for the message, by name; those with ``SentAs`` it has to return. It may raise.

    Raises:
        TypeError: ``kind`` has values with ``SentAs``, and there is no ``plan``.
    """
    return DeclaredOp(kind, lane, plan)


class DeclaredOp(op[P, T]):
    """An op of a declaration, which learns its name from its class.

    Attributes:
        kind: the declaration.
        lane: the lane that executes it.
    """

    def __init__(self, kind: Any, lane: LaneSpec, plan: Plan | None) -> None:
        self.kind: Final[type[Operation[Any]]] = kind
        if self.kind.sent_as and plan is None:
            names = ", ".join(sorted(self.kind.sent_as))
            raise TypeError(f"op_of({self.kind.__name__}) must have a plan, which makes {names}")
        self.lane: Final = lane
        self._plan: Final = plan

    def __set_name__(self, owner: type, name: str) -> None:
        made = _method(self.kind, name, self.lane, self._plan)
        made.__module__ = owner.__module__
        super().__init__(made)


def _method(
    kind: type[Operation[T]], name: str, lane: LaneSpec, plan: Plan | None
) -> Callable[..., Request[T]]:
    whole_name = f"{lane.name}.{name}"

    def made(_facade: object, /, *args: Any, **kwargs: Any) -> Request[T]:
        call = kind(*args, **kwargs)
        values = {
            each: _value(getattr(call, each), each, of)
            for each, of in kind.values.items()
            if each not in kind.sent_as
        }
        return Request(
            lane, whole_name, lambda preparer: _submission(call, whole_name, values, preparer, plan)
        )

    signature = inspect.signature(kind.__init__)
    written = argument_types(kind)
    result = kind.result_type()
    result = result if isinstance(result, str) else inspect.formatannotation(result)
    given: Any = made
    given.__signature__ = signature.replace(
        parameters=[
            each if each.name == "self" else each.replace(annotation=written[each.name])
            for each in signature.parameters.values()
        ],
        return_annotation=f"Request[{result}]",
    )
    given.__wrapped__ = kind.__init__  # whose name is in Python's errors
    made.__name__ = made.__qualname__ = name
    made.__doc__ = inspect.getdoc(kind)
    return made


def _value(value: Any, name: str, of: Any) -> Any:
    """Return a value as messages carry it.

    Raises:
        TypeError, ValueError: it is not of its type.
    """
    if get_origin(of) is Literal:
        for each in get_args(of):
            if type(value) is type(each) and value == each:
                return each
        raise ValueError(f"{name} must be {_any_of(map(repr, get_args(of)))}, not {value!r}")
    check = _CHECKS.get(of)
    if check is not None:
        return check(value, name)
    try:
        made = msgspec.convert(value, of)
        msgspec.msgpack.encode(made)
    except UnicodeError:
        raise ValueError(f"{name} must be text that UTF-8 encodes, not {value!r}") from None
    except (msgspec.ValidationError, TypeError) as error:
        wanted = getattr(of, "__name__", of)
        raise TypeError(f"{name} must be {wanted}, not {said_of(value)}: {error}") from None
    return made


def _submission(
    call: Operation[T],
    name: str,
    values: Mapping[str, Any],
    preparer: Preparer,
    plan: Plan | None,
) -> Submission[T]:
    kind = type(call)
    sizes: dict[str, tuple[int, str]] = {}
    reads: list[tuple[str, GpuRef]] = []
    writes: list[tuple[str, GpuRef]] = []
    blocks: dict[str, Block | None] = {}
    refs: dict[str, GpuRef | None] = {}
    checked = False
    for each, note in kind.operands.items():
        ref = getattr(call, each)
        if ref is None and each in kind.optional:
            if not isinstance(note, Out):
                refs[each] = blocks[each] = None
                continue
            ref = preparer.output(*_made(note, sizes, refs))
        elif isinstance(note, Out):
            checked = True
        writable = isinstance(note, Out)
        require = require_writable if writable else require_readable
        blocks[each] = require(ref, preparer.memory, each, strided=note.strided)
        _check_operand(ref, each, note, sizes, refs)
        refs[each] = ref
        (writes if writable else reads).append((each, ref))
    if checked:
        allowed = [
            (each, other)
            for each, note in kind.operands.items()
            for other in getattr(note, "in_place", ())
        ]
        require_no_alias(name, writes, reads, in_place=allowed)
    if plan is not None:
        values = _planned(kind, values, plan(call, preparer))
    message: Any = kind.message
    message = message(
        tuple([0 if block is None else block.address for block in blocks.values()]),
        tuple([None if ref is None else _layout(ref) for ref in refs.values()]),
        *[values[each] for each in kind.values],
    )
    given = {each: block for each, block in blocks.items() if block is not None}
    written = {each for each, note in kind.operands.items() if isinstance(note, Out)}
    read = [block for each, block in given.items() if each not in written & kind.optional]
    made = [ref for _, ref in writes]
    result: Any = None
    if made:
        make = getattr(kind.results, "_make", kind.results)
        result = made[0] if len(made) == 1 else make(made)
    return Submission(message, read, [given[each] for each, _ in writes], result)


def _planned(kind: type[Operation[Any]], values: Mapping[str, Any], planned: Any) -> dict[str, Any]:
    """Return the values of a message, some of which a plan has made."""
    if not isinstance(planned, Mapping) or not kind.sent_as <= planned.keys() <= kind.values.keys():
        wanted = ", ".join(sorted(kind.sent_as)) or "some of its values"
        raise TypeError(
            f"the plan of {kind.__name__} must return a dict with {wanted}, not {planned!r}"
        )
    return {**values, **planned}


def _made(
    note: Out,
    sizes: Mapping[str, tuple[int, str]],
    refs: Mapping[str, GpuRef | None],
) -> tuple[tuple[int, ...], Any]:
    """Return shape and dtype of a result that is allocated."""
    like: Any = refs.get(note.like)
    if note.shape is None:
        shape = like.shape
    else:
        shape = tuple(
            [sizes[word][0] if word in sizes else int(word) for word in note.shape.split()]
        )
    return shape, DTYPES[note.dtype] if note.dtype else like.dtype


def _check_operand(
    ref: GpuRef,
    name: str,
    note: In,
    sizes: dict[str, tuple[int, str]],
    refs: Mapping[str, GpuRef | None],
) -> None:
    require_ref(ref, name)
    if note.dtypes and NAMES[ref.dtype] not in note.dtypes:
        raise TypeError(f"{name} is {ref.dtype.name}; it must be {_any_of(note.dtypes)}")
    like: Any = refs.get(note.like)
    fixed = getattr(note, "dtype", "")
    if fixed:
        require_dtype(ref, DTYPES[fixed], name, "the result")
    elif like is not None:
        require_dtype(ref, like.dtype, name, note.like)
    if note.shape is not None:
        _check_shape(ref, name, note.shape, sizes)
    elif isinstance(note, Out):
        require_shape(ref, like.shape, name)
    number = (note.multiple or {}).get(ref.dtype.itemsize, 0)
    if number and any(extent % number or not extent for extent in ref.shape):
        raise ValueError(
            f"{name} of {ref.dtype.name} has extents {ref.shape}, which must be multiples of "
            f"{number}, and not 0"
        )
    require_alignment(ref, note.aligned, name, note.why)


def _check_shape(ref: GpuRef, name: str, text: str, sizes: dict[str, tuple[int, str]]) -> None:
    words = text.split()
    if len(words) != ref.ndim:
        shown = _RANKS[len(words)] if len(words) < len(_RANKS) else f"{len(words)} dimensions"
        raise ValueError(f"{name} must have {shown}, not shape {ref.shape}")
    for at, (word, extent) in enumerate(zip(words, ref.shape, strict=True)):
        known = (int(word), "") if word.isdigit() else (extent, f", as {name} has as extent {at}")
        wanted, because = known if word.isdigit() else sizes.setdefault(word, known)
        if wanted != extent:
            raise ValueError(
                f"{name} must have {wanted} as extent {at}{because}, not shape {ref.shape}"
            )


def _layout(ref: GpuRef) -> OperandLayout:
    return OperandLayout(ref.shape, NAMES[ref.dtype], ref.own_strides)


def _any_of(names: Any) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
