"""Copies between layouts, by one kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ..wire.copies import CopyStrided
from ._arguments import require_readable, require_writable
from ._library import LaneSpec
from ._merged import merged
from ._request import Request, Submission

if TYPE_CHECKING:
    from ..arrays import GpuRef
    from ._request import Preparer

ARRAY_LANE: Final = LaneSpec(
    "array",
    {
        "cpu": "atomr_accel.libraries.array.host.cpu:CpuArrayExecutor",
        "cuda": "atomr_accel.libraries.array.host.cuda:CudaArrayExecutor",
    },
    max_streams=4,
)
ARRAY_WAITS: Final = LaneSpec("array-waits", ARRAY_LANE.executors, own_thread=True)
"""Reads what decides how large results are, or sorts long rows, so it waits for the device."""


def copying(
    source: GpuRef, target: GpuRef | None, names: tuple[str, str] = ("source", "target")
) -> Request[GpuRef]:
    """Return the request that copies elements from one layout to another.

    Args:
        source: the ref to copy.
        target: the ref to write, of the same shape and size of elements, without common memory. A
            contiguous buffer is made if absent.
        names: the names of both in errors.
    """

    def prepare(preparer: Preparer) -> Submission[GpuRef]:
        block = require_readable(source, preparer.memory, names[0], strided=True)
        result = target
        if result is None:
            result = preparer.output(source.shape, source.dtype)
        to = require_writable(result, preparer.memory, names[1], strided=True)
        message = _message(source, result)
        return Submission(message, (block,), (to,), result)

    return Request(ARRAY_LANE, "array.copy", prepare)


def _message(source: GpuRef, target: GpuRef) -> CopyStrided | None:
    """Return the message that copies one ref to the other; None for empty refs."""
    if not source.size:
        return None
    of, to = source.addressable_block, target.addressable_block
    plan = merged(
        source.shape,
        target.strides,
        source.strides,
        source.dtype.itemsize,
        math.gcd(of.offset, to.offset),
    )
    axes = plan.axes
    return CopyStrided(
        of.address + plan.source,
        to.address + plan.target,
        plan.itemsize,
        tuple([axis.extent for axis in axes]),
        tuple([axis.source for axis in axes]),
        tuple([axis.target for axis in axes]),
    )
