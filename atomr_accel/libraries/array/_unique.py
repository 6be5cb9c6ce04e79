"""Distinct elements, their counts and places."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, SupportsIndex, TypeVar

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import NAMES
from ...arrays import GpuRef
from ...arrays.expressions import Operand
from ...arrays.expressions.promotion import common
from ...ops import Answered, D, Request, Submission, op
from ._sorting import Sorting
from ._top import FP8
from .choosing import INT64, asking, trimmed
from .steps import CallSteps
from .wire.indexing import PARTS, Distinct

T = TypeVar("T")


class UniqueAll(NamedTuple):
    """The result of ``unique_all``.

    Attributes:
        values: the different elements.
        indices: the first position of each.
        inverse_indices: the index in ``values`` of each element.
        counts: how often each occurs.
    """

    values: GpuRef
    indices: GpuRef
    inverse_indices: GpuRef
    counts: GpuRef


class UniqueCounts(NamedTuple):
    """The result of ``unique_counts``.

    Attributes:
        values: the different elements.
        counts: how often each occurs.
    """

    values: GpuRef
    counts: GpuRef


class UniqueInverse(NamedTuple):
    """The result of ``unique_inverse``.

    Attributes:
        values: the different elements.
        inverse_indices: the index in ``values`` of each element.
    """

    values: GpuRef
    inverse_indices: GpuRef


class Unique(Sorting[D]):
    """Distinct elements, by sorting."""

    @op
    def unique(
        self,
        ar: Operand,
        return_index: bool = False,
        return_inverse: bool = False,
        return_counts: bool = False,
        axis: SupportsIndex | None = None,
        *,
        equal_nan: bool = True,
    ) -> Request[GpuRef | tuple[GpuRef, ...]]:
        """Find the different elements, sorted; as ``numpy.unique``.

        Args:
            ar: a ref or an expression.
            return_index: whether to return the first position of each.
            return_inverse: whether to return, for each element, its index in the result.
            return_counts: whether to return how often each occurs.
            axis: the axis whose parts are compared as a whole, sorted by each of their elements in
                turn, and NaN in them are never equal; None flattens ``ar``.
            equal_nan: whether NaN are equal.

        Returns:
            The elements, or parts. Further results, int64, follow in a tuple in the order of the
            arguments.
        """
        given = self._operand(ar, "ar")
        flags = return_index, return_inverse, return_counts
        if axis is not None:
            at = normalize_axis_index(operator.index(axis), len(given.shape))
        if axis is not None and len(given.shape) > 1:
            return self._several("unique", lambda steps: self._parts(steps, given, at, flags))

        def made_of(found: tuple[GpuRef, ...]) -> GpuRef | tuple[GpuRef, ...]:
            return found if len(found) > 1 else found[0]

        return self._unique(given, flags, made_of, equal_nan=equal_nan)

    def _parts(
        self, steps: CallSteps, given: Operand, axis: int, flags: tuple[bool, bool, bool]
    ) -> GpuRef | tuple[GpuRef, ...]:
        """Return the different parts along an axis."""
        own: Any = self.as_requests(steps.preparer.home)
        ask: Any = steps.preparer.perform
        moved = ask(own.ascontiguousarray(given)).moveaxis(axis, 0)
        n, rest = moved.shape[0], moved.shape[1:]
        if not n:
            none = [steps.output((0,), INT64) for wanted in flags if wanted]
            empty = steps.output(given.shape, given.dtype)
            return (empty, *none) if none else empty
        rows = ask(own.ascontiguousarray(moved)).reshape(n, math.prod(rest))
        columns = [rows[:, at] for at in range(rows.shape[1])[::-1]]
        order = ask(own.lexsort(columns) if columns else own.arange(n))
        ordered = ask(own.take(rows, order, 0))
        differ = ask(own.any(ordered[1:] != ordered[:-1], axis=1))
        begins = ask(own.concatenate([ask(own.ones(1, np.bool_)), differ]))
        places = ask(own.flatnonzero(begins))
        parts = ask(own.take(ordered, places, 0)).reshape(places.size, *rest)
        found = [ask(own.ascontiguousarray(parts.moveaxis(0, axis)))]
        if flags[0]:
            found.append(ask(own.take(order, places)))
        if flags[1]:
            numbers = ask(own.cumsum(begins, dtype=np.int64))
            found.append(ask(own.setitem(ask(own.empty_like(order)), order, numbers - 1)))
        if flags[2]:
            found.append(ask(own.diff(places, append=n)))
        return tuple(found) if len(found) > 1 else found[0]

    @op
    def unique_values(self, x: Operand) -> Request[GpuRef]:
        """Find the different elements, with each NaN; as ``numpy.unique_values``, but sorted."""
        flags = False, False, False
        return self._unique(self._operand(x), flags, operator.itemgetter(0), equal_nan=False)

    @op
    def unique_counts(self, x: Operand) -> Request[UniqueCounts]:
        """Find the different elements, and count each; as ``numpy.unique_counts``."""
        return self._unique(
            self._operand(x), (False, False, True), UniqueCounts._make, equal_nan=False
        )

    @op
    def unique_inverse(self, x: Operand) -> Request[UniqueInverse]:
        """Find the different elements, and the inverse; as ``numpy.unique_inverse``."""
        return self._unique(
            self._operand(x), (False, True, False), UniqueInverse._make, equal_nan=False
        )

    @op
    def unique_all(self, x: Operand) -> Request[UniqueAll]:
        """Find the different elements, their first positions, the inverse, and the count of each.

        As ``numpy.unique_all``.
        """
        flags = True, True, True
        return self._unique(self._operand(x), flags, UniqueAll._make, equal_nan=False)

    def _unique(
        self,
        given: Operand,
        flags: tuple[bool, bool, bool],
        made_of: Callable[[tuple[GpuRef, ...]], T],
        *,
        equal_nan: bool,
        more: tuple[GpuRef, ...] = (),
    ) -> Request[T]:
        """Return a question with room for all elements; the unused room is freed.

        Elements of ``more`` come after those given.
        """
        shape, dtype = given.shape, common((given.dtype, *[each.dtype for each in more]))
        narrow = NAMES[dtype] in FP8  # which are sorted as another dtype

        def finish(count: int, refs: tuple[GpuRef, ...]) -> Any:
            found = [trimmed(refs[0], count)]
            rest = iter(refs[1:])
            for number, wanted in enumerate(flags):
                if wanted:
                    made = next(rest)
                    found.append(made.reshape(shape) if number == 1 else trimmed(made, count))
            return tuple(found) if narrow else made_of(tuple(found))

        def ask(steps: CallSteps) -> Submission[Any]:
            flat = steps.ref(given, "ar")
            if more:
                own: Any = self.as_requests(steps.preparer.home)
                flat = steps.do(own.concatenate([flat, *more], None))
            flat = steps.flat(flat)
            values, order = self._rows(steps, flat, 0, descending=False, order=flags[0] or flags[1])
            return _distinct(steps, values, order, flags, finish, equal_nan=equal_nan)

        asked: Request[Any] = asking(self._cub, "unique", ask)
        if not narrow:
            return asked

        def build(steps: CallSteps) -> T:
            found = steps.preparer.perform(asked)
            assert found is not None
            return made_of((steps.cast(found[0], dtype), *found[1:]))

        return self._several("unique", build)


def _distinct(
    steps: CallSteps,
    values: GpuRef,
    order: GpuRef | None,
    flags: tuple[bool, bool, bool],
    finish: Callable[[int, tuple[GpuRef, ...]], Any],
    *,
    equal_nan: bool,
) -> Submission[Any]:
    """Return the question which elements of a sorted row differ, with room for all results."""
    made = steps.output(values.shape, values.dtype)
    places, inverse, lengths = (
        steps.output(values.shape, INT64) if wanted else None for wanted in flags
    )
    begins = steps.output(values.shape, INT64) if flags[2] else None
    scratch = steps.output((PARTS,), INT64)
    message = Distinct(
        values.addressable_block.address,
        values.size,
        NAMES[values.dtype],
        equal_nan,
        _address(order),
        _address(made),
        _address(places),
        _address(inverse),
        _address(begins),
        _address(lengths),
        scratch.addressable_block.address,
    )
    reads = [ref.addressable_block for ref in (values, order) if ref is not None]
    targets = (made, places, inverse, begins, lengths, scratch)
    writes = [ref.addressable_block for ref in targets if ref is not None]
    refs = tuple([ref for ref in (made, places, inverse, lengths) if ref is not None])
    return Submission(message, tuple(reads), tuple(writes), finish=Answered(finish, refs))


def _address(ref: GpuRef | None) -> Any:
    return 0 if ref is None else ref.addressable_block.address
