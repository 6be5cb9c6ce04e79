"""The program's side of device memory: addresses, blocks and generations.

No I/O and no vendor: hosts map what this layer describes.
"""

from ._address import LateAddress
from ._allocator import Allocator, round_size
from ._at_end import AtEnd
from ._block import (
    SLICE,
    Block,
    BlockView,
    Epoch,
    Hold,
    NotContiguous,
    StridedView,
    block_at,
    origin,
    part_of,
)
from ._durable import DurableState, DurableStatistics, Proof, differing, told
from ._durable_rows import RowDigests, RowProof, Rows
from ._host_handles import Kept, Release, keep
from ._scope import MemoryScope
from .map import MemoryMap, MemoryStatistics, Slab, least_slab

__all__ = [
    "SLICE",
    "Allocator",
    "AtEnd",
    "Block",
    "BlockView",
    "DurableState",
    "DurableStatistics",
    "Epoch",
    "Hold",
    "Kept",
    "LateAddress",
    "MemoryMap",
    "MemoryScope",
    "MemoryStatistics",
    "NotContiguous",
    "Proof",
    "Release",
    "RowDigests",
    "RowProof",
    "Rows",
    "Slab",
    "StridedView",
    "block_at",
    "differing",
    "keep",
    "least_slab",
    "origin",
    "part_of",
    "round_size",
    "told",
]
