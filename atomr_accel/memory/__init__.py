"""The program's side of device memory: addresses, blocks, refs and generations.

No I/O and no vendor: hosts map what this layer describes.
"""

from ..arrays.views import as_shape, repeats, share_elements, span
from ._address import LateAddress
from ._allocator import Allocator, round_size
from ._block import (
    Block,
    BlockView,
    Epoch,
    GpuRef,
    Hold,
    NotContiguous,
    NotEvaluated,
    block_at,
    no_ref_error,
    origin,
    part_of,
    ref_error,
    sealed_error,
)
from ._host_handles import Kept, Release, keep
from ._scope import MemoryScope
from .map import SLICE, MemoryMap, MemoryStatistics, Slab, least_slab

__all__ = [
    "SLICE",
    "Allocator",
    "Block",
    "BlockView",
    "Epoch",
    "GpuRef",
    "Hold",
    "Kept",
    "LateAddress",
    "MemoryMap",
    "MemoryScope",
    "MemoryStatistics",
    "NotContiguous",
    "NotEvaluated",
    "Release",
    "Slab",
    "as_shape",
    "block_at",
    "keep",
    "least_slab",
    "no_ref_error",
    "origin",
    "part_of",
    "ref_error",
    "repeats",
    "round_size",
    "sealed_error",
    "share_elements",
    "span",
]
