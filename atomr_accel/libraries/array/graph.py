"""Expressions as a flat list of values, each once."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ..._errors import Unsupported
from ...arrays import GpuRef
from ...arrays.expressions import Expression, Operand, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

_MOST_VALUES: Final = 1 << 14


class GraphValue(msgspec.Struct, frozen=True, gc=False):
    """A value. Its arguments are the numbers of earlier values, of an operand or of a constant.

    Attributes are those of ``wire._program.ExpressionStep``, with a dtype instead of a name.
    """

    kind: Any
    name: str
    args: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[int, ...] = ()
    keepdims: bool = False


@final
class GraphKey:
    """Values as a key, whose hash is computed once."""

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Sequence[GraphValue]) -> None:
        self._values: Final = tuple(values)
        self._hash: Final = hash(self._values)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, GraphKey) and self._values == other._values

    def __hash__(self) -> int:
        return self._hash


@final
class ExpressionGraph:
    """Expressions in flat form: equal parts of them are one value.

    Attributes:
        values: all values, each after those that it is made of.
        operands: the refs that they read.
        constants: the numbers in them, and their words of four bytes.
        results: the values of the expressions, by index.
        products: the matrix products among the values, by index.
    """

    __slots__ = (
        "_known",
        "_numbers",
        "_places",
        "_structure",
        "constants",
        "operands",
        "products",
        "results",
        "values",
    )

    def __init__(self, expressions: Sequence[Operand]) -> None:
        self.values: Final[list[GraphValue]] = []
        self.operands: list[GpuRef] = []
        self.constants: Final[list[tuple[np.generic, tuple[int, ...]]]] = []
        self._known: dict[int, int] = {}  # by identity: the expressions are held meanwhile
        self._numbers: dict[GraphValue, int] = {}
        self._places: dict[tuple[object, ...], int] = {}
        self._structure: GraphKey | None = None
        self.products: Final[list[int]] = []
        self.results: Final = tuple([self._add(each) for each in expressions])

    def on(self, operands: list[GpuRef]) -> ExpressionGraph:
        """Return the graph on other refs of the same shapes and dtypes; it holds no others."""
        other = copy(self)
        other.operands = operands
        other._places = {}
        other._known = {}
        return other

    def rebuilt(
        self,
        operands: Sequence[GpuRef],
        product: Callable[[int, Operand, Operand], Operand] | None = None,
    ) -> tuple[Operand, ...]:
        """The expressions, made of other refs of the same shapes and dtypes.

        Args:
            operands: the other refs.
            product: replaces each matrix product, given its index and its operands.
        """
        made: list[Any] = []
        for at, value in enumerate(self.values):
            if value.kind == "operand":
                made.append(operands[value.args[0]])
                continue
            args: tuple[Operand, ...] = tuple(
                [] if value.kind == "constant" else [made[arg] for arg in value.args]
            )
            if value.kind == "matmul" and product is not None:
                made.append(product(at, args[0], args[1]))
                continue
            params: tuple[Any, ...] = value.axes if value.kind == "index" else ()
            if value.kind == "constant":
                params = self.constants[value.args[0]]
            elif value.kind in ("reduce", "arg"):
                params = value.axes, value.keepdims
            elif value.kind == "view":
                params = (tuple(None if axis < 0 else axis for axis in value.axes),)
            made.append(Expression(value.kind, value.name, args, params, value.shape, value.dtype))
        return tuple([made[at] for at in self.results])

    @property
    def structure(self) -> GraphKey:
        """Return the parts that are the same in every evaluation."""
        if self._structure is None:
            self._structure = GraphKey(self.values)
        return self._structure

    def _add(self, root: Operand) -> int:
        """Return the number of an expression; its parts get lower numbers."""
        known = self._known
        if id(root) not in known:
            for each in parts_of(root):
                if id(each) not in known:
                    known[id(each)] = self._value(each)
        return known[id(root)]

    def _value(self, x: Operand) -> int:
        if isinstance(x, GpuRef):
            block = x.block
            place = (block.base, block.offset, x.shape, x.strides, x.dtype)
            at = self._places.get(place)
            if at is None:
                at = self._places[place] = len(self.operands)
                self.operands.append(x)
            return self._number(GraphValue("operand", "", (at,), x.shape, x.dtype))
        if not isinstance(x, Expression):
            raise TypeError(f"an expression is made of refs and numbers, not of {type(x).__name__}")
        if x.kind == "constant":
            self.constants.append(x.params)
            args: tuple[int, ...] = (len(self.constants) - 1,)
        else:
            args = tuple([self._known[id(arg)] for arg in x.args])
        axes: tuple[int, ...] = ()
        keepdims = False
        if x.kind in ("reduce", "arg"):
            axes, keepdims = x.params
            if not axes:  # each element is reduced alone; kernels have an axis for that
                inner = self.values[args[0]]
                last = len(inner.shape)
                seen = GraphValue(
                    "view", "", args, (*inner.shape, 1), inner.dtype, (*range(last), -1)
                )
                args, axes, keepdims = (self._number(seen),), (last,), False
        elif x.kind == "view":
            axes = tuple(-1 if at is None else at for at in x.params[0])
        elif x.kind == "index":
            axes = x.params
        return self._number(GraphValue(x.kind, x.name, args, x.shape, x.dtype, axes, keepdims))

    def _number(self, value: GraphValue) -> int:
        at = self._numbers.get(value)
        if at is None:
            at = self._numbers[value] = len(self.values)
            if at >= _MOST_VALUES:
                raise Unsupported(
                    f"an expression of more than {_MOST_VALUES} values; evaluate parts of it first"
                )
            self.values.append(value)
            if value.kind == "matmul":
                self.products.append(at)
        return at

    @property
    def words(self) -> tuple[tuple[int, ...], ...]:
        """The constants as words."""
        return tuple([words for _, words in self.constants])
