"""Vendor libraries as typed actors: one folder each."""

from ._arguments import usable, writable
from ._library import LaneSpec, Submitter
from ._table import Libraries

__all__ = ["LaneSpec", "Libraries", "Submitter", "usable", "writable"]
