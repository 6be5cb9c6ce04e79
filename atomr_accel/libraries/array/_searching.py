"""Search of sorted arrays: ``searchsorted`` and ``digitize``."""

from __future__ import annotations

from typing import Literal

from ..._dtypes import DTYPES, NAMES
from ...arrays import GpuRef
from ...arrays.expressions import Operand, Value, constant
from ...arrays.expressions.expression import broadcast_constant, where
from ...arrays.expressions.promotion import FLOAT32, common
from ...ops import D, Request, op
from ._creation import _number
from ._keys import taken
from ._top import FP8
from .choosing import INT64
from .steps import ArrayPart, CallSteps
from .wire.indexing import RequireOrder


class Searching(ArrayPart[D]):
    """Search of sorted arrays."""

    @op
    def searchsorted(
        self,
        a: GpuRef,
        v: Value,
        side: Literal["left", "right"] = "left",
        sorter: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Find positions of elements in sorted data, int64; as ``numpy.searchsorted``.

        Args:
            a: one dimension, sorted.
            v: the elements to look for.
            side: before or after equal elements.
            sorter: indices that sort ``a``.
        """
        ref = self._ref(a, "a")
        given = v if isinstance(v, Operand) else constant(_number(v, "v"), ref.dtype)
        order = None if sorter is None else self._ref(sorter, "sorter")
        return self._several("searchsorted", lambda steps: search(steps, ref, given, side, order))

    @op
    def digitize(self, x: Operand, bins: GpuRef, right: bool = False) -> Request[GpuRef]:
        """Return the interval of each element, int64; as ``numpy.digitize``.

        Args:
            x: numbers.
            bins: the edges of intervals, in increasing or decreasing order.
            right: whether they include their ends.

        Raises:
            ValueError: other dimensions; or edges in neither order, which the device finds, and
                which is not raised in a recording on CUDA.
        """
        edges, given = self._ref(bins, "bins"), self._operand(x)

        def build(steps: CallSteps) -> GpuRef:
            if edges.ndim != 1 or edges.size < 2 or edges.dtype.kind == "c":
                return search(steps, edges, given, "left" if right else "right", None)
            falls = require_order(steps, edges, "digitize", falls=True)
            rising = steps.evaluate(where(falls, edges[::-1], edges))
            found = search(steps, rising, given, "left" if right else "right", None)
            return steps.evaluate(where(falls, edges.size - found, found))

        return self._several("digitize", build)


def require_order(steps: CallSteps, edges: GpuRef, name: str, *, falls: bool) -> GpuRef:
    """Have the device check the order of edges.

    With ``falls`` a decreasing order is one, too.

    Returns:
        Whether they decrease, a bool on the device.
    """
    flags = steps.output((2,), DTYPES["bool"])
    before, after = edges[:-1], edges[1:]
    steps.evaluate_all([(after < before).any(), (after > before).any()], (flags[0], flags[1]))
    message = RequireOrder(flags.addressable_block.address, falls)
    steps.submit(f"array.{name}", message, [flags.addressable_block], [])
    return flags[0]


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
