"""The program's side of device memory: addresses, blocks, refs and generations.

No I/O and no vendor: hosts map what this layer describes.
"""

from ._address import LateAddress
from ._allocator import Allocator, round_size
from ._map import SLICE, MemoryMap, MemoryStatistics, Slab, least_slab
from ._ref import Block, Epoch, GpuRef, Hold, Part, refuse, refuse_write
from ._scope import MemoryScope

__all__ = [
    "SLICE",
    "Allocator",
    "Block",
    "Epoch",
    "GpuRef",
    "Hold",
    "LateAddress",
    "MemoryMap",
    "MemoryScope",
    "MemoryStatistics",
    "Part",
    "Slab",
    "least_slab",
    "refuse",
    "refuse_write",
    "round_size",
]
