"""Vendor libraries as typed actors: one folder each."""

from ._arguments import overlap, usable, writable
from ._library import LaneSpec, Submitter
from ._table import CALLED, Libraries

__all__ = ["CALLED", "LaneSpec", "Libraries", "Submitter", "overlap", "usable", "writable"]
