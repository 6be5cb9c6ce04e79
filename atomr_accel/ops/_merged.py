"""Copies between layouts, in as few axes and as large elements as there can be."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

LARGEST_ITEM: Final = 16
"""Bytes that a thread of a GPU moves at once."""


class CopyAxis(NamedTuple):
    """An axis of a copy.

    Attributes:
        target: bytes from one element to the next.
        source: the same in the source.
        extent: the number of elements.
    """

    target: int
    source: int
    extent: int


class Merged(NamedTuple):
    """A copy between layouts.

    Attributes:
        axes: the axes; the one of the smallest step in the target is last. All steps in the target
            are positive.
        itemsize: bytes of an element.
        source: bytes from the old start of the source to the new one.
        target: the same for the target.
    """

    axes: tuple[CopyAxis, ...]
    itemsize: int
    source: int
    target: int


def merged(
    shape: tuple[int, ...],
    target: tuple[int, ...],
    source: tuple[int, ...],
    itemsize: int,
    aligned: int,
) -> Merged:
    """Return the same copy with fewer axes, and larger elements.

    Args:
        shape: the shape of both arrays, which have elements.
        target: strides of the target, in bytes; 0 only along axes of one element.
        source: strides of the source.
        itemsize: bytes of an element.
        aligned: the alignment of both first elements, in bytes.
    """
    start_source = start_target = 0
    axes: list[CopyAxis] = []
    for extent, to, of in zip(shape, target, source, strict=True):
        if extent == 1:
            continue
        if to < 0:  # from its other end
            start_target += (extent - 1) * to
            start_source += (extent - 1) * of
            axes.append(CopyAxis(-to, -of, extent))
        else:
            axes.append(CopyAxis(to, of, extent))
    axes.sort(reverse=True)
    joined: list[CopyAxis] = []
    for axis in axes:
        if joined:
            outer = joined[-1]
            if (
                outer.target == axis.extent * axis.target
                and outer.source == axis.extent * axis.source
            ):
                joined[-1] = axis._replace(extent=axis.extent * outer.extent)
                continue
        joined.append(axis)
    if joined and joined[-1].target == joined[-1].source == itemsize:
        row = joined.pop()
        steps = (step for axis in joined for step in axis[:2])
        wide = math.gcd(
            LARGEST_ITEM, aligned, start_source, start_target, row.extent * itemsize, *steps
        )
        wide = max(wide, itemsize)
        if row.extent * itemsize > wide:
            joined.append(CopyAxis(wide, wide, row.extent * itemsize // wide))
        itemsize = wide
    return Merged(tuple(joined), itemsize, start_source, start_target)
