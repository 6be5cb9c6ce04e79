"""Gathers and scatters as messages, and questions that only the device can answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

from ..._dtypes import NAMES, as_dtype, is_float
from ..._errors import Unsupported
from ...arrays import GpuRef, span
from ...arrays.expressions import cast
from ...ops import ARRAY_LANE as LANE
from ...ops import ARRAY_WAITS as WAITS
from ...ops import LARGEST_ITEM, Answered, Request, Submission
from .steps import CallSteps
from .wire.indexing import PARTS, Choose, Compact, Element, FindOutside, Index, ReadNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...arrays.expressions import Operand
    from ...ops import AsRequests, LaneSpec, Preparer
    from ..cub.facade import Cub
    from .wire.indexing import Outside

T = TypeVar("T")
Kind = Literal["gather", "set", "add"]
Mode = Literal["raise", "wrap", "clip"]

MOST_INDICES: Final = 8
MOST_AXES: Final = 32

_BOOL: Final = as_dtype(np.bool_)
INT64: Final = as_dtype(np.int64)


class GatherAxis(NamedTuple):
    """Axis of the elements that are gathered or scattered.

    Attributes:
        extent: the number of elements.
        plain: bytes from one element to the next in the array that is moved as a whole.
        chosen: the same in the array of which some elements are chosen.
        indices: the same in each array of indices.
    """

    extent: int
    plain: int
    chosen: int
    indices: tuple[int, ...]

    def continues(self, inner: GatherAxis) -> bool:
        """Return whether it forms one axis together with the next one."""
        n = inner.extent
        return (
            self.plain == n * inner.plain
            and self.chosen == n * inner.chosen
            and all(a == n * b for a, b in zip(self.indices, inner.indices, strict=True))
        )


def choose(
    steps: CallSteps,
    kind: Kind,
    plain: GpuRef,
    chosen: GpuRef,
    indices: Sequence[tuple[GpuRef, int]],
    loops: Sequence[GatherAxis],
    rest: Sequence[GatherAxis],
    *,
    outside: Outside,
    ordered: bool = False,
) -> None:
    """Move elements from or to the positions that indices give.

    Args:
        steps: the steps of the call.
        kind: ``"gather"``, ``"set"`` or ``"add"``.
        plain: the array that is moved as a whole.
        chosen: the array of which some elements are chosen.
        indices: arrays of whole numbers of one dtype, each with its axis of ``chosen``.
        loops: the axes of the indices, in their order.
        rest: the other axes.
        outside: the meaning of indices out of bounds.
        ordered: whether several elements for one position are written in order.
    """
    if not math.prod(each.extent for each in (*loops, *rest)):
        return
    if kind == "add" and is_float(chosen.dtype) and chosen.dtype.itemsize == 1:
        raise Unsupported(f"sums of {chosen.dtype.name} at indices; make them in another dtype")
    if len(indices) > MOST_INDICES:
        raise Unsupported(f"an index of more than {MOST_INDICES} arrays")
    axes, inner, itemsize = _merged(plain, chosen, indices, loops, rest, kind)
    if len(axes) > MOST_AXES:
        raise Unsupported(f"indices and parts of more than {MOST_AXES} axes")
    low, high = span(chosen.shape, chosen.strides, chosen.dtype.itemsize)
    message = Choose(
        kind,
        plain.addressable_block.address,
        chosen.addressable_block.address,
        low,
        high - low,
        NAMES[chosen.dtype] if kind == "add" else _MOVED[itemsize],
        NAMES[indices[0][0].dtype],
        outside,
        tuple(
            Index(ref.addressable_block.address, chosen.shape[axis], chosen.strides[axis])
            for ref, axis in indices
        ),
        tuple(Element(*each) for each in axes),
        inner if ordered else 0,
    )
    blocks = [ref.addressable_block for ref, _ in indices]
    reads, writes = [*blocks, plain.addressable_block], [chosen.addressable_block]
    if kind == "gather":
        reads, writes = [*blocks, chosen.addressable_block], [plain.addressable_block]
    steps.submit(f"array.{kind}", message, reads, writes)


_MOVED: Final = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64", 16: "complex128"}


def _merged(
    plain: GpuRef,
    chosen: GpuRef,
    indices: Sequence[tuple[GpuRef, int]],
    loops: Sequence[GatherAxis],
    rest: Sequence[GatherAxis],
    kind: Kind,
) -> tuple[list[GatherAxis], int, int]:
    """Return fewer axes, the number of elements along the others than the loops, and their size."""
    itemsize = plain.dtype.itemsize
    first, others = _joined(loops), _joined(rest)
    if others and kind != "add":
        last = others[-1]
        if last.plain == last.chosen == itemsize:
            parts = [
                plain.addressable_block.offset,
                chosen.addressable_block.offset,
                last.extent * itemsize,
            ]
            parts += [each.plain for each in (*first, *others[:-1])]
            parts += [each.chosen for each in (*first, *others[:-1])]
            parts += [chosen.strides[axis] for _, axis in indices]
            wide = max(itemsize, math.gcd(LARGEST_ITEM, *parts))
            extent = last.extent * itemsize // wide
            others[-1:] = [] if extent == 1 else [GatherAxis(extent, wide, wide, last.indices)]
            itemsize = wide
    inner = math.prod(each.extent for each in others)
    return [*first, *others], inner, itemsize


def _joined(axes: Sequence[GatherAxis]) -> list[GatherAxis]:
    made: list[GatherAxis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        if made and made[-1].continues(axis):
            made[-1] = axis._replace(extent=axis.extent * made[-1].extent)
        else:
            made.append(axis)
    return made


# --- questions ------------------------------------------------------------------------------


def asking(
    cub: Cub[AsRequests],
    name: str,
    build: Callable[[CallSteps], Submission[Any]],
    lane: LaneSpec = LANE,
) -> Request[Any]:
    """Return a request whose answer comes from the device, after preceding steps.

    Args:
        cub: the CUB algorithms that steps may use.
        name: the op's name.
        build: makes the steps, and returns the submission that asks.
        lane: the lane; one that blocks, if the op waits for the device while it runs.
    """

    def prepare(preparer: Preparer) -> Submission[Any]:
        steps = CallSteps(preparer, cub, lane)
        return steps.result(None, build(steps))

    return Request(lane, f"array.{name}", prepare)


def trimmed(ref: GpuRef, count: int) -> GpuRef:
    """Return the first elements of a buffer with one owner; the rest of its memory is freed."""
    block, nbytes = ref.block, count * ref.dtype.itemsize
    block.memory.shrink(block, nbytes)
    return GpuRef(block, (count,), ref.dtype, nbytes)


def compacting(
    steps: CallSteps, mask: Operand, make: Callable[[int, tuple[GpuRef, ...]], T]
) -> Submission[T]:
    """Return the question for the number and the C-order positions of nonzero elements.

    ``make`` gets the number, and a buffer of places with room for all.
    """
    flags = steps.flat(steps.ref(cast(mask, _BOOL)))
    positions, scratch = steps.output(flags.shape, INT64), steps.output((PARTS,), INT64)
    message = Compact(
        flags.addressable_block.address,
        flags.size,
        positions.addressable_block.address,
        scratch.addressable_block.address,
    )
    writes = positions.addressable_block, scratch.addressable_block
    return Submission(
        message, (flags.addressable_block,), writes, finish=Answered(make, (positions,))
    )


def where_set(
    cub: Cub[AsRequests],
    mask: Operand,
    name: str,
    make: Callable[[int, tuple[GpuRef, ...]], T],
) -> Request[T]:
    """Return the submission of ``compacting`` as a request."""
    return asking(cub, name, lambda steps: compacting(steps, mask, make))


def first_outside(cub: Cub[AsRequests], indices: GpuRef, extent: int) -> Request[tuple[bool, int]]:
    """Return whether an index is out of bounds, and the first such index."""

    def build(steps: CallSteps) -> Submission[tuple[bool, int]]:
        flat = steps.flat(indices)
        scratch = steps.output((1,), INT64)
        message = FindOutside(
            flat.addressable_block.address,
            flat.size,
            NAMES[flat.dtype],
            extent,
            scratch.addressable_block.address,
        )
        return Submission(
            message, (flat.addressable_block,), (scratch.addressable_block,), finish=tuple
        )

    return asking(cub, "check", build, WAITS)


def read_numbers(
    cub: Cub[AsRequests], expressions: Sequence[Operand], name: str
) -> Request[tuple[int, ...]]:
    """Ask for the values of expressions, whole numbers."""

    def build(steps: CallSteps) -> Submission[tuple[int, ...]]:
        refs = steps.evaluate_all([cast(each, INT64) for each in expressions])
        places = tuple([ref.addressable_block for ref in refs])
        addresses = tuple([place.address for place in places])
        return Submission(ReadNumbers(addresses), places, (), finish=tuple)

    return asking(cub, name, build)


def read_number(cub: Cub[AsRequests], expression: Operand, name: str) -> Request[int]:
    """Ask for the value of an expression, a whole number."""

    def build(steps: CallSteps) -> Submission[int]:
        ref = steps.evaluate(cast(expression, INT64))
        message = ReadNumbers((ref.addressable_block.address,))
        return Submission(message, (ref.addressable_block,), (), finish=lambda found: int(found[0]))

    return asking(cub, name, build)
