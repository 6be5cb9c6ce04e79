"""Preparing, sending and counting draws."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from ..._dtypes import DTYPES
from ..._errors import Unsupported
from ...ops import D, Facade, LaneSpec, Request, Submission, alignment, require_readable
from ._arguments import Size, check_out, dtype_of, shape_of
from ._distributions import continuous
from .wire._distributions import BLOCK, DISTRIBUTIONS
from .wire._messages import Distribution, Draw, Points, UploadTable

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...memory import Block
    from ...ops import AsRequests, DeviceView, Preparer
    from ..array.facade import ArrayFunctions
    from ..blas.facade import Blas
    from ..cub.facade import Cub
    from ._state import GeneratorState

LANE: Final = LaneSpec(
    "rng",
    {
        "cpu": "atomr_accel.libraries.rng.host._cpu:CpuRng",
        "cuda": "atomr_accel.libraries.rng.host._cuda:CudaRng",
    },
)

_PIECE: Final = 1 << 20
_FLOAT64: Final = DTYPES["float64"]
Entries = np.ndarray[Any, np.dtype[np.float64]]


class RngFacades(NamedTuple):
    """The facades for calls of several steps, shared by all generators of a device.

    Attributes:
        array: makes requests for functions of arrays.
        cub: algorithms that steps may be.
        blas: makes requests for products.
    """

    array: ArrayFunctions[AsRequests]
    cub: Cub[AsRequests]
    blas: Blas[AsRequests]


class Drawing(Facade[D]):
    """Base of generators: it prepares and submits draws."""

    def __init__(self, device: DeviceView, state: GeneratorState, known: RngFacades) -> None:
        self.home = device
        self._state = state
        self._known = known

    def _continuous(
        self,
        name: str,
        distribution: str,
        parameters: tuple[Any, ...],
        size: Size,
        dtype: DTypeLike | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        """Values of a continuous distribution."""

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            kind = dtype_of(dtype, out, "float64")
            return self._draw(
                preparer, name, continuous(distribution, kind, *parameters), size, out
            )

        return Request(LANE, f"rng.{name}", prepare)

    def _draw(
        self,
        preparer: Preparer,
        name: str,
        distribution: Distribution,
        size: Size,
        out: GpuRef | None,
        table: Entries | None = None,
        skipped: int = 0,
    ) -> Submission[GpuRef]:
        """Values of any distribution.

        ``table`` is what one by ``search`` looks them up in. A call that draws several times has
        ``skipped`` the chains of the draws before this one.
        """
        state, memory = self._state, preparer.memory
        use = DISTRIBUTIONS[distribution.name]
        if state.spec.quasi and use.until_accepted:
            raise Unsupported(
                f"{name} takes varying numbers of words, so {state.kind}, whose every word "
                f"counts, cannot make it; use a pseudo-random generator"
            )
        shape, dtype = shape_of(size, out, state.dimensions), DTYPES[distribution.dtype]
        count = math.prod(shape)
        points = count // state.dimensions if state.spec.quasi else 0
        state.require_points(points)
        if out is not None:
            check_out(out, memory, shape, dtype)
        reads: tuple[Block, ...] = ()
        if table is not None:
            entries = self._provide(preparer, table)
            reads = (entries,)
            distribution = msgspec.structs.replace(
                distribution, table=entries.address, extent=len(table)
            )
        if out is None:
            out = preparer.output(shape, dtype)
        target = out.block
        writes: tuple[Block, ...] = (target,)
        message: Points | Draw
        if state.spec.quasi:
            message = Points(
                distribution, state.kind, state.dimensions, state.position, target.address, points
            )
            sent = partial(state.drawn, count, places=points)
            return Submission(message, reads, writes, out, sent=sent)
        values = use.values(distribution.dtype)
        blocks = -(-count // values)
        scratch = 0
        # In its own memory, if values take as much of it as words and it is aligned for these.
        fits = values * dtype.itemsize == 4 * BLOCK and not count % values
        fits = fits and alignment(out) % (4 * BLOCK) == 0
        by_vendor = not state.spec.fused and not use.until_accepted
        if by_vendor and not fits and preparer.home.capabilities.needs_scratch:
            words = preparer.output((4 * BLOCK * blocks,), DTYPES["uint8"]).block
            writes, scratch = (target, words), words.address
        message = Draw(
            distribution,
            state.kind,
            state.ordering,
            state.key,
            state.position,
            (state.rejection_offset + skipped) % 2**64,
            target.address,
            count,
            scratch,
        )
        if use.until_accepted:
            sent = partial(state.drawn, count, rejections=count)
        else:
            sent = partial(state.drawn, count, places=blocks * BLOCK)
        return Submission(message, reads, writes, out, sent=sent)

    def _provide(self, preparer: Preparer, table: Entries) -> Block:
        """Return a table on the device, copied before the ops that use it."""
        entries = preparer.perform(Request(LANE, "rng.table", partial(put_table, table.tobytes())))
        assert entries is not None  # buffers are given in batches, too
        return require_readable(entries, preparer.memory, "table")


def put_table(data: bytes, preparer: Preparer) -> Submission[GpuRef]:
    """Copy a table to the device in pieces, so that no other op waits for long."""
    last = max(0, (len(data) - 1) // _PIECE * _PIECE)
    if not last:
        return _first(data, preparer)
    # It comes with its first piece: what is made here would be another one at the next try.
    ref = preparer.perform(Request(LANE, "rng.table", partial(_first, data)))
    assert ref is not None
    for start in range(_PIECE, last, _PIECE):
        preparer.perform(Request(LANE, "rng.table", partial(_further, data, ref, start)))
    return _further(data, ref, last, preparer)


def _first(data: bytes, preparer: Preparer) -> Submission[GpuRef]:
    ref = preparer.output((len(data) // _FLOAT64.itemsize,), _FLOAT64)
    message = UploadTable(ref.block.address, data[:_PIECE])
    return Submission(message, (), (ref.block,), ref)


def _further(data: bytes, ref: GpuRef, start: int, preparer: Preparer) -> Submission[GpuRef]:
    block = require_readable(ref, preparer.memory, "table")
    message = UploadTable(block.address + start, data[start : start + _PIECE])
    return Submission(message, (), (block,), ref)
