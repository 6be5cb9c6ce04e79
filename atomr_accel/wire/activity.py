"""Records of a device's activities, and how hosts name ops to CUPTI."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

OP_RANGES: Final = "CUSTOM2"
"""A name in ``cupti.ExternalCorrelationKind``. PyTorch's profiler takes those with 0 and 1."""

ActivityKind = Literal["kernels", "copies", "fills", "calls"]


class ActivityRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that a device, or its driver, has done.

    Attributes:
        kind: ``"kernels"``, ``"copies"``, ``"fills"`` or ``"calls"``.
        name: the kernel's name as the linker knows it, the direction of a copy, or the function of
            the driver.
        start: when it began, in nanoseconds of ``time.monotonic_ns``.
        end: when it ended.
        op: the number of the op that launched it; 0 if that is unknown.
        op_name: the name of that op, such as ``"blas.gemm"``; empty if it is unknown.
        stream: CUPTI's number of the stream; of a call, the thread's number.
        nbytes: bytes that it copied or filled; 0 for others.
    """

    kind: ActivityKind
    name: str
    start: int
    end: int
    op: int
    op_name: str
    stream: int
    nbytes: int
