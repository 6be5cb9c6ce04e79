"""Matrices that lie apart: what leading dimensions and transposes say of views."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .._arguments import not_contiguous

if TYPE_CHECKING:
    from ...memory import GpuRef


class Laid(NamedTuple):
    """How matrices lie.

    Attributes:
        op: how to take them as they are stored: 0, 1 (transposed) or 2 (conjugate transposed).
        row: elements from one stored row to the next.
        steps: elements from one matrix to the next along each leading dimension.
    """

    op: int
    row: int
    steps: tuple[int, ...]


def strided(*refs: GpuRef | None) -> bool:
    """Whether any of these is not contiguous."""
    return any(getattr(ref, "_strides", None) is not None for ref in refs)


def laid_out(ref: GpuRef, shape: tuple[int, ...], op: int, name: str) -> Laid:
    """How the matrices of a view lie.

    Args:
        ref: the view.
        shape: its shape, with an axis of one element before or behind where it has one axis only.
        op: how to take them.
        name: what to call it in errors.

    Raises:
        NotContiguous: neither rows nor columns are contiguous, or something goes backwards.
    """
    itemsize = ref.dtype.itemsize
    strides = [stride // itemsize for stride in ref.strides]
    if len(strides) == 1:
        strides = [0, *strides] if len(shape) == 2 and shape[0] == 1 else [*strides, 0]
    *steps, down, across = strides
    rows, columns = shape[-2:]
    if 0 not in shape and min(steps, default=0) < 0:
        raise not_contiguous(ref, name)
    narrow = ref.dtype.itemsize == 1
    if 0 in shape or ref.contiguous:
        return Laid(op, max(columns, 1), tuple(steps))
    if (columns == 1 or across == 1) and (rows == 1 or down >= columns):
        found = Laid(op, columns if rows == 1 else down, tuple(steps))
    elif (rows == 1 or down == 1) and across >= rows and (op != 2 or ref.dtype.kind != "c"):
        found = Laid(0 if op else 1, across, tuple(steps))
    else:
        raise not_contiguous(ref, name)
    if narrow and (found.row % 4 or any(step % 4 for step in steps)):
        raise not_contiguous(ref, name)  # int8 is read four numbers at a time
    return found
