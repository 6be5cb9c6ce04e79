"""Search of sorted arrays: ``searchsorted`` and ``digitize``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..._dtypes import NAMES
from ...arrays import GpuRef
from ...arrays.expressions import Operand
from ...arrays.expressions.expression import broadcast_constant
from ...arrays.expressions.promotion import FLOAT32, common
from ...ops import D, Request, op
from ._keys import taken
from ._top import FP8
from .choosing import INT64
from .steps import ArrayPart, CallSteps

if TYPE_CHECKING:
    pass


class Searching(ArrayPart[D]):
    """Search of sorted arrays."""

    @op
    def searchsorted(
        self,
        a: GpuRef,
        v: Operand,
        side: Literal["left", "right"] = "left",
        sorter: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Find positions of elements in sorted data, int64; as ``numpy.searchsorted``.

        Args:
            a: one dimension, sorted.
            v: the elements to look for.
            side: before or after equal elements.
            sorter: indices that sort ``a``.

        Raises:
            ValueError: other dimensions, or another ``side``.
            TypeError: a dtype without an order.
            Unsupported: CUB is not installed.
        """
        ref, given = self._ref(a, "a"), self._operand(v, "v")
        order = None if sorter is None else self._ref(sorter, "sorter")
        return self._several("searchsorted", lambda steps: search(steps, ref, given, side, order))

    @op
    def digitize(self, x: Operand, bins: GpuRef, right: bool = False) -> Request[GpuRef]:
        """Return the interval of each element, int64; as ``numpy.digitize``.

        Args:
            x: numbers.
            bins: the edges of intervals, in increasing order.
            right: whether they include their ends.

        Raises:
            ValueError, TypeError, Unsupported: as ``searchsorted``.
        """
        edges, given = self._ref(bins, "bins"), self._operand(x)
        side: Literal["left", "right"] = "left" if right else "right"
        return self._several("digitize", lambda steps: search(steps, edges, given, side, None))


def search(
    steps: CallSteps, a: GpuRef, given: Operand, side: object, sorter: GpuRef | None
) -> GpuRef:
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    if a.ndim != 1:
        raise ValueError("object too deep for desired array" if a.ndim else "a must be 1-d")
    data = steps.ref(a, "a")
    if sorter is not None:
        if sorter.shape != a.shape:
            raise ValueError("sorter.size must equal len(a)")
        data = taken(steps, data, sorter)
    dtype = common((a.dtype, given.dtype))
    if NAMES[dtype] in FP8:
        dtype = FLOAT32
    data = steps.contiguous(steps.cast(data, dtype))
    values = steps.contiguous(steps.cast(steps.ref(given, "v"), dtype))
    if not values.size or not data.size:
        return steps.evaluate(broadcast_constant(values.shape, INT64))
    bound = steps.cub.lower_bound if side == "left" else steps.cub.upper_bound
    return steps.do(bound(data, values))
