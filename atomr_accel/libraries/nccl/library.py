"""Descriptor of the library, which worlds use."""

from __future__ import annotations

from typing import Final

from ...ops import Library, Requirement
from .lanes import ABORTS, COLLECTIVES

LIBRARY: Final = Library(
    name="nccl",
    summary="collectives of several devices, for worlds (NCCL)",
    facade=None,
    lanes=(COLLECTIVES, ABORTS),
    needs=(Requirement("nccl", "worlds of several devices", "cuda12", vendor=True),),
)
