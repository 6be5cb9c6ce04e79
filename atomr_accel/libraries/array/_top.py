"""The first elements of rows in their order, by the array lane's own kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..._dtypes import NAMES, as_dtype
from ...arrays.expressions.promotion import FLOAT32
from ...ops import overlap
from .choosing import INT64
from .wire.indexing import MOST_TOP, Top, top_scratch

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...arrays.expressions import Operand
    from .steps import CallSteps

FP8: Final = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
"""Dtypes that are sorted and counted as float32."""
_UINT8: Final = as_dtype(np.uint8)


def ranks(given: Operand, axis: int, count: int) -> bool:
    """Return whether the array lane's own kernels find ``count`` elements of each row."""
    real = given.dtype.kind != "c"
    return real and 0 < count <= MOST_TOP and given.shape[axis] < 2**31


def fits(out: GpuRef, read: GpuRef, shape: tuple[int, ...] | None = None) -> bool:
    """Return whether results from a buffer, of its shape or another, can go right to ``out``."""
    alike = out.contiguous and out.dtype is read.dtype and out.shape == (shape or read.shape)
    return alike and not overlap(out, read)


def top(
    steps: CallSteps,
    given: Operand,
    axis: int,
    count: int,
    *,
    descending: bool,
    order: bool = True,
    out: GpuRef | None = None,
) -> tuple[GpuRef, GpuRef | None]:
    """Return the first elements of rows in order, and their indices. The axis becomes the last.

    ``out`` is used for the values if possible.
    """
    ref = steps.ref(given, "a")
    ref = steps.last(steps.cast(ref, FLOAT32) if NAMES[ref.dtype] in FP8 else ref, axis)
    length = ref.shape[-1]
    rows = ref.size // length
    shape = (*ref.shape[:-1], count)
    fitting = out is not None and fits(out, ref, shape)
    values = out if out is not None and fitting else steps.output(shape, ref.dtype)
    places = steps.output(shape, INT64) if order else None
    room = top_scratch(rows, length, count)
    scratch = steps.output((room,), _UINT8) if room else None
    if rows:
        message = Top(
            ref.addressable_block.address,
            NAMES[ref.dtype],
            rows,
            length,
            count,
            bool(descending),
            values.addressable_block.address,
            0 if places is None else places.addressable_block.address,
            0 if scratch is None else scratch.addressable_block.address,
        )
        writes = [each.addressable_block for each in (values, places, scratch) if each is not None]
        steps.submit("array.top", message, (ref.addressable_block,), writes)
    return values, places
