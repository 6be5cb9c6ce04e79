"""Axes, shapes and dtypes of reductions, by NumPy's rules."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ..._dtypes import HALVES, as_dtype
from .promotion import FLOAT32, MANY, reduced

Axis = int | tuple[int, ...] | None

_BOOL: Final = as_dtype(np.bool_)


def whole(axis: Any) -> Axis:
    """An axis, or several, as whole numbers, so that those that are equal are the same."""
    if axis is None or type(axis) is int:
        return axis
    if isinstance(axis, tuple | list):
        return tuple([whole_number(each) for each in axis])
    return whole_number(axis)


def whole_number(axis: Any) -> int:
    """One axis."""
    if isinstance(axis, bool | np.bool_):
        raise TypeError(f"an axis must be a whole number, not {axis!r}")
    return operator.index(axis)


def axes_of(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return the axes as numbers from 0, in order."""
    axis = whole(axis)
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int and 0 <= axis < ndim:
        return (axis,)
    return tuple(sorted(normalize_axis_tuple(axis, ndim)))


def reduced_axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """The axes that a ufunc reduces: a number has one, where they are not given as several."""
    return () if not ndim and axis in (0, -1) else axes_of(axis, ndim)


def kept_of(shape: tuple[int, ...], axes: tuple[int, ...], *, keepdims: bool) -> tuple[int, ...]:
    """Return the shape that a reduction over axes leaves."""
    if keepdims:
        return tuple(1 if at in axes else extent for at, extent in enumerate(shape))
    return tuple(extent for at, extent in enumerate(shape) if at not in axes)


@lru_cache(MANY)
def reduction(
    name: str,
    extents: tuple[int, ...],
    given: np.dtype[Any],
    axis: Axis,
    dtype: np.dtype[Any] | None,
    keepdims: bool,
) -> tuple[tuple[tuple[int, ...], bool], tuple[int, ...], np.dtype[Any], np.dtype[Any]]:
    """Return the parameters of a ufunc's reduction.

    Returns:
        Its axes, and whether they stay; the shape; the dtypes that it is computed in, and of the
        result.
    """
    axes = reduced_axes(axis, len(extents))
    result = reduced(name, given if dtype is None else dtype)
    if dtype is not None and name in ("add", "multiply"):
        result = dtype
    compute = result
    if name in ("add", "multiply") and result in HALVES:
        compute = FLOAT32
    elif name.startswith("logical"):
        compute = result = _BOOL
    if name in ("maximum", "minimum", "fmax", "fmin"):
        empty = [extents[at] for at in axes if not extents[at]]
        if empty and 0 not in kept_of(extents, axes, keepdims=False):
            raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
    return (axes, keepdims), kept_of(extents, axes, keepdims=keepdims), compute, result
