"""The program's side of device memory: addresses, blocks, refs and generations.

No I/O and no vendor: hosts map what this layer describes.
"""

from ._allocator import OFFSET_MASK, SLAB_SHIFT, Allocator, round_size
from ._map import MemoryMap, MemoryStatistics, Slab
from ._ref import Block, Epoch, GpuRef, refuse, refuse_write
from ._staging import CHUNK, Piece, Staging, shared_fd

__all__ = [
    "CHUNK",
    "OFFSET_MASK",
    "SLAB_SHIFT",
    "Allocator",
    "Block",
    "Epoch",
    "GpuRef",
    "MemoryMap",
    "MemoryStatistics",
    "Piece",
    "Slab",
    "Staging",
    "refuse",
    "refuse_write",
    "round_size",
    "shared_fd",
]
