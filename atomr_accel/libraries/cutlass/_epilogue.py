"""Epilogues: what becomes of each element of a product before it is stored, as expressions."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, final

from ..._dtypes import NAMES
from ...arrays import GpuRef
from ...arrays.expressions import Operand
from ...wire.options import real, whole
from .wire._spec import ACCUMULATOR, MOST_NUMBERS, SOURCE, EpilogueNode

if TYPE_CHECKING:
    from collections.abc import Iterable

READS: Final = ("float16", "bfloat16", "float32")
"""Dtypes of what epilogues read."""
WRITES: Final = (*READS, "float8_e4m3fn", "float8_e5m2")
"""Dtypes that kernels write, as the result and by ``store``."""

_MOST_STEPS: Final = 64
_LONGEST: Final = 200
_INFIX: Final = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}

Shape = tuple[int, ...]


@final
class Epilogue:
    """An expression with a value for each element of a product, computed by a later call.

    ``device.cutlass.accumulator`` is the product itself. Others are made from it by ``+``, ``-``,
    ``*`` and ``/`` with numbers, with buffers and with each other, and by the methods here. All
    steps compute in float32, while the product is in registers. A buffer is broadcast as in NumPy:
    one of shape (n,) is added to each row, one of (m, 1) to each column, one of (m, n) to all
    elements. If ``a`` is a stack and ``b`` is not, all their rows belong to one product, and (...,
    m, 1) stands for (m, 1).

    An expression is a value: ``matmul`` can be called with it any number of times.
    """

    __slots__ = ("_inputs", "_op", "_parts", "_ref", "_value")

    __array_ufunc__: Final = None
    """NumPy's scalars leave operators to this class."""

    def __init__(
        self,
        op: str,
        inputs: tuple[Epilogue, ...] = (),
        ref: GpuRef | None = None,
        value: float = 0.0,
    ) -> None:
        self._op: Final = op
        self._inputs: Final = inputs
        self._ref: Final = ref
        self._value: Final = value
        self._parts: tuple[object, tuple[GpuRef, ...]] | None = None

    def split_refs(self) -> tuple[object, tuple[GpuRef, ...]]:
        """Split the expression into its steps without buffers, and its buffers.

        Each step names its inputs by number.
        """
        if self._parts is None:
            steps = self._steps()
            numbers = {id(step): number for number, step in enumerate(steps)}
            rest = tuple(
                (
                    step._op,
                    repr(step._value),
                    tuple(numbers[id(each)] for each in step._inputs),
                    step._ref is not None,
                )
                for step in steps
            )
            self._parts = rest, tuple(step._ref for step in steps if step._ref is not None)
        return self._parts

    def with_refs(self, refs: Iterable[GpuRef]) -> Epilogue:
        """Return the same expression with other buffers."""
        given = iter(refs)
        made: dict[int, Epilogue] = {}
        for step in self._steps():
            inputs = tuple(made[id(each)] for each in step._inputs)
            ref = None if step._ref is None else next(given)
            plain = step._op == ACCUMULATOR
            made[id(step)] = step if plain else Epilogue(step._op, inputs, ref, step._value)
        return made[id(self)]

    def _steps(self) -> list[Epilogue]:
        """All steps, each once and before what uses it."""
        found: dict[int, Epilogue] = {}
        ahead = [self]
        while ahead:  # no recursion: who has made too many steps is told so
            step = ahead[-1]
            before = [each for each in step._inputs if id(each) not in found]
            if before:
                ahead += reversed(before)
            else:
                found.setdefault(id(step), step)
                ahead.pop()
        return [*found.values()]

    def __repr__(self) -> str:
        return f"<Epilogue {self._text()}>"

    def __bool__(self) -> bool:
        raise TypeError(
            "an epilogue cannot be true or false, because its values are on the "
            "device; choose with maximum, minimum or relu"
        )

    def _text(self) -> str:
        """Return the expression as Python source, with long parts left out."""
        texts: dict[int, str] = {}
        for step in self._steps():
            text = step._text_of([texts[id(each)] for each in step._inputs])
            texts[id(step)] = text if len(text) <= _LONGEST else "..."
        return texts[id(self)]

    def _text_of(self, given: list[str]) -> str:
        ref = "" if self._ref is None else f"{NAMES[self._ref.dtype]}{[*self._ref.shape]}"
        if not self._inputs:
            return ref or (f"{self._value:g}" if self._op == "number" else self._op)
        if self._op in _INFIX:
            return f"({given[0]} {_INFIX[self._op]} {given[1]})"
        if self._op == "negative":
            return f"-{given[0]}"
        axis = {"sum_rows": ["0"], "sum_columns": ["1"]}.get(self._op, [])
        name = "sum" if axis else self._op
        return f"{given[0]}.{name}({', '.join([*axis, *given[1:], *([ref] if ref else [])])})"

    def __add__(self, other: Epilogue | GpuRef | float) -> Epilogue:
        return _binary("add", self, other)

    def __radd__(self, other: GpuRef | float) -> Epilogue:
        return _binary("add", other, self)

    def __sub__(self, other: Epilogue | GpuRef | float) -> Epilogue:
        return _binary("subtract", self, other)

    def __rsub__(self, other: GpuRef | float) -> Epilogue:
        return _binary("subtract", other, self)

    def __mul__(self, other: Epilogue | GpuRef | float) -> Epilogue:
        return _binary("multiply", self, other)

    def __rmul__(self, other: GpuRef | float) -> Epilogue:
        return _binary("multiply", other, self)

    def __truediv__(self, other: Epilogue | GpuRef | float) -> Epilogue:
        by = term(other)
        if by._op == "number" and not by._value:
            raise ValueError("an epilogue is divided by zero")
        return _binary("divide", self, by)

    def __rtruediv__(self, other: GpuRef | float) -> Epilogue:
        return _binary("divide", other, self)

    def __neg__(self) -> Epilogue:
        return Epilogue("negative", (self,))

    def maximum(self, other: Epilogue | GpuRef | float) -> Epilogue:
        """The larger of both; NaN where this is NaN."""
        return _binary("maximum", self, other)

    def minimum(self, other: Epilogue | GpuRef | float) -> Epilogue:
        """The smaller of both; NaN where this is NaN."""
        return _binary("minimum", self, other)

    def relu(self) -> Epilogue:
        """The value, or 0 if the value is less than 0."""
        return Epilogue("relu", (self,))

    def gelu(self) -> Epilogue:
        """GELU, by the error function."""
        return Epilogue("gelu", (self,))

    def gelu_tanh(self) -> Epilogue:
        """GELU, by its tanh approximation."""
        return Epilogue("gelu_tanh", (self,))

    def silu(self) -> Epilogue:
        """``x * sigmoid(x)``."""
        return Epilogue("silu", (self,))

    def sigmoid(self) -> Epilogue:
        """``1 / (1 + exp(-x))``."""
        return Epilogue("sigmoid", (self,))

    def tanh(self) -> Epilogue:
        """The hyperbolic tangent; on CUDA of about 11 bits."""
        return Epilogue("tanh", (self,))

    def store(self, out: GpuRef) -> Epilogue:
        """This value, which is written to ``out`` on the way.

        Args:
            out: of the result's shape; float16, bfloat16, float32 or fp8.
        """
        return Epilogue("store", (self,), _ref(out, "out"))

    def amax(self, out: GpuRef) -> Epilogue:
        """This value; and the largest magnitude of all is written to ``out``, NaN if one is.

        Args:
            out: float32 of shape ().
        """
        return Epilogue("amax", (self,), _ref(out, "out"))

    def sum(self, axis: int, out: GpuRef) -> Epilogue:
        """This value; and its sums are written to ``out``, those of all products together.

        On CUDA the order of sums, and so their last bits, are not the same each time.

        Args:
            axis: 0 for the sum over m, one of each column; 1 for that over n, one of each row.
            out: float32 of shape (n,), or (m,): (..., m) where all of a stack are one product.
        """
        over = ("sum_rows", "sum_columns")[whole(axis, "axis", 0, 1)]
        return Epilogue(over, (self,), _ref(out, "out"))


ACCUMULATED: Final = Epilogue(ACCUMULATOR)


def _ref(ref: object, name: str) -> GpuRef:
    if not isinstance(ref, GpuRef):
        raise TypeError(f"{name} must be a GpuRef, not {type(ref).__name__}")
    return ref


def term(value: object) -> Epilogue:
    """Convert a value to an expression."""
    if isinstance(value, Epilogue):
        return value
    if isinstance(value, GpuRef):
        return Epilogue("", (), value)
    if isinstance(value, Operand):
        raise TypeError(
            f"{value!r} is computed by itself: evaluate it first, or begin with the epilogue, as "
            "in (accumulator + ref) * 2"
        )
    return Epilogue("number", (), None, real(value, "an operand of an epilogue"))


def _binary(op: str, one: Epilogue | GpuRef | float, other: Epilogue | GpuRef | float) -> Epilogue:
    return Epilogue(op, (term(one), term(other)))


class LoweredEpilogue(NamedTuple):
    """An epilogue whose buffers and numbers are slots.

    Attributes:
        node: the expression to compile.
        numbers: the call's numbers, by slot.
        buffers: its buffers, by slot.
        written: slots of the buffers that are written.
        source: the buffer of (m, n) that the kernel fetches ahead, if there is one.
    """

    node: EpilogueNode
    numbers: tuple[float, ...]
    buffers: tuple[GpuRef, ...]
    written: tuple[int, ...]
    source: GpuRef | None


def lower(epilogue: Epilogue, shape: Shape, rows: Shape, column: Shape) -> LoweredEpilogue:
    """Lower an epilogue for a result of some shape.

    ``column`` is the shape of a buffer with a number for each row.
    """
    return _Lowering(shape, rows, column).all_of(epilogue)


class _Lowering:
    def __init__(self, shape: Shape, rows: Shape, column: Shape) -> None:
        self._shape = shape
        self._rows = rows
        self._column = column
        self._numbers: list[float] = []
        self._buffers: list[GpuRef] = []
        self._written: list[int] = []
        self._source: GpuRef | None = None
        self._stores: set[int] = set()
        self._steps = 0

    def all_of(self, epilogue: Epilogue) -> LoweredEpilogue:
        node = self._node(epilogue)
        buffers, written = tuple(self._buffers), tuple(self._written)
        return LoweredEpilogue(node, tuple(self._numbers), buffers, written, self._source)

    def _node(self, value: Epilogue) -> EpilogueNode:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ValueError(
                f"the epilogue has more than {_MOST_STEPS} steps, values that are used twice "
                "counted twice; do a part of it in another call"
            )
        inputs = tuple(map(self._node, value._inputs))
        if value._op == "number":
            return EpilogueNode("number", slot=self._number(value._value))
        ref = value._ref
        if ref is None:
            return EpilogueNode(value._op, inputs)
        if not value._op:
            return self._read(ref)
        if id(value) in self._stores:
            raise ValueError(f"{value._op} is used twice in the epilogue; use what it is of")
        self._stores.add(id(value))
        return self._write(value._op, inputs, ref)

    def _number(self, value: float) -> int:
        """The slot of a number; equal ones have the same."""
        known = [struct.pack("<d", each) for each in self._numbers]
        wanted = struct.pack("<d", value)
        if wanted not in known:
            if len(known) == MOST_NUMBERS:
                raise ValueError(f"the epilogue has more than {MOST_NUMBERS} different numbers")
            self._numbers.append(value)
            known.append(wanted)
        return known.index(wanted)

    def _read(self, ref: GpuRef) -> EpilogueNode:
        dtype = NAMES[ref.dtype]
        if dtype not in READS:
            raise TypeError(f"an epilogue reads {', '.join(READS)}, not {dtype}")
        n, column = self._shape[-1], self._column
        if ref.shape == self._shape and self._source is None:
            self._source = ref
            return EpilogueNode(SOURCE, dtype=dtype)
        if ref.shape == ():
            if dtype != "float32":
                raise TypeError(f"one number in an epilogue must be float32, not {dtype}")
            return self._slot("scalar", ref)
        for op, shapes in (
            ("full", [self._shape]),
            ("row", [(n,), (1, n)]),
            ("column", [column]),
        ):
            if ref.shape in shapes:
                return self._slot(op, ref)
        raise ValueError(
            f"a buffer of shape {ref.shape} in an epilogue of {self._shape}: it takes "
            f"{self._shape}, ({n},) for rows, {column} for columns, or () for one number"
        )

    def _write(self, op: str, inputs: tuple[EpilogueNode, ...], ref: GpuRef) -> EpilogueNode:
        shape, dtypes = {
            "store": (self._shape, WRITES),
            "amax": ((), ("float32",)),
            "sum_rows": (self._shape[-1:], ("float32",)),
            "sum_columns": (self._rows, ("float32",)),
        }[op]
        if NAMES[ref.dtype] not in dtypes:
            raise TypeError(f"{_SHOWN[op]} writes {' or '.join(dtypes)}, not {NAMES[ref.dtype]}")
        if ref.shape != shape:
            raise ValueError(f"{_SHOWN[op]} writes shape {shape}, and out has {ref.shape}")
        self._written.append(len(self._buffers))
        return self._slot(op, ref, inputs)

    def _slot(self, op: str, ref: GpuRef, inputs: tuple[EpilogueNode, ...] = ()) -> EpilogueNode:
        self._buffers.append(ref)
        return EpilogueNode(op, inputs, NAMES[ref.dtype], len(self._buffers) - 1)


_SHOWN: Final = {
    "store": "store",
    "amax": "amax",
    "sum_rows": "sum(0)",
    "sum_columns": "sum(1)",
}
"""Stores, as programs call them."""


def wrapped(
    epilogue: Epilogue | None,
    *,
    alpha: float,
    beta: float,
    c: GpuRef | None,
    bias: GpuRef | None,
) -> Epilogue:
    """``epilogue`` of ``alpha * product + beta * c + bias``."""
    value = ACCUMULATED
    if alpha != 1:
        value = value * alpha
    if c is not None and beta:
        value = value + (term(c) if beta == 1 else term(c) * beta)
    if bias is not None:
        value = value + bias
    if epilogue is None:
        return value
    return value if epilogue is ACCUMULATED else _on(value, epilogue, {})


def _on(value: Epilogue, epilogue: Epilogue, done: dict[int, Epilogue]) -> Epilogue:
    """An epilogue with another value in the place of the product."""
    if value is ACCUMULATED:
        return epilogue
    if epilogue._op == ACCUMULATOR:
        return value
    found = done.get(id(epilogue))
    if found is None:
        inputs = tuple(_on(value, each, done) for each in epilogue._inputs)
        found = Epilogue(epilogue._op, inputs, epilogue._ref, epilogue._value)
        done[id(epilogue)] = found
    return found
