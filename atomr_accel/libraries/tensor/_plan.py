"""Plans for sums of products: products of matrices if possible, other kernels otherwise.

The axes of a pair of arrays fall into four groups. Axes of both arrays belong to the batch if the
result has them, and are inner axes, which are summed, if it does not. The other two groups are the
axes of one array only. If the axes of each group follow each other in memory, they count as one
axis, and the pair is a batch of matrix products of the arrays in place. Otherwise an array is
copied first, as in transposing, multiplying, transposing (TTGT; Springer, Bientinesi, ACM TOMS 44,
2018).

Products without inner axes, and sums that no matrix product computes, are expressions of one kernel
each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ..._dtypes import NAMES
from ...arrays.views import is_contiguous, strides_of
from ...wire.matrices import lay
from ._path import Seen, pairs, seen_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from ._path import PathStep
    from ._subscripts import Labelled

MATRICES: Final = frozenset(
    ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
)
"""The dtypes of matrix products."""


class ArrayLayout(NamedTuple):
    """An array as callers gave it; strides in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


class ArrayView(NamedTuple):
    """A value of a plan, seen in a certain way.

    Attributes:
        value: which: operands come first, then the result, then scratch memory.
        shape: of the view.
        strides: in bytes.
    """

    value: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class MatrixProduct(NamedTuple):
    """Matrix products: shapes (..., m, k), (..., k, n) and (..., m, n)."""

    a: ArrayView
    b: ArrayView
    target: ArrayView


class Sum(NamedTuple):
    """A product of arrays that broadcast, summed along its last axes.

    Attributes:
        parts: one or two.
        axes: the number of summed axes.
        target: of the shape of the remaining axes.
    """

    parts: tuple[ArrayView, ...]
    axes: int
    target: ArrayView


class CopyStep(NamedTuple):
    """A copy of an array, possibly with another dtype."""

    source: ArrayView
    target: ArrayView


class Contraction(NamedTuple):
    """One call of cuTENSOR: views of three arrays with the index of each axis."""

    views: tuple[ArrayView, ArrayView, ArrayView]
    modes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class EinsumPlan(NamedTuple):
    """A sum of products.

    Attributes:
        shape: of the result.
        scratch: shapes of arrays in between.
        steps: in their order.
        copies: whether arrays are copied, or would be, without cuTENSOR.
    """

    shape: tuple[int, ...]
    scratch: tuple[tuple[int, ...], ...]
    steps: tuple[MatrixProduct | Sum | CopyStep | Contraction, ...]
    copies: bool


def make_plan(
    labelled: Labelled,
    operands: Sequence[ArrayLayout],
    out: ArrayLayout | None,
    dtype: np.dtype[Any],
    optimize: Any,
    *,
    contracts: bool,
) -> EinsumPlan:
    """Plan a sum of products.

    The shape of ``out`` is checked already. ``contracts`` uses cuTENSOR for pairs that matrix
    products would copy.
    """
    return _EinsumPlanner(labelled, operands, out, dtype, contracts).plan(optimize)


@final
class _EinsumPlanner:
    def __init__(
        self,
        labelled: Labelled,
        operands: Sequence[ArrayLayout],
        out: ArrayLayout | None,
        dtype: np.dtype[Any],
        contracts: bool,
    ) -> None:
        self._labelled = labelled
        self._operands = operands
        self._sizes = labelled.sizes
        self._dtype = dtype
        self._contracts = contracts and NAMES[dtype] in MATRICES
        self._shape = tuple(self._sizes[label] for label in labelled.output)
        self._out = out or self._layout(self._shape)
        self._result = len(operands)
        self._scratch: list[tuple[int, ...]] = []
        self._steps: list[MatrixProduct | Sum | CopyStep | Contraction] = []
        self._copies = False

    def plan(self, optimize: Any) -> EinsumPlan:
        """All steps."""
        values: list[tuple[int, Seen]] = []
        for at, (labels, layout) in enumerate(
            zip(self._labelled.inputs, self._operands, strict=True)
        ):
            seen = seen_as(labels, layout.shape, layout.strides)
            values.append(
                self._copied(at, seen, seen.labels) if self._converts(layout) else (at, seen)
            )
        result = seen_as(self._labelled.output, self._shape, self._out.strides)
        inputs = [seen.labels for _, seen in values]
        *steps, last = pairs(inputs, result.labels, self._sizes, optimize)
        for pair in steps:
            values.append(self._made(pair.output, pair, values))
        if self._converts(self._out):
            made = self._made(result.labels, last, values)
            self._steps.append(
                CopyStep(
                    self._view(*made, result.labels),
                    self._view(self._result, result, result.labels),
                )
            )
        else:
            self._pair(last, values, (self._result, result))
        return EinsumPlan(self._shape, tuple(self._scratch), tuple(self._steps), self._copies)

    def _converts(self, layout: ArrayLayout) -> bool:
        return layout.dtype is not self._dtype

    def _layout(self, shape: tuple[int, ...]) -> ArrayLayout:
        return ArrayLayout(shape, strides_of(shape, self._dtype.itemsize), self._dtype)

    def _extents(self, labels: Iterable[int]) -> tuple[int, ...]:
        return tuple([self._sizes[label] for label in labels])

    def _new(self, labels: tuple[int, ...]) -> tuple[int, Seen]:
        """Scratch memory for an array with these axes."""
        shape = self._extents(labels)
        self._scratch.append(shape)
        return self._result + len(self._scratch), Seen(labels, self._layout(shape).strides)

    def _view(self, value: int, seen: Seen, labels: Sequence[int]) -> ArrayView:
        """Return an array with axes in this order, with axes of one element for missing labels."""
        strides = dict(zip(*seen, strict=True))
        return ArrayView(
            value,
            tuple([self._sizes[each] if each in strides else 1 for each in labels]),
            tuple([strides.get(each, 0) for each in labels]),
        )

    def _copied(self, value: int, seen: Seen, labels: tuple[int, ...]) -> tuple[int, Seen]:
        """A contiguous copy with axes in this order, of the dtype that is computed with."""
        made = self._new(labels)
        self._steps.append(CopyStep(self._view(value, seen, labels), self._view(*made, labels)))
        return made

    def _summed(self, value: int, seen: Seen, kept: tuple[int, ...]) -> tuple[int, Seen]:
        """The sum along all axes but these."""
        made = self._new(kept)
        self._sum([(value, seen)], made)
        return made

    def _sum(self, parts: list[tuple[int, Seen]], target: tuple[int, Seen]) -> None:
        kept = target[1].labels
        every = dict.fromkeys(label for _, seen in parts for label in seen.labels)
        gone = [label for label in every if label not in kept]
        views = tuple(self._view(*part, (*kept, *gone)) for part in parts)
        self._steps.append(Sum(views, len(gone), self._view(*target, kept)))

    def _made(
        self, labels: tuple[int, ...], pair: PathStep, values: list[tuple[int, Seen]]
    ) -> tuple[int, Seen]:
        """Compute a pair into scratch memory, with axes in the order that costs nothing."""
        return self._pair(pair._replace(output=labels), values, None)

    def _pair(
        self, pair: PathStep, values: list[tuple[int, Seen]], target: tuple[int, Seen] | None
    ) -> tuple[int, Seen]:
        parts = [values[each] for each in pair.parts]
        kept = pair.output
        if len(parts) == 1:
            made = target or self._new(kept)
            (part,) = parts
            if {*part[1].labels} == {*kept}:
                self._steps.append(CopyStep(self._view(*part, kept), self._view(*made, kept)))
            else:
                self._sum(parts, made)
            return made
        labels = [{*seen.labels} for _, seen in parts]
        for at, (value, seen) in enumerate(parts):
            needed = tuple(each for each in seen.labels if each in kept or each in labels[1 - at])
            if needed != seen.labels:
                parts[at] = self._summed(value, seen, needed)
        return self._multiplied(parts[0], parts[1], kept, target)

    # --- products of two ------------------------------------------------------------------

    def _multiplied(
        self,
        a: tuple[int, Seen],
        b: tuple[int, Seen],
        kept: tuple[int, ...],
        target: tuple[int, Seen] | None,
    ) -> tuple[int, Seen]:
        if target is not None and kept and kept[-1] in a[1].labels and kept[-1] not in b[1].labels:
            a, b = b, a  # so that rows of the result are rows in memory
        in_a, in_b = a[1].labels, b[1].labels
        batch = tuple(each for each in kept if each in in_a and each in in_b)
        inner = [each for each in in_a if each in in_b and each not in kept]
        rows = _by_stride(a[1], [each for each in kept if each not in in_b])
        columns = _by_stride(b[1], [each for each in kept if each not in in_a])
        natural = (*batch, *rows, *columns)
        every = self._extents((*natural, *inner))
        if NAMES[self._dtype] not in MATRICES or not inner or not (rows or columns) or 0 in every:
            made = target or self._new(kept)
            self._sum([a, b], made)
            return made
        larger = max(a, b, key=lambda part: math.prod(self._extents(part[1].labels)))
        summed = _by_stride(larger[1], inner)
        groups = batch, rows, summed, columns
        made = target or self._new(natural)
        left = self._matrix(a, batch, rows, summed)
        right = self._matrix(b, batch, summed, columns)
        asis = [part[1] for part, good in ((a, left), (b, right)) if good]
        to = target is None or self._target(made, asis, batch, rows, columns)
        if not (left and right and to) and self._contractible(a, b, made):
            self._copies = True
            if self._contracts:
                parts = (a, b, made)
                modes = (in_a, in_b, made[1].labels)
                views = [self._view(*part, each) for part, each in zip(parts, modes, strict=True)]
                self._steps.append(Contraction((views[0], views[1], views[2]), modes))
                return made
        if not left:
            a = self._copied(*a, (*batch, *rows, *summed))
        if not right:
            b = self._copied(*b, (*batch, *summed, *columns))
        through = made if to else self._new(natural)
        self._steps.append(self._product(a, b, through, *groups))
        if not to:
            labels = made[1].labels
            self._steps.append(CopyStep(self._view(*through, labels), self._view(*made, labels)))
        return made

    def _contractible(self, *parts: tuple[int, Seen]) -> bool:
        """True if cuTENSOR takes these arrays: all strides are positive multiples of an element."""
        size = self._dtype.itemsize
        return all(each > 0 and not each % size for _, seen in parts for each in seen.strides)

    def _fold(self, labels: Sequence[int], seen: Seen) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides of axes, those made one that follow each other without gaps."""
        strides = dict(zip(*seen, strict=True))
        shape, (steps,) = _merged(self._extents(labels), [[strides[each] for each in labels]])
        return shape, steps

    def _matrix(
        self,
        part: tuple[int, Seen],
        batch: Sequence[int],
        rows: Sequence[int],
        columns: Sequence[int],
        *,
        op: bool = True,
    ) -> bool:
        """Return True if an array in memory is a batch of matrices, transposed ones if ``op``."""
        seen = part[1]
        size = self._dtype.itemsize
        groups = [self._fold(group, seen) for group in (rows, columns)]
        if any(len(shape) > 1 for shape, _ in groups) or any(each % size for each in seen.strides):
            return False
        strides = dict(zip(*seen, strict=True))
        shape = (*self._extents(batch), *(math.prod(shape) for shape, _ in groups))
        steps = (*(strides[each] for each in batch), *(sum(steps) for _, steps in groups))
        laid = lay(shape, tuple(each // size for each in steps), 0, conjugates=True)
        return laid is not None and (op or not laid.op)

    def _target(
        self,
        part: tuple[int, Seen],
        asis: Sequence[Seen],
        batch: Sequence[int],
        rows: Sequence[int],
        columns: Sequence[int],
    ) -> bool:
        """Return True if products can write to this array, with some operands read in place.

        One stride must lead to each of the result's matrices, unless they have no gaps.
        """
        if not self._matrix(part, batch, rows, columns, op=False):
            return False
        view = self._view(*part, (*batch, *rows, *columns))
        if is_contiguous(view.shape, view.strides, self._dtype.itemsize):
            return True
        strides = [dict(zip(*seen, strict=True)) for seen in (part[1], *asis)]
        steps = [[each[label] for label in batch] for each in strides]
        return len(_merged(self._extents(batch), steps)[0]) <= 1

    def _product(
        self,
        a: tuple[int, Seen],
        b: tuple[int, Seen],
        target: tuple[int, Seen],
        batch: Sequence[int],
        rows: Sequence[int],
        inner: Sequence[int],
        columns: Sequence[int],
    ) -> MatrixProduct:
        """Products of matrices, with as few axes of batches as the arrays allow."""
        strides = [dict(zip(*seen, strict=True)) for _, seen in (a, b, target)]
        extents, steps = _merged(
            self._extents(batch), [[each[label] for label in batch] for each in strides]
        )
        views = [
            ArrayView(
                value,
                (*extents, *(math.prod(self._extents(group)) for group in groups)),
                (*before, *(sum(self._fold(group, seen)[1]) for group in groups)),
            )
            for (value, seen), before, groups in zip(
                (a, b, target),
                steps,
                ((rows, inner), (inner, columns), (rows, columns)),
                strict=True,
            )
        ]
        return MatrixProduct(*views)


def _by_stride(seen: Seen, labels: Sequence[int]) -> tuple[int, ...]:
    """Indices in the order in which an array has them in memory."""
    strides = dict(zip(*seen, strict=True))
    return tuple(sorted(labels, key=lambda label: -abs(strides[label])))


def _merged(
    extents: Sequence[int], several: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Axes of several arrays, those made one that follow each other without gaps in all."""
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []
    for at, extent in enumerate(extents):
        now = tuple(strides[at] for strides in several)
        if steps and all(
            before == extent * each for before, each in zip(steps[-1], now, strict=True)
        ):
            sizes[-1] *= extent
            steps[-1] = now
        else:
            sizes.append(extent)
            steps.append(now)
    return tuple(sizes), tuple(tuple(each[at] for each in steps) for at in range(len(several)))
