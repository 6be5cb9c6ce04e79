"""Base of CUB's algorithms: types, iterators and operators for the bindings."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from ...._dtypes import DTYPES
from ..wire._spec import BINARY
from . import _source as source

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wire._spec import CubSpec, OperatorSpec

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
"""Dtype as which values of 16 bytes are moved; CUB has no number of that size."""

SOMEWHERE: Final = 1 << 12
"""Stand-in for a pointer that is unknown yet, because CUB takes null for a missing buffer."""

_ALIGNED: Final = 256
"""Bytes, as memory is."""

QUERY: Final = (0, 0)
"""Scratch memory of a call that only asks for the size of it, and runs nothing."""


class ElementLauncher(Protocol):
    """Launches a kernel of ours, for some elements."""

    def __call__(self, kernel: str, count: int, /, *pointers: int, threads: int = 0) -> None:
        """Queue it, with a thread for each element or with as many as are wanted."""


class IteratorState(ctypes.Structure):
    """State of iterators other than pointers; as in ``_source``."""

    _fields_: ClassVar[Any] = [
        ("values", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("index", ctypes.c_int64),
    ]


class Kit:
    """Maker of the objects that the bindings take.

    Args:
        bindings: the module.
        link: compiles the source of a function; None in an executor, which only runs builds.
    """

    def __init__(self, bindings: Any, link: Callable[[str, str], bytes] | None) -> None:
        self.bindings: Final = bindings
        self._link = link
        self._functions = 0

    def type(self, dtype: str) -> Any:
        """Return the description of a type."""
        b = self.bindings
        known = DTYPES[dtype]
        if known.kind == "c":
            return b.TypeInfo(known.itemsize, known.alignment, b.TypeEnum.STORAGE)
        enum = getattr(b.TypeEnum, _ENUMS.get(dtype, dtype.upper()))
        return b.TypeInfo(known.itemsize, known.itemsize, enum)

    def pointer(self, dtype: str) -> Any:
        """Return the iterator of a buffer; without ``dtype``, of a missing buffer of bytes."""
        b = self.bindings
        nothing = b.Op(), b.Op()
        where = SOMEWHERE if dtype else None
        kind = self.type(dtype or "uint8")
        return b.Iterator(8, b.IteratorKind.POINTER, *nothing, kind, state=where)

    def iterator(self, value: Any, read: Callable[[str], str], *, moves: bool = True) -> Any:
        """Return an iterator other than a pointer, and its state.

        Args:
            value: the type of its values.
            read: the source of what reads or writes one.
            moves: whether it is another one elsewhere.
        """
        b = self.bindings
        state = IteratorState()
        advance = self.function(source.advance_source if moves else source.ignored_source)
        access = self.function(read)
        made = b.IteratorState(ctypes.pointer(state))
        kind = b.IteratorKind.ITERATOR
        return b.Iterator(8, kind, advance, access, value, state=made), state

    def pair(self) -> Any:
        """Return the type of an element with its flag."""
        return self.bindings.TypeInfo(16, 8, self.bindings.TypeEnum.STORAGE)

    def function(self, make: Callable[[str], str]) -> Any:
        """Return a linked function, from the source that ``code`` makes for a name."""
        self._functions += 1
        name = f"atomr_{self._functions}"
        code = b"" if self._link is None else self._link(make(name), name)
        b = self.bindings
        return b.Op(operator_type=b.OpKind.STATELESS, name=name, ltoir=code)

    def operator(self, operator: OperatorSpec) -> Any:
        """Return an operator: CUB's own, if it gives the same results."""
        b = self.bindings
        known = _WELL_KNOWN.get(operator.kind)
        if known is not None and _means_the_same(operator):
            return b.Op(operator_type=getattr(b.OpKind, known), name="", ltoir=b"")
        return self.function(lambda name: source.operator_source(operator, name))

    def value(self, dtype: str) -> Any:
        """Return a number from the program; it is set before a run."""
        return self.bindings.Value(self.type(dtype), bytearray(DTYPES[dtype].itemsize))


def _means_the_same(operator: OperatorSpec) -> bool:
    """Return whether CUB's operator of that name gives the same results as ours."""
    given, result = operator.arguments[0], operator.result
    dtype = DTYPES[given]
    if dtype.kind == "c":
        return False
    if operator.kind in ("minimum", "maximum"):
        return dtype.kind in "biu" and result == given  # ours keeps NaN
    return result == given or BINARY[operator.kind].truth


CubRun = tuple[Sequence[int], tuple[int, ...], Sequence[bytes], tuple[int, int], int]
"""Arguments of a run; see ``CubCall.run``."""


class CubCall:
    """An algorithm with its arguments.

    Attributes:
        result: the class of the build; empty if it needs none.
        buffers: the number of its buffers.
        number: the dtype of the numbers that it takes from the program.
        kernels: the names of ours that do all of it, which are compiled at a build.
    """

    result: ClassVar[str] = ""
    buffers: ClassVar[int] = 2
    number = "uint8"
    kernels: tuple[str, ...] = ()

    def __init__(self, spec: CubSpec, kit: Kit) -> None:
        self.spec: Final = spec
        self.kit: Final = kit
        self.bindings: Final = kit.bindings

    def beside(self, count: int) -> int:
        """Return the bytes of scratch memory for our own kernels, which run around CUB's."""
        del count
        return 0

    def before(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> Sequence[int]:
        """Launch our kernels that run before CUB's; return the buffers for CUB."""
        del launch, beside, count
        return pointers

    def after(
        self, launch: ElementLauncher, pointers: Sequence[int], beside: int, count: int
    ) -> None:
        """Launch our kernels that run after CUB's."""

    @property
    def number_bytes(self) -> int:
        """Return the size of the numbers from the program, in bytes."""
        return DTYPES[self.number].itemsize

    def stand_ins(self) -> list[int]:
        """Return the pointers with which scratch memory is asked for; null for a missing buffer."""
        return [SOMEWHERE] * self.buffers

    def build_arguments(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the arguments of the build, without the folders of headers."""
        raise NotImplementedError

    def run(self, built: Any, given: CubRun) -> int:
        """Queue it; return the bytes of scratch memory that it needs.

        With ``QUERY`` for scratch memory nothing is queued.

        Args:
            built: the build.
            given: pointers of the buffers, sizes, numbers from the program, the address and the
                size of scratch memory, and the stream.
        """
        raise NotImplementedError


def whole(nbytes: int) -> int:
    """Round a size up, so that memory after it is aligned."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def place(iterators: Sequence[Any], pointers: Sequence[int]) -> None:
    """Say where buffers are; 0: nowhere."""
    for iterator, pointer in zip(iterators, pointers, strict=True):
        iterator.state = pointer or None
