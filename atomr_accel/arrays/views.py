"""Views of arrays: shapes, strides and offsets, as NumPy's views have them.

A layout is a shape with strides and an offset in bytes. The offset is counted from the array that
it is a view of.
"""

from __future__ import annotations

import math
import operator
from types import EllipsisType
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

Index = SupportsIndex | slice | EllipsisType | None
Key = Index | tuple[Index, ...]

Layout = tuple[tuple[int, ...], tuple[int, ...], int]
"""A shape, strides in bytes, and the offset in bytes from the array that it is a view of."""

LARGEST_EXTENT = 2**63 - 1
"""Largest extent of an axis that messages and NumPy support."""

_SOMEWHERE: Final = 1 << 44
"""Address of the arrays that stand for views. Their memory is never touched."""

_MOST_WORK: Final = 1 << 14
"""Number of candidates that NumPy tries to find shared elements, some microseconds per thousand."""


def as_shape(shape: object) -> tuple[int, ...]:
    """Return a shape as NumPy takes it, from a whole number or a sequence of them.

    Raises:
        TypeError: it is neither. Bools are refused.
        ValueError: a number is negative, or needs more than 64 bits.
    """
    given: Any = shape
    try:
        result = tuple(map(_extent, given if _is_sequence(given) else (given,)))
    except TypeError:
        raise TypeError(
            f"a shape is a whole number or a sequence of whole numbers, not {shape!r}"
        ) from None
    if any(extent < 0 for extent in result):
        raise ValueError(f"negative dimensions are not allowed: {result}")
    if any(extent > LARGEST_EXTENT for extent in result):
        raise ValueError(f"no dimension can be larger than {LARGEST_EXTENT}: {result}")
    return result


def _extent(value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError
    return operator.index(value)


def _is_sequence(shape: object) -> bool:
    return not hasattr(shape, "__index__") or getattr(shape, "ndim", 0) > 0


def strides_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array; all are 0 if the array is empty."""
    if 0 in shape:
        return (0,) * len(shape)
    strides = []
    stride = itemsize
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Return True if elements follow each other without gaps in C order, as NumPy defines it."""
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1:
            if not extent:
                return True
            if stride != expected:
                break
            expected *= extent
    else:
        return True
    return 0 in shape


def span(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the offsets of the first byte of an array and of the byte after its last."""
    if 0 in shape:
        return 0, 0
    low, high = 0, itemsize
    for extent, stride in zip(shape, strides, strict=True):
        reach = (extent - 1) * stride
        if reach < 0:
            low += reach
        else:
            high += reach
    return low, high


def repeats(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return True if several elements share memory, as in the results of ``broadcast_to``.

    No other view has elements that overlap.
    """
    return 0 not in shape and any(
        extent > 1 and not stride for extent, stride in zip(shape, strides, strict=True)
    )


def share_elements(one: Layout, other: Layout, itemsizes: tuple[int, int]) -> bool:
    """Return True if two views of the same memory share an element or a part of one.

    It is also True if finding out would take long.
    """
    first, second = _stand_in(*one, itemsizes[0]), _stand_in(*other, itemsizes[1])
    most: Any = _MOST_WORK  # NumPy's stubs know of no numbers in between
    try:
        return bool(np.shares_memory(first, second, max_work=most))
    except np.exceptions.TooHardError:
        return True


class _ShapeOnlyMemory:
    """An array interface for memory that is never read."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _stand_in(
    shape: tuple[int, ...], strides: tuple[int, ...], start: int, itemsize: int
) -> np.ndarray[Any, Any]:
    """Return an array with the given layout, whose elements must not be read."""
    interface = {
        "data": (_SOMEWHERE + start, True),
        "shape": shape,
        "strides": strides,
        "typestr": f"|V{itemsize}",
        "version": 3,
    }
    return np.asarray(_ShapeOnlyMemory(interface))


def selected(shape: tuple[int, ...], strides: tuple[int, ...], key: Key) -> Layout:
    """Return the layout that ``array[key]`` selects."""
    indices = key if isinstance(key, tuple) else (key,)
    first = 0
    extents: list[int] = []
    steps: list[int] = []
    axis = 0
    for index in _expanded(shape, indices):
        if index is None:
            extents.append(1)
            steps.append(0)
            continue
        extent, stride = shape[axis], strides[axis]
        if isinstance(index, slice):
            start, _, step = indices_ = index.indices(extent)
            length = len(range(*indices_))
            if length:
                first += start * stride
            else:
                step = 1
            extents.append(length)
            steps.append(step * stride)
        else:
            at = operator.index(index)
            if not -extent <= at < extent:
                raise IndexError(f"index {at} is out of bounds for axis {axis} with size {extent}")
            first += at % extent * stride
        axis += 1
    return tuple(extents), tuple(steps), first


def transposed(
    shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides with axes in another order, as given to ``numpy.ndarray.transpose``."""
    ndim = len(shape)
    given: Any = axes
    if len(axes) == 1 and not hasattr(axes[0], "__index__"):
        (given,) = axes
    if given is None or not axes:
        return shape[::-1], strides[::-1]
    order = normalize_axis_tuple(given, ndim)
    if len(order) != ndim:
        raise ValueError(f"axes {tuple(given)} don't match a buffer of {ndim} dimensions")
    return tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order)


def moved(ndim: int, source: Any, destination: Any) -> tuple[int, ...]:
    """The order of axes that ``numpy.moveaxis`` gives."""
    origin = normalize_axis_tuple(source, ndim, "source")
    target = normalize_axis_tuple(destination, ndim, "destination")
    if len(origin) != len(target):
        raise ValueError("source and destination must have the same number of axes")
    order = [axis for axis in range(ndim) if axis not in origin]
    for to, axis in sorted(zip(target, origin, strict=True)):
        order.insert(to, axis)
    return tuple(order)


def swapped(ndim: int, one: SupportsIndex, other: SupportsIndex) -> tuple[int, ...]:
    """The order of axes with two of them exchanged."""
    first = normalize_axis_index(operator.index(one), ndim)
    second = normalize_axis_index(operator.index(other), ndim)
    order = [*range(ndim)]
    order[first], order[second] = second, first
    return tuple(order)


def broadcast(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the strides with which an array has a larger shape."""
    more = len(wanted) - len(shape)
    fits = more >= 0 and all(
        extent in (1, new) for extent, new in zip(shape, wanted[more:], strict=True)
    )
    if not fits:
        raise ValueError(f"a buffer of shape {shape} could not be broadcast to shape {wanted}")
    return (0,) * more + tuple(
        stride if extent == new else 0
        for extent, new, stride in zip(shape, wanted[more:], strides, strict=True)
    )


def squeezed(
    shape: tuple[int, ...], strides: tuple[int, ...], axis: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides without axes of one element."""
    if axis is None:
        gone = {at for at, extent in enumerate(shape) if extent == 1}
    else:
        gone = set(normalize_axis_tuple(axis, len(shape)))
        if any(shape[at] != 1 for at in gone):
            raise ValueError(f"an axis to squeeze must have size one: axis {axis} of shape {shape}")
    kept = [at for at in range(len(shape)) if at not in gone]
    return tuple(shape[at] for at in kept), tuple(strides[at] for at in kept)


def diagonals(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: SupportsIndex,
    axis1: SupportsIndex,
    axis2: SupportsIndex,
) -> Layout:
    """The diagonals of two axes, along a last axis."""
    ndim = len(shape)
    if ndim < 2:
        raise ValueError("diag requires a buffer of at least two dimensions")
    one = normalize_axis_index(operator.index(axis1), ndim)
    other = normalize_axis_index(operator.index(axis2), ndim)
    if one == other:
        raise ValueError("axis1 and axis2 cannot be the same")
    shift = operator.index(offset)
    rows, columns = shape[one] + min(shift, 0), shape[other] - max(shift, 0)
    length = max(min(rows, columns), 0)
    start = (shift * strides[other] if shift > 0 else -shift * strides[one]) if length else 0
    rest = [axis for axis in range(ndim) if axis not in (one, other)]
    extents = (*(shape[axis] for axis in rest), length)
    steps = (*(strides[axis] for axis in rest), strides[one] + strides[other])
    return extents, steps, start


def regrouped(
    shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the strides of a view with another shape, or None if it would need a copy."""
    # Axes that follow each other without a gap are as good as one.
    groups: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if groups and groups[-1][1] == extent * stride:
            groups[-1] = groups[-1][0] * extent, stride
        else:
            groups.append((extent, stride))
    left, step = 1, 0
    steps: list[int] = []
    for extent in reversed(new):
        if extent == 1:
            steps.append(step)
            continue
        if left == 1:
            left, step = groups.pop()
        left, rest = divmod(left, extent)
        if rest:
            return None
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def reshaped(old: tuple[int, ...], shape: tuple[int | tuple[int, ...], ...]) -> tuple[int, ...]:
    """``shape`` as given to ``reshape``, with -1 worked out."""
    extents: Any = shape
    if len(shape) == 1 and not hasattr(shape[0], "__index__"):
        (extents,) = shape
    asked = tuple(map(operator.index, extents))
    new = [*asked]
    size = math.prod(old)
    if new.count(-1) == 1:
        known = -math.prod(new)
        new[new.index(-1)] = size // known if known else -1
    if math.prod(new) != size or min(new, default=0) < 0:
        raise ValueError(f"cannot reshape a buffer of shape {old} into shape {asked}")
    return tuple(new)


def _expanded(shape: tuple[int, ...], indices: tuple[Index, ...]) -> list[Any]:
    """Return one index for each axis, with full slices for the ellipsis and for missing indices."""
    for index in indices:
        if not _basic(index):
            raise TypeError(
                f"a GpuRef takes whole numbers and slices as indices, not {type(index).__name__}; "
                "for arrays of indices and masks: await device.array.getitem(ref, key)"
            )
    ellipses = sum(index is ... for index in indices)
    if ellipses > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing = len(shape) - sum(index is not None and index is not ... for index in indices)
    if missing < 0:
        raise IndexError(
            f"too many indices: there must be at most {len(shape)}, one for each "
            f"dimension, not {len(shape) - missing}"
        )
    at = next((at for at, index in enumerate(indices) if index is ...), len(indices))
    return [*indices[:at], *[slice(None)] * missing, *indices[at + 1 :]]


def _basic(index: Any) -> bool:
    if index is None or index is ... or isinstance(index, slice):
        return True
    try:
        operator.index(index)
    except TypeError:
        return False
    return not isinstance(index, bool)
