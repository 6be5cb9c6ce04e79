"""Declarations of ops: a class says what an op takes, and both sides read it.

The program makes a method of a facade from it, with all checks (``atomr_accel.ops.op_of``), and a
host makes a handler that calls a function with the operands (``atomr_accel.executors.operations``).
The message between them follows from the class.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform, get_args

import msgspec

from .._dtypes import DTYPES
from .messages import Address, Message
from .options import count

T = TypeVar("T")


@dataclass(frozen=True)
class In:
    """An operand that an op reads.

    It is optional if its field has None as its default.

    Attributes:
        shape: a word for each extent: a number, or a name, which is the same number wherever the
            op has it. ``""`` is the shape of a scalar. None allows any shape.
        dtypes: the names of dtypes that it may have; by default all.
        like: the operand, before this one, that has the same dtype. Unless this one may be left
            out, it takes all dtypes of that one.
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

    def __post_init__(self) -> None:
        given: Any = self
        if not isinstance(given.shape, str | None) or not all(map(_is_word, self.words)):
            raise TypeError(f"shape must be text such as 'm k' or 'm 3', not {self.shape!r}")
        if not isinstance(given.dtypes, tuple):
            raise TypeError(f"dtypes must be a tuple of names, not {self.dtypes!r}")
        for name in self.dtypes:
            _require_dtype_name(name, "dtypes")
        count(self.aligned, "aligned")
        if not isinstance(given.multiple, Mapping | None):
            raise TypeError(f"multiple must be a dict by bytes of an element, not {self.multiple}")

    @property
    def words(self) -> list[str]:
        """The words of the shape; none if any is allowed."""
        return (self.shape or "").split()


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype:
            _require_dtype_name(self.dtype, "dtype")
        if self.dtype and self.dtypes:
            raise TypeError(f"dtypes must be left out beside dtype={self.dtype!r}")


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
    """Base of declarations of ops; ``T`` is the result, in quotes if it consists of refs.

    Fields with ``In`` and ``Out`` in their annotation are operands, all others are values: numbers,
    flags, strings, ``Literal`` and whatever else msgspec encodes. They are the arguments of the op,
    in their order; those behind ``_: KW_ONLY`` are named. The docstring is the op's. An op without
    an ``Out`` answers: its handler returns a ``T``.

    An instance is a call. Its fields have the arguments.

    Attributes:
        unchecked: see ``Message``; True for ops that take indices from buffers.
        results: makes the result of several ``Out``, such as a ``NamedTuple``.
        operands: the ``In`` and ``Out`` by name.
        optional: operands that may be None.
        values: the types of values by name, as messages have them.
        sent_as: values that a plan makes.
        message: the type of the op's message.
    """

    unchecked: ClassVar[bool] = False
    results: ClassVar[type[tuple[Any, ...]]] = tuple

    operands: ClassVar[dict[str, In]]
    optional: ClassVar[frozenset[str]]
    values: ClassVar[dict[str, Any]]
    sent_as: ClassVar[frozenset[str]]
    message: ClassVar[type[Message]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        doc = inspect.getdoc(cls)  # perhaps that of the declaration that it extends
        dataclass(frozen=True, eq=False)(cls)
        cls.__doc__ = doc
        local = sys._getframe(1).f_locals  # of the function that declares it, or of its module
        given = fields(cls)  # type: ignore[arg-type] # it is a dataclass now
        noted = {each.name: _hint(cls, each, local) for each in given}
        cls.operands = {name: note for name, (_, note) in noted.items() if isinstance(note, In)}
        cls.optional = frozenset(
            [each.name for each in given if each.name in cls.operands and each.default is None]
        )
        cls.sent_as = frozenset([name for name, (_, note) in noted.items() if type(note) is SentAs])
        cls.values = {
            name: note.type if isinstance(note, SentAs) else hint
            for name, (hint, note) in noted.items()
            if name not in cls.operands
        }
        _check(cls, {each.name: each.default is not MISSING for each in given})
        cls.message = _message(cls)

    @classmethod
    def result_type(cls) -> Any:
        """Return ``T``: a type, or its name."""
        for kind in cls.__mro__:
            for base in vars(kind).get("__orig_bases__", ()):
                for found in get_args(base):
                    return getattr(found, "__forward_arg__", found)
        return None

    @classmethod
    def written(cls) -> list[str]:
        """Return the names of its results."""
        return [name for name, note in cls.operands.items() if isinstance(note, Out)]


def argument_types(kind: type[Operation[Any]]) -> dict[str, str]:
    """Return the annotations of an op's arguments, reduced to types."""
    found = {}
    for each in fields(kind):  # type: ignore[arg-type] # as all of them are
        if not isinstance(each.type, str):
            hint = get_args(each.type)[0] if hasattr(each.type, "__metadata__") else each.type
            found[each.name] = inspect.formatannotation(hint)
            continue
        tree = ast.parse(each.type, mode="eval").body
        noted = isinstance(tree, ast.Subscript) and ast.unparse(tree.value).endswith("Annotated")
        found[each.name] = ast.unparse(tree.slice.elts[0] if noted else tree)  # type: ignore[attr-defined] # a tuple
    return found


class _ModuleNames(dict[str, Any]):
    """Names of a module. Those that only type checkers import stand for any type."""

    def __init__(self, *known: Mapping[str, Any]) -> None:
        for each in known:
            self.update(each)
        self.missing: list[str] = []

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        self.missing.append(name)
        return Any


def _hint(cls: type, field: Field[Any], local: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the type of an argument, and its note."""
    names = _ModuleNames(vars(sys.modules[cls.__module__]), local)
    where = f"{cls.__name__}.{field.name}"
    hint: Any = field.type
    try:
        while isinstance(hint, str):
            hint = eval(hint, {}, names)  # noqa: S307 - text of the module itself
    except Exception as error:
        unknown = f"; {', '.join(names.missing)} is not imported" if names.missing else ""
        raise TypeError(f"{where} must have a valid annotation, not {hint!r}{unknown}") from error
    for note in getattr(hint, "__metadata__", ()):
        if note in (In, Out, SentAs):
            raise TypeError(f"{where} must have {note.__name__}(...), not the class itself")
        if isinstance(note, In | SentAs):
            return get_args(hint)[0], note
    if names.missing:
        raise TypeError(
            f"{where} must have a note, such as In(), or a type that is imported when the program "
            f"runs, not {names.missing[0]}"
        )
    return hint, None


def _check(cls: type[Operation[Any]], defaults: Mapping[str, bool]) -> None:
    """Raise if a declaration contradicts itself; the author sees it at the import."""
    before: list[str] = []
    words: set[str] = set()
    dtypes: dict[str, set[str]] = {}
    for name, operand in cls.operands.items():
        where = f"{cls.__name__}.{name}"
        out = isinstance(operand, Out)
        for other in (*filter(None, [operand.like]), *getattr(operand, "in_place", ())):
            if other not in before:
                raise TypeError(f"{where} must name an operand before it, not {other!r}")
        if operand.like in cls.optional and not isinstance(cls.operands[operand.like], Out):
            raise TypeError(f"{where} must be like an operand that is always there")
        fixed: str = getattr(operand, "dtype", "")
        own = {fixed} if fixed else set(operand.dtypes or DTYPES)
        if operand.like and not fixed:
            theirs = dtypes[operand.like]
            left_out = name in cls.optional and not out  # as it may be beside other dtypes
            if not (own & theirs if left_out else own >= theirs):
                raise TypeError(
                    f"{where} must take the dtypes of {operand.like}, which it is like, not only "
                    f"{', '.join(operand.dtypes)}; leave out its dtypes, or give {operand.like} "
                    "the same"
                )
            own &= theirs
        dtypes[name] = own
        if out and operand.shape is None and not operand.like:
            raise TypeError(f"{where} must have shape= or like=")
        if out and name in cls.optional:
            if not (getattr(operand, "dtype", "") or operand.like):
                raise TypeError(f"{where} must have dtype= or like=")
            for word in operand.words:
                if not word.isdigit() and word not in words:
                    raise TypeError(f"{where} must have extents of operands, not {word!r}")
        if defaults[name] and name not in cls.optional:
            raise TypeError(f"{where} must have None as its default, or none")
        before.append(name)
        if out or name not in cls.optional:
            words.update(operand.words)
    for name in defaults:
        if name == "self" or hasattr(Message, name) or name in _OWN or name in vars(Operation):
            raise TypeError(f"{cls.__name__}.{name} must have another name, which messages do not")
    results: Any = cls.results
    made = len(cls.written())
    if results is not tuple and len(getattr(results, "_fields", ())) != made:
        raise TypeError(f"{cls.__name__}.results must be a NamedTuple of {made}, not {results}")


_OWN = ("addresses", "layouts", *Operation.__annotations__)


def _message(cls: type[Operation[Any]]) -> type[Message]:
    """Return the type of the message of an op."""
    returns: Any = None
    if not cls.written() and cls.result_type() is not NoneType:
        returns = cls.result_type()
        if isinstance(returns, str):
            raise TypeError(
                f"{cls.__name__} must have an Out, or answer with a type that is not in quotes, "
                f"not {returns!r}"
            )
        if NoneType in get_args(returns):
            raise TypeError(f"{cls.__name__} must always answer, not with {returns}")
    message: Any = msgspec.defstruct(
        cls.__name__,
        [
            ("addresses", tuple[Address, ...]),
            ("layouts", tuple[OperandLayout | None, ...]),
            *cls.values.items(),
        ],
        bases=(Message,),
        namespace={"returns": returns, "unchecked": cls.unchecked, "__doc__": cls.__doc__},
        module=cls.__module__,
        tag=f"{cls.__module__}.{cls.__qualname__}",
        frozen=True,
    )
    try:
        for each in (message, *([] if returns is None else [returns])):
            msgspec.msgpack.Decoder(each)
    except (NameError, TypeError) as error:  # as for a class with fields, such as GpuRef
        raise TypeError(f"{cls.__name__} must have values that msgspec encodes: {error}") from error
    kind: type[Message] = message
    return kind


def _is_word(word: str) -> bool:
    return word.isidentifier() or (word.isascii() and word.isdigit())


def _require_dtype_name(name: object, what: str) -> None:
    if name not in DTYPES:
        raise TypeError(f"{what} must have names such as 'float32', not {name!r}")
