"""Products of groups of rows, each group with a matrix of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from ..._dtypes import DTYPES
from ...arrays import GpuRef, ref_error
from ...memory import part_of
from ...ops import (
    require_alignment,
    require_int32,
    require_no_alias,
    require_rank,
    require_readable,
    require_writable,
)
from ...wire.options import whole
from ._epilogue import lower, wrapped
from ._product import (
    ROW_BYTES,
    MatmulArguments,
    require_device,
    require_rows,
    result_dtype,
    spec_of,
)
from .wire._messages import Grouped, table_parts

if TYPE_CHECKING:
    from ...memory import Block, MemoryMap
    from ...ops import DeviceView
    from .wire._messages import Sizes
    from .wire._spec import CutlassSpec

_PROCESSORS: Final = 1
"""Multiprocessors of a device that reports none, and so needs no tensor maps."""


class Groups(NamedTuple):
    """Grouped products that were checked for this call.

    Attributes:
        spec: their description, without tiles.
        sizes: 0, n, k, and the number of products that have rows.
        shape: of the result.
        rows: of the products that have any.
        places: for each product, elements before its a, its b and its result.
        numbers: the epilogue's.
        reads: blocks of a and b.
        processors: multiprocessors of the device.
    """

    spec: CutlassSpec
    sizes: Sizes
    shape: tuple[int, int]
    rows: tuple[int, ...]
    places: tuple[tuple[int, int, int], ...]
    numbers: tuple[float, ...]
    reads: tuple[Block, Block]
    processors: int

    @property
    def table_bytes(self) -> int:
        """Memory that the kernel needs beside operands."""
        return table_parts(len(self.rows), self.processors)[-1]

    def message(self, spec: bytes, swizzle: int, out: GpuRef, table: Block) -> Grouped:
        """Return the message."""
        kinds = self.spec.a, self.spec.b, self.spec.out
        blocks = (*self.reads, out.block)
        a, b, result = (
            tuple(
                part_of(block, place[at] * DTYPES[kind].itemsize).address for place in self.places
            )
            for at, (block, kind) in enumerate(zip(blocks, kinds, strict=True))
        )
        return Grouped(
            *(spec, self.rows, self.sizes, swizzle, a, b, result, table.address, self.numbers)
        )


def check_groups(
    given: MatmulArguments, sizes: Sequence[int], device: DeviceView, memory: MemoryMap
) -> Groups:
    """Grouped products, with everything about them that can be wrong looked at."""
    a, b, out = given.a, given.b, given.out
    if out is not None and not isinstance(out, GpuRef):
        raise ref_error(out, memory, "out")
    require_device(device)
    reads = require_readable(a, memory, "a"), require_readable(b, memory, "b")
    require_rank(a, 2, "a")
    require_rank(b, 3, "b")
    dtype = result_dtype(given)
    if not isinstance(sizes, Sequence | np.ndarray):
        raise TypeError(f"sizes must be whole numbers, one for each matrix of b, not {sizes!r}")
    every = [whole(size, f"sizes[{at}]", 0) for at, size in enumerate(sizes)]
    m, k = a.shape
    groups = b.shape[0]
    depth, n = b.shape[:0:-1] if given.trans_b else b.shape[1:]
    if k != depth:
        raise ValueError(f"a has {k} columns to sum over, and b {depth} rows")
    if len(every) != groups or sum(every) != m:
        raise ValueError(
            f"sizes must be {groups} numbers with sum {m}, one for each matrix of b "
            f"and in all the rows of a, not {len(every)} with sum {sum(every)}"
        )
    if not n * k:
        raise ValueError(f"b of shape {b.shape} has no elements to multiply")
    require_int32(device, "a product", (a.size, b.size, m * n))
    tree = wrapped(given.epilogue, alpha=given.alpha, beta=0.0, c=None, bias=None)
    lowered = lower(tree, (m, n), (m,), (m, 1))
    if lowered.buffers or lowered.source is not None:
        raise ValueError("an epilogue of grouped products has numbers and functions, no buffers")
    spec = msgspec.structs.replace(spec_of(given, dtype, lowered), grouped=True)
    require_rows(spec, (m, n, k, 1))
    if out is not None:
        require_writable(out, memory, "out")
        if out.shape != (m, n):
            raise ValueError(f"out must have shape {(m, n)}, not {out.shape}")
        require_no_alias("cutlass.matmul_grouped", [("out", out)], [("a", a), ("b", b)])
    for name, ref in (("a", a), ("b", b), ("out", out)):
        if ref is not None:
            require_alignment(ref, ROW_BYTES, name, "TMA reads and writes 16 bytes at a time")
    starts = accumulate(every, initial=0)
    placed = [
        (rows, (at * k, group * k * n, at * n))
        for group, (rows, at) in enumerate(zip(every, starts, strict=False))
        if rows
    ]
    info = device.info
    return Groups(
        spec,
        (0, n, k, len(placed)),
        (m, n),
        tuple(rows for rows, _ in placed),
        tuple(place for _, place in placed),
        lowered.numbers,
        reads,
        _PROCESSORS if info is None else max(_PROCESSORS, info.multiprocessors),
    )
