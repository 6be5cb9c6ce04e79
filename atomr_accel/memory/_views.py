"""Which parts of a C-contiguous array are C-contiguous arrays themselves."""

from __future__ import annotations

import math
import operator
from types import EllipsisType
from typing import Any, SupportsIndex

import numpy as np

Index = SupportsIndex | slice | EllipsisType | None
Key = Index | tuple[Index, ...]

LARGEST_EXTENT = 2**63 - 1
"""What messages, and NumPy, can count to along an axis."""


def as_shape(shape: object) -> tuple[int, ...]:
    """A shape as NumPy takes it: a whole number or a sequence of them.

    Raises:
        TypeError: it is made of something else; bool is no number here.
        ValueError: a number is negative, or beyond 64 bits.
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


def selected(shape: tuple[int, ...], key: Key) -> tuple[tuple[int, ...], int]:
    """What ``array[key]`` selects: its shape, and the index of its first element in ``array``.

    Raises:
        IndexError: out of bounds, or more indices than dimensions.
        TypeError: not basic indexing.
        ValueError: the part is not contiguous.
    """
    indices = key if isinstance(key, tuple) else (key,)
    first = 0
    extents: list[int] = []
    strides: list[int] = []
    axis, stride = 0, math.prod(shape)
    for index in _expanded(shape, indices):
        if index is None:
            extents.append(1)
            strides.append(0)
            continue
        extent = shape[axis]
        stride = stride // extent if extent else 0
        if isinstance(index, slice):
            start, _, step = indices_ = index.indices(extent)
            length = len(range(*indices_))
            first += start * stride if length else 0
            extents.append(length)
            strides.append(step * stride)
        else:
            at = operator.index(index)
            if not -extent <= at < extent:
                raise IndexError(f"index {at} is out of bounds for axis {axis} with size {extent}")
            first += at % extent * stride
        axis += 1
    if not _contiguous(extents, strides):
        raise ValueError(
            f"ref[{_text(indices)}] of shape {shape} is not contiguous, which views on the device "
            f"are: whole numbers may come first, then one slice with step 1. Take the part before "
            f"it is put, or after it was fetched: (await device.get(ref))[{_text(indices)}]"
        )
    return tuple(extents), first


def reshaped(old: tuple[int, ...], shape: tuple[int | tuple[int, ...], ...]) -> tuple[int, ...]:
    """``shape`` as given to ``reshape``, with -1 worked out.

    Raises:
        ValueError: it has another size than ``old``.
    """
    extents: Any = shape
    if len(shape) == 1 and not hasattr(shape[0], "__index__"):
        (extents,) = shape
    new = [operator.index(extent) for extent in extents]
    size = math.prod(old)
    if new.count(-1) == 1:
        known = -math.prod(new)
        new[new.index(-1)] = size // known if known else -1
    if math.prod(new) != size or any(extent < 0 for extent in new):
        raise ValueError(f"cannot reshape a buffer of shape {old} into shape {tuple(new)}")
    return tuple(new)


def _expanded(shape: tuple[int, ...], indices: tuple[Index, ...]) -> list[Any]:
    """One index for each axis: the ellipsis, and what was left out, as full slices."""
    for index in indices:
        if not _basic(index):
            raise TypeError(
                f"a GpuRef takes whole numbers and slices as indices, not {type(index).__name__}; "
                f"for others fetch it first: host = await device.get(ref)"
            )
    ellipses = sum(index is ... for index in indices)
    if ellipses > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing = len(shape) - sum(index is not None and index is not ... for index in indices)
    if missing < 0:
        raise IndexError(
            f"too many indices: the buffer has {len(shape)} dimensions, "
            f"but {len(shape) - missing} were indexed"
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


def _contiguous(extents: list[int], strides: list[int]) -> bool:
    if 0 in extents:
        return True
    expected = 1
    for extent, stride in zip(reversed(extents), reversed(strides), strict=True):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def _text(indices: tuple[Index, ...]) -> str:
    return ", ".join(map(_index_text, indices))


def _index_text(index: Index) -> str:
    if index is ...:
        return "..."
    if not isinstance(index, slice):
        return repr(index)
    start, stop, step = ("" if part is None else str(part) for part in _parts(index))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


def _parts(index: slice) -> tuple[object, object, object]:
    return index.start, index.stop, index.step
