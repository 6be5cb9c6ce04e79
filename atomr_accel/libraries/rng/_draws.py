"""How a draw is prepared, sent and counted."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._dtypes import DTYPES, NAMES
from ..._errors import GpuRefStale, Unsupported
from .._arguments import alignment, usable
from .._library import LaneSpec
from .._op import D, Facade
from .._perform import Prepared, perform
from ._arguments import Size, check_out, dtype_of, shape_of
from .wire._laws import BLOCK, LAWS
from .wire._messages import Draw, Law, Points, Table

if TYPE_CHECKING:
    from ...memory import Block, GpuRef
    from .._library import Submitter
    from .._perform import Room
    from ._state import State

LANE: Final = LaneSpec(
    "rng",
    {
        "cpu": "atomr_accel.libraries.rng.host._cpu:CpuRng",
        "cuda": "atomr_accel.libraries.rng.host._cuda:CudaRng",
    },
)

_PIECE: Final = 1 << 20
_WORDS: Final = 2**64
_FLOAT64: Final = DTYPES["float64"]
Entries = np.ndarray[Any, np.dtype[np.float64]]


class Drawing(Facade[D]):
    """What generators draw with."""

    def __init__(self, device: Submitter, state: State) -> None:
        self._device = device
        self._state = state

    async def _floats(
        self,
        name: str,
        law: str,
        floats: tuple[float, ...],
        size: Size,
        dtype: Any,
        out: GpuRef | None,
    ) -> GpuRef:
        kind = dtype_of(dtype, out, "float64")
        return await self._draw(name, law_of(law, kind, floats), size, out)

    async def _draw(
        self, name: str, law: Law, size: Size, out: GpuRef | None, table: Entries | None = None
    ) -> GpuRef:
        state, device = self._state, self._device
        if state.rule.quasi and LAWS[law.name].until_accepted:
            raise Unsupported(
                f"{name} takes varying numbers of words, so {state.kind}, whose every word "
                f"counts, cannot make it; use a pseudo-random generator"
            )
        shape, kind = shape_of(size, out, state.dimensions), DTYPES[law.dtype]
        while True:
            entries = None
            if table is not None:
                if out is not None:
                    check_out(out, device.memory, shape, kind)  # before anything is sent
                entries = await self._table(table)

            def prepare(room: Room, entries: GpuRef | None = entries) -> Prepared:
                return self._prepare(room, law, shape, kind, out, entries)

            try:
                result: GpuRef = await perform(device, LANE, f"rng.{name}", prepare)
            except GpuRefStale:
                if entries is None or not entries.is_stale or (out is not None and out.is_stale):
                    raise
            else:
                return result

    def _prepare(
        self,
        room: Room,
        law: Law,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        out: GpuRef | None,
        entries: GpuRef | None,
    ) -> Prepared:
        state, memory = self._state, self._device.memory
        reads: tuple[Block, ...] = ()
        if entries is not None:
            block = usable(entries, memory, "table")
            reads = (block,)
            law = Law(
                law.name, law.dtype, law.floats, law.low, law.span, block.address, entries.size
            )
        if out is None:
            out = room.empty(shape, dtype)
        else:
            check_out(out, memory, shape, dtype)
        target, count = out._block, math.prod(shape)
        if state.rule.quasi:
            points = count // state.dimensions
            message: Points | Draw = Points(
                law, state.kind, state.dimensions, state.position, target.address, points
            )
            self._moved(count, points=points)
            return Prepared(message, reads, (target,), out)
        values = LAWS[law.name].values(law.dtype)
        blocks = -(-count // values)
        writes: tuple[Block, ...] = (target,)
        scratch = 0
        # In its own memory, if values take as much of it as words and it is aligned for these.
        fits = values * dtype.itemsize == 4 * BLOCK and not count % values
        fits = fits and alignment(out) % (4 * BLOCK) == 0
        by_vendor = not state.rule.fused and not LAWS[law.name].until_accepted
        if by_vendor and not fits and self._device.backend != "cpu":
            words = room.empty((4 * BLOCK * blocks,), DTYPES["uint8"])._block
            writes, scratch = (target, words), words.address
        message = Draw(
            law,
            state.kind,
            state.ordering,
            state.key,
            state.position,
            state.side,
            target.address,
            count,
            scratch,
        )
        if LAWS[law.name].until_accepted:
            self._moved(count, side=count)
        else:
            self._moved(count, words=blocks * BLOCK)
        return Prepared(message, reads, writes, out)

    def _moved(self, values: int, *, words: int = 0, points: int = 0, side: int = 0) -> None:
        """Note a draw, if it is about to be sent: without a lane it is prepared again."""
        state = self._state
        to = state.position + words + points
        if state.rule.quasi and to > 2**state.rule.bits:
            raise ValueError(
                f"{state.kind} has {2**state.rule.bits} points; {points} from number "
                f"{state.position} on are too many"
            )
        if LANE.name in self._device.ports:
            state.position = to if state.rule.quasi else to % _WORDS
            state.side = (state.side + side) % _WORDS
            state.draws += 1
            state.values += values

    async def _table(self, table: Entries) -> GpuRef:
        """Put a table on the device, in pieces that delay nobody for long."""
        data = table.tobytes()
        device = self._device

        def first(room: Room) -> Prepared:
            ref = room.empty((len(table),), _FLOAT64)
            message = Table(ref._block.address, data[:_PIECE])
            return Prepared(message, (), (ref._block,), ref)

        while True:
            ref: GpuRef = await perform(device, LANE, "rng.table", first)
            try:
                for start in range(_PIECE, len(data), _PIECE):

                    def more(_room: Room, ref: GpuRef = ref, start: int = start) -> Prepared:
                        block = usable(ref, device.memory, "table")
                        piece = data[start : start + _PIECE]
                        return Prepared(Table(block.address + start, piece), (), (block,), ref)

                    await perform(device, LANE, "rng.table", more)
            except GpuRefStale:
                continue
            return ref


@lru_cache(1024)
def law_of(
    name: str,
    dtype: np.dtype[Any],
    floats: tuple[float, ...] = (),
    low: int = 0,
    span: int = 0,
) -> Law:
    """A distribution; ``low`` may be negative, and ``span`` up to 2**64."""
    return Law(name, NAMES[dtype], floats, low % _WORDS, span % _WORDS, 0, 0)
