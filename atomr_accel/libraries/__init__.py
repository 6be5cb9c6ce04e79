"""Vendor libraries as typed actors: one folder each."""

from ._arguments import BLOCK_ALIGNMENT, alignment, overlap, usable, writable
from ._library import LaneSpec, Submitter
from ._table import CALLED, LANES, Libraries

__all__ = [
    "BLOCK_ALIGNMENT",
    "CALLED",
    "LANES",
    "LaneSpec",
    "Libraries",
    "Submitter",
    "alignment",
    "overlap",
    "usable",
    "writable",
]
