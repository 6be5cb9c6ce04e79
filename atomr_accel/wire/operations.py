"""Declarations of ops: a class says what an op takes, and both sides read it.

The program makes a method of a facade from it, with all checks (``atomr_accel.ops.op_of``), and a
host makes a handler that calls a function with the operands (``atomr_accel.executors.operations``).
The message between them follows from the class.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform, get_args

import msgspec

from .messages import Address, Message

T = TypeVar("T")


@dataclass(frozen=True)
class In:
    """An operand that an op reads.

    It is optional if its field has None as its default.

    Attributes:
        shape: a word for each extent: a number, or a name, which is the same number wherever the
            op has it. ``""`` is the shape of a scalar. None allows any shape.
        dtypes: the names of dtypes that it may have; by default all.
        like: the operand, before this one, that has the same dtype.
        strided: whether the handler uses its strides. Other operands are made contiguous.
        aligned: number of bytes of which its address must be a multiple.
        multiple: number of which all extents must be multiples, and not 0, by bytes of an element.
        why: the reason for ``aligned``, for errors.
    """

    shape: str | None = None
    dtypes: tuple[str, ...] = ()
    like: str = ""
    strided: bool = False
    aligned: int = 1
    multiple: Mapping[int, int] | None = None
    why: str = "the device reads several elements at a time"


@dataclass(frozen=True)
class Out(In):
    """An operand that an op writes, and a part of its result.

    If its field has None as its default, it is allocated if the caller gives none. Without a
    default, it is changed in place: the op reads it, too.

    Attributes:
        shape: as for ``In``; None is the shape of the operand ``like``.
        dtype: the name of its dtype, if that is not the dtype of ``like``.
        in_place: the operands that may be exactly the same memory.
    """

    dtype: str = ""
    in_place: tuple[str, ...] = ()


@dataclass(frozen=True)
class SentAs:
    """A value that goes to the host in another form than the caller gives it in.

    Attributes:
        type: its type in the message. The ``plan`` of ``op_of`` makes it.
    """

    type: Any


class OperandLayout(msgspec.Struct, frozen=True, array_like=True):
    """Shape, dtype and strides of an operand in a message.

    Attributes:
        shape: extents.
        dtype: name of the element type.
        strides: in bytes; None without gaps.
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None


@dataclass_transform(frozen_default=True, eq_default=False)
class Operation(Generic[T]):
    """Base of declarations of ops; ``T`` is the result, in quotes if it is a class of the program.

    Fields with ``In`` and ``Out`` in their annotation are operands, all others are values: numbers,
    flags, strings and ``Literal``. They are the arguments of the op, in their order; those behind
    ``_: KW_ONLY`` are named. The docstring is the op's. An op without an ``Out`` answers: its
    handler returns the result.

    An instance is a call. Its fields have the arguments.

    Attributes:
        unchecked: see ``Message``; True for ops that take indices from buffers.
        results: makes the result of several ``Out``, such as a ``NamedTuple``.
        operands: the ``In`` and ``Out`` by name.
        optional: operands that may be None.
        values: the types of values by name, as messages have them.
        message: the type of the op's message.
    """

    unchecked: ClassVar[bool] = False
    results: ClassVar[type[tuple[Any, ...]]] = tuple

    operands: ClassVar[dict[str, In]]
    optional: ClassVar[frozenset[str]]
    values: ClassVar[dict[str, Any]]
    message: ClassVar[type[Message]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, eq=False)(cls)
        names = _ModuleNames(vars(sys.modules[cls.__module__]))
        given = fields(cls)  # type: ignore[arg-type] # it is a dataclass now
        hints = {each.name: _evaluated(each.type, names) for each in given}
        notes = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        cls.operands = {
            name: note for name, found in notes.items() for note in found if isinstance(note, In)
        }
        cls.optional = frozenset(
            [each.name for each in given if each.name in cls.operands and each.default is None]
        )
        cls.values = {
            name: next((note.type for note in notes[name] if isinstance(note, SentAs)), hint)
            for name, hint in hints.items()
            if name not in cls.operands
        }
        _check(cls, [each.name for each in given if each.default is not MISSING])
        answers = not any(isinstance(each, Out) for each in cls.operands.values())
        message: Any = msgspec.defstruct(
            cls.__name__,
            [
                ("addresses", tuple[Address, ...]),
                ("layouts", tuple[OperandLayout | None, ...]),
                *cls.values.items(),
            ],
            bases=(Message,),
            namespace={
                "returns": cls.result_type() if answers else None,
                "unchecked": cls.unchecked,
                "__doc__": cls.__doc__,
            },
            module=cls.__module__,
            frozen=True,
        )
        cls.message = message

    @classmethod
    def result_type(cls) -> Any:
        """Return ``T``: a type, or its name."""
        for base in vars(cls).get("__orig_bases__", ()):
            for found in get_args(base):
                return getattr(found, "__forward_arg__", found)
        return None


def argument_types(kind: type[Operation[Any]]) -> dict[str, str]:
    """Return the annotations of an op's arguments, reduced to types."""
    found = {}
    for each in fields(kind):  # type: ignore[arg-type] # as all of them are
        tree = ast.parse(str(each.type), mode="eval").body
        noted = isinstance(tree, ast.Subscript) and ast.unparse(tree.value) == "Annotated"
        found[each.name] = ast.unparse(tree.slice.elts[0] if noted else tree)  # type: ignore[attr-defined] # a tuple
    return found


class _ModuleNames(dict[str, Any]):
    """Names of a module; those that only type checkers import stand for any type."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def _evaluated(annotation: Any, names: _ModuleNames) -> Any:
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, {}, names)  # noqa: S307 - text of the module itself


def _check(cls: type[Operation[Any]], defaults: list[str]) -> None:
    """Raise if a declaration contradicts itself; the author sees it at the import."""
    before: list[str] = []
    for name, operand in cls.operands.items():
        for other in (*filter(None, [operand.like]), *getattr(operand, "in_place", ())):
            if other not in before:
                raise TypeError(
                    f"{cls.__name__}.{name} must name an operand before it, not {other!r}"
                )
        if isinstance(operand, Out) and not (operand.dtype or operand.like or operand.dtypes):
            raise TypeError(f"{cls.__name__}.{name} must have dtype= or like=")
        if isinstance(operand, Out) and operand.shape is None and not operand.like:
            raise TypeError(f"{cls.__name__}.{name} must have shape= or like=")
        if name in defaults and name not in cls.optional:
            raise TypeError(f"{cls.__name__}.{name} must have None as its default, or none")
        before.append(name)
