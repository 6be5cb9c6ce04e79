"""Matrices with gaps: the strides that follow from leading dimensions and transposes."""

from __future__ import annotations

from typing import NamedTuple


class Laid(NamedTuple):
    """Layout of matrices.

    Attributes:
        op: the form in which stored matrices are used: 0, 1 (transposed) or 2 (conjugate
            transposed).
        row: elements from one stored row to the next.
        steps: elements from one matrix to the next along each leading dimension.
    """

    op: int
    row: int
    steps: tuple[int, ...]


def lay(
    shape: tuple[int, ...], strides: tuple[int, ...], op: int, *, conjugates: bool
) -> Laid | None:
    """Return the layout of an array's matrices; None if both rows and columns have gaps.

    Strides are in elements. ``conjugates`` says whether ``op`` 2 differs from 1, because numbers
    are complex.
    """
    *steps, down, across = strides
    rows, columns = shape[-2:]
    if 0 in shape:
        return Laid(op, max(columns, 1), tuple(steps))
    if min(steps, default=0) < 0:
        return None
    if (columns == 1 or across == 1) and (rows == 1 or down >= columns):
        return Laid(op, columns if rows == 1 else down, tuple(steps))
    if (rows == 1 or down == 1) and across >= rows and not (op == 2 and conjugates):
        return Laid(0 if op else 1, across, tuple(steps))
    return None
