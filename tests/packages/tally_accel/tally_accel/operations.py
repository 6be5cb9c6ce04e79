"""Declarations of the library's ops, which the program and its hosts share."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from atomr_accel.wire.operations import In, Operation, Out

if TYPE_CHECKING:
    from atomr_accel import GpuRef


class CountNonzero(Operation["GpuRef"]):
    """Count the elements that are not zero.

    Args:
        x: any shape, float32 or float64.
        out: the buffer for the result.

    Returns:
        An int64 scalar on the device.

    Raises:
        TypeError: another dtype.
    """

    x: Annotated[GpuRef, In(dtypes=("float32", "float64"))]
    _: KW_ONLY
    out: Annotated[GpuRef | None, Out("", dtype="int64")] = None
