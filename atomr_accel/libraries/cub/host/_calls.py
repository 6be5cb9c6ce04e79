"""What CUB's algorithms have in common: types, iterators and operators for the bindings."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from ...._dtypes import DTYPES
from ..wire._spec import BINARY
from . import _source as source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..wire._spec import Operator, Spec

_WELL_KNOWN: Final = {
    "plus": "PLUS",
    "multiplies": "MULTIPLIES",
    "minimum": "MINIMUM",
    "maximum": "MAXIMUM",
    "bit_and": "BIT_AND",
    "bit_or": "BIT_OR",
    "bit_xor": "BIT_XOR",
    "equal_to": "EQUAL_TO",
    "less": "LESS",
    "greater": "GREATER",
}
"""Operators that CUB knows, and has faster code for. The others are linked as the program's are."""

_ENUMS: Final = {"float16": "FLOAT16", "bfloat16": "BFLOAT16", "bool": "BOOLEAN"}
WIDE: Final = "complex128"
"""What values of 16 bytes are moved as: the only ones that CUB has no number for."""

SOMEWHERE: Final = 1 << 12
"""A pointer where there is none yet: what is null is taken for a buffer that is not there."""

_ALIGNED: Final = 256
"""Bytes, as memory is."""

QUERY: Final = (0, 0)
"""In place of scratch memory: nothing is to be run, only to be told how much it takes."""


class Launcher(Protocol):
    """Launches a kernel of ours, for some elements."""

    def __call__(self, kernel: str, count: int, /, *pointers: int) -> None:
        """Queue it."""


class State(ctypes.Structure):
    """Of iterators that are no pointers; as in ``_source``."""

    _fields_: ClassVar[Any] = [
        ("values", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("index", ctypes.c_int64),
    ]


class Kit:
    """Makes what the bindings want.

    Args:
        bindings: the module.
        link: compiles the source of a function; None where nothing is built, only run.
    """

    def __init__(self, bindings: Any, link: Callable[[str, str], bytes] | None) -> None:
        self.bindings: Final = bindings
        self._link = link
        self._functions = 0

    def type(self, dtype: str) -> Any:
        """What tells a type."""
        b = self.bindings
        known = DTYPES[dtype]
        if known.kind == "c":
            return b.TypeInfo(known.itemsize, known.alignment, b.TypeEnum.STORAGE)
        enum = getattr(b.TypeEnum, _ENUMS.get(dtype, dtype.upper()))
        return b.TypeInfo(known.itemsize, known.itemsize, enum)

    def pointer(self, dtype: str) -> Any:
        """A buffer; of bytes where there is none."""
        b = self.bindings
        nothing = b.Op(), b.Op()
        where = SOMEWHERE if dtype else None
        kind = self.type(dtype or "uint8")
        return b.Iterator(8, b.IteratorKind.POINTER, *nothing, kind, state=where)

    def iterator(self, value: Any, read: Callable[[str], str], *, moves: bool = True) -> Any:
        """Something else than a pointer, and its state.

        Args:
            value: the type of its values.
            read: the source of what reads or writes one.
            moves: whether it is another one elsewhere.
        """
        b = self.bindings
        state = State()
        advance = self.function(source.advance_source if moves else source.ignored_source)
        access = self.function(read)
        made = b.IteratorState(ctypes.pointer(state))
        kind = b.IteratorKind.ITERATOR
        return b.Iterator(8, kind, advance, access, value, state=made), state

    def pair(self) -> Any:
        """The type of an element with its position or its flag."""
        return self.bindings.TypeInfo(16, 8, self.bindings.TypeEnum.STORAGE)

    def function(self, make: Callable[[str], str]) -> Any:
        """Something that is linked, by what makes its source for a name."""
        self._functions += 1
        name = f"atomr_{self._functions}"
        code = b"" if self._link is None else self._link(make(name), name)
        b = self.bindings
        return b.Op(operator_type=b.OpKind.STATELESS, name=name, ltoir=code)

    def operator(self, operator: Operator) -> Any:
        """An operator, as CUB knows it if it does."""
        b = self.bindings
        known = _WELL_KNOWN.get(operator.kind)
        if known is not None and _means_the_same(operator):
            return b.Op(operator_type=getattr(b.OpKind, known), name="", ltoir=b"")
        return self.function(lambda name: source.operator_source(operator, name))

    def value(self, dtype: str) -> Any:
        """A number from the program; set before a run."""
        return self.bindings.Value(self.type(dtype), bytearray(DTYPES[dtype].itemsize))


def _means_the_same(operator: Operator) -> bool:
    """Whether CUB's operator of that name gives what ours does."""
    given, result = operator.arguments[0], operator.result
    dtype = DTYPES[given]
    if dtype.kind == "c":
        return False
    if operator.kind in ("minimum", "maximum"):
        return dtype.kind in "biu" and result == given  # ours keeps NaN
    return result == given or BINARY[operator.kind].truth


class Call:
    """An algorithm with what it is given.

    Attributes:
        result: the class of what is built.
        buffers: how many it gets.
        number: the dtype of the numbers that it takes from the program.
    """

    result: ClassVar[str]
    buffers: ClassVar[int] = 2
    number = "uint8"

    def __init__(self, spec: Spec, kit: Kit) -> None:
        self.spec: Final = spec
        self.kit: Final = kit
        self.bindings: Final = kit.bindings

    def beside(self, count: int) -> int:
        """Bytes of scratch memory that are for kernels of ours, which come before and after."""
        del count
        return 0

    def before(
        self, launch: Launcher, pointers: Sequence[int], beside: int, count: int
    ) -> Sequence[int]:
        """Launch what comes before; the buffers that CUB gets."""
        del launch, beside, count
        return pointers

    def after(self, launch: Launcher, pointers: Sequence[int], beside: int, count: int) -> None:
        """Launch what comes after."""

    @property
    def number_bytes(self) -> int:
        """How large numbers from the program are."""
        return DTYPES[self.number].itemsize

    def stand_ins(self) -> list[int]:
        """Pointers to ask with: null, where there is no buffer."""
        return [SOMEWHERE] * self.buffers

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        """What it is built of, all but where headers are."""
        raise NotImplementedError

    def run(
        self,
        built: Any,
        pointers: Sequence[int],
        sizes: tuple[int, ...],
        values: Sequence[bytes],
        scratch: tuple[int, int],
        stream: int,
    ) -> int:
        """Queue it; the bytes of scratch memory that it needs.

        With ``QUERY`` for scratch memory nothing is queued.
        """
        raise NotImplementedError


def whole(nbytes: int) -> int:
    """So many bytes that what is behind them is aligned."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def place(iterators: Sequence[Any], pointers: Sequence[int]) -> None:
    """Say where buffers are; 0: nowhere."""
    for iterator, pointer in zip(iterators, pointers, strict=True):
        iterator.state = pointer or None
