"""The lane that computes digests."""

from __future__ import annotations

from typing import Final

from ...ops import LaneSpec

DIGESTS: Final = LaneSpec(
    "digests",
    {
        "cpu": "atomr_accel.libraries.digests.host._cpu:CpuDigests",
        "cuda": "atomr_accel.libraries.digests.host._cuda:CudaDigests",
    },
)
