"""Plans of expressions: their kernels, and the geometry of each.

One kernel runs over one space of indices: axes that results keep, and axes that are reduced. A
reduction is part of a kernel if it reduces just these axes for each row of it. Other reductions run
first, in their own kernels, whose results are buffers for this one. Expressions that are too deep
are cut in the same way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, final

from ..._errors import Unsupported
from ._geometry import Launching, launches_of, strides_in_order
from ._lower import BufferPlace, LoweredKernel, Space, StoredValue, Target, is_reduction

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from .graph import GraphValue

_DEEPEST: Final = 96
"""Values in a row that one kernel computes."""
_FEW_ROWS: Final = 256
_LONG_ROW: Final = 1 << 16
"""Fewer and longer rows than these are reduced by kernels that share each row."""

Conflict = tuple[Literal["same", "part"], int, int]
"""An output and an operand that are the same memory, or share some."""


class BufferLayout(NamedTuple):
    """A buffer without its place.

    Attributes:
        strides: bytes.
        alignment: the alignment of its place, in bytes.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    alignment: int


class EvaluationPlan(NamedTuple):
    """Plan of an expression's computation.

    Attributes:
        launches: the launches in order.
        scratch: number and dtype of the elements of each intermediate buffer.
    """

    launches: tuple[Launching, ...]
    scratch: tuple[tuple[int, np.dtype[Any]], ...]


def make_plan(
    values: Sequence[GraphValue],
    results: Sequence[int],
    operands: Sequence[BufferLayout],
    outputs: Sequence[BufferLayout],
    conflicts: Sequence[Conflict] = (),
) -> EvaluationPlan:
    """Return the plan of an expression."""
    plan = _EvaluationPlanner(values, operands).plan(results, outputs, frozenset())
    if len(plan.launches) == 1 and all(
        # Elements that are read and written by the same thread, and read by no other.
        word == "same" and (operand, at) in plan.launches[0].in_place
        for word, at, operand in conflicts
    ):
        return plan
    if conflicts and plan.launches:
        apart = frozenset(at for _, at, _ in conflicts)
        plan = _EvaluationPlanner(values, operands).plan(results, outputs, apart)
    return plan


@final
class _EvaluationPlanner:
    """Makes one plan."""

    def __init__(self, values: Sequence[GraphValue], operands: Sequence[BufferLayout]) -> None:
        self._values: Final = values
        self._operands: Final = operands
        self._launches: Final[list[Launching]] = []
        self._scratch: Final[list[tuple[int, np.dtype[Any]]]] = []
        self._stored: Final[dict[int, StoredValue]] = {}

    def plan(
        self, results: Sequence[int], outputs: Sequence[BufferLayout], apart: frozenset[int]
    ) -> EvaluationPlan:
        """The plan; results of the numbers in ``apart`` are copied to their place in the end."""
        for at in self._too_deep():
            self.store(at)
        targets: list[Target] = []
        for number, (result, layout) in enumerate(zip(results, outputs, strict=True)):
            if 0 in layout.shape:
                continue
            if number in apart:
                self.store(result)
            else:
                targets.append(self._target(number, result, layout))
        for group in self._groups(targets):
            self._compute(group)
        for number in sorted(apart):
            if 0 not in outputs[number].shape:
                self._compute([self._target(number, results[number], outputs[number])])
        return EvaluationPlan(tuple(self._launches), tuple(self._scratch))

    @staticmethod
    def _target(number: int, result: int, layout: BufferLayout) -> Target:
        itemsize = layout.dtype.itemsize
        strides = tuple(stride // itemsize for stride in layout.strides)
        return Target(result, BufferPlace("output", number), strides, layout.alignment)

    def _too_deep(self) -> list[int]:
        """The values at which an expression that is too deep is cut."""
        cuts = []
        depths: list[int] = []
        for at, value in enumerate(self._values):
            depth = 0
            if value.kind not in ("operand", "constant"):
                depth = 1 + max((depths[arg] for arg in value.args), default=0)
                if is_reduction(value):
                    depth += 4
            if depth > _DEEPEST:
                cuts.append(at)
                depth = 0
            depths.append(depth)
        return cuts

    def store(self, at: int) -> StoredValue:
        """Compute a value into its own buffer, before the kernels to come."""
        found = self._stored.get(at)
        if found is None:
            value = self._values[at]
            number = len(self._scratch)
            self._scratch.append((math.prod(value.shape), value.dtype))
            strides = strides_in_order(value.shape)
            place = BufferPlace("scratch", number)
            if 0 not in value.shape:
                if is_reduction(value):
                    self._compute([Target(at, place, strides, 256)])
                else:
                    for group in self._groups([Target(at, place, strides, 256)]):
                        self._compute(group)
            found = self._stored[at] = StoredValue(place, strides, 256)
        return found

    # --- which results one kernel has -------------------------------------------------------

    def _outermost(self, at: int) -> int | None:
        """The last reduction that a value is made of, and that is not stored."""
        best: int | None = None
        seen = set()
        waiting = [at]
        while waiting:
            each = waiting.pop()
            if each in seen or each in self._stored:
                continue
            seen.add(each)
            value = self._values[each]
            if is_reduction(value):
                if best is None or each > best:
                    best = each
            elif value.kind not in ("operand", "constant", "index"):
                waiting += value.args
        return best

    def _groups(self, targets: Sequence[Target]) -> list[list[Target]]:
        """Targets that one kernel may compute, together."""
        groups: dict[tuple[object, ...], list[Target]] = {}
        plain: list[Target] = []
        for target in targets:
            reduction = self._outermost(target.value)
            if reduction is None:
                plain.append(target)
                continue
            value = self._values[reduction]
            key: tuple[object, ...] = (self._values[value.args[0]].shape, value.axes)
            groups.setdefault(key, []).append(target)
        for target in plain:
            shape = self._values[target.value].shape
            key = next((key for key in groups if key[0] == shape), (shape, None))
            groups.setdefault(key, []).append(target)
        return [*groups.values()]

    def _compute(self, targets: list[Target]) -> None:
        """Launch what computes some targets."""
        reductions = [
            found for target in targets if (found := self._outermost(target.value)) is not None
        ]
        if not reductions:
            self._separately(targets)
            return
        primary = max(reductions)
        value = self._values[primary]
        shape = self._values[value.args[0]].shape
        space = Space(shape, value.axes)
        together = [target for target in targets if space.axes_of(self._shape(target))]
        rest = [target for target in targets if target not in together]
        length = math.prod(shape[axis] for axis in space.reduced)
        rows = math.prod(shape) // length if length else 0
        alone = rows < _FEW_ROWS and length > _LONG_ROW
        if alone:
            together = [target for target in together if self._shape(target) != shape]
            rest = [target for target in targets if target not in together]
        if together:
            self._launch(space, together, only=primary if alone else None)
        self._separately(rest)

    def _separately(self, targets: list[Target]) -> None:
        """Launch what computes targets elementwise, once all that is reduced for them is."""
        shapes: dict[tuple[int, ...], list[Target]] = {}
        for target in targets:
            shapes.setdefault(self._shape(target), []).append(target)
        for shape, alike in shapes.items():
            self._launch(Space(shape, ()), alike)

    def _shape(self, target: Target) -> tuple[int, ...]:
        return self._values[target.value].shape

    def _launch(self, space: Space, targets: list[Target], only: int | None = None) -> None:
        lowered = LoweredKernel(self._values, self._operands, self._stored, self.store, space, only)
        for target in targets:
            lowered.add(target)
        launches = launches_of(lowered, self._new_scratch)
        for each in launches:
            if len(each.places) + len(each.numbers) > _MOST_WORDS:
                raise Unsupported(
                    "an expression of so many refs does not fit one kernel's arguments; evaluate "
                    "parts of it first"
                )
        self._launches.extend(launches)

    def _new_scratch(self, count: int, dtype: np.dtype[Any]) -> BufferPlace:
        self._scratch.append((count, dtype))
        return BufferPlace("scratch", len(self._scratch) - 1)


_MOST_WORDS: Final = 480
"""Words of a kernel's arguments, of which there are 4 KiB."""
