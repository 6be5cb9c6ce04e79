"""Collectives on the CPU backend: hosts meet in memory that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

import numpy as np

from ...._dtypes import DTYPES, HALVES
from ..wire.area import Aborted, Area
from ..wire.exchange import REDUCING, RankExchange, elements_of_a_round, exchange, raise_aborted
from ..wire.messages import (
    AbortCommunicator,
    AskBegun,
    BeginReplay,
    Collect,
    CollectiveStep,
    Join,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire.exchange import ExchangePiece

_Array = np.ndarray[Any, Any]

_UFUNCS: Final = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@final
class _CpuCommunicator:
    """One rank's end of a communicator."""

    def __init__(self, rank: int, size: int, area: Area) -> None:
        self.rank: Final = rank
        self.size: Final = size
        self.area: Final = area
        self.begun = 1  # it joins
        self.replay_at = 0  # the number of the first round of the present replay
        # The ranks that read its slot, and the number that each reaches when it has. To wait for
        # them before the slot is filled again, and not at once, spares a sleep.
        self.readers: tuple[Sequence[int], int] = (), 0


# The communicators of a context: one lane may be inside a collective while the other aborts it.
# None stands for one that was aborted before this rank began to join it: it must not join.
_communicators: Final[WeakKeyDictionary[Any, dict[int, _CpuCommunicator | None]]] = (
    WeakKeyDictionary()
)


@final
class CpuCollectives:
    """Takes part in collectives; a handler returns when the rank's part is done."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context = context
        self._joined = _communicators.setdefault(context, {})
        self.handlers: Final = {
            Join: self._join,
            Collect: self._collect,
            BeginReplay: self._begin_replay,
        }

    def close(self) -> None:
        """Do nothing: the memory of communicators belongs to the program."""

    def _join(self, message: Join) -> None:
        self._context.check()
        if message.communicator in self._joined:  # and the memory may be gone
            del self._joined[message.communicator]
            raise_aborted()
        memory = self._context.bytes_at(message.area, Area.nbytes(message.size))
        joined = _CpuCommunicator(message.rank, message.size, Area(memory, message.size))
        if self._joined.setdefault(message.communicator, joined) is None:
            del self._joined[message.communicator]
            raise_aborted()
        self._meet(joined)

    def _meet(self, joined: _CpuCommunicator) -> None:
        """Wait for all others, in a round before those of collectives."""
        try:
            joined.area.arrive(joined.rank, 1)
            joined.area.wait(range(joined.size), 1)
        except Aborted:
            raise_aborted()

    def _found(self, number: int) -> _CpuCommunicator:
        self._context.check()
        joined = self._joined.get(number)
        if joined is None:
            raise_aborted()
        return joined

    def _begin_replay(self, message: BeginReplay) -> None:
        joined = self._found(message.communicator)
        joined.begun += 1
        joined.replay_at = message.at

    def _collect(self, message: Collect) -> None:
        joined = self._found(message.communicator)
        joined.begun += not message.recorded
        begin = joined.replay_at if message.recorded else 0
        try:
            for step in message.steps:
                self._take_part(joined, step, begin + step.at)
        except Aborted:
            raise_aborted()

    def _take_part(self, joined: _CpuCommunicator, step: CollectiveStep, number: int) -> None:
        rank, size, area = joined.rank, joined.size, joined.area
        dtype = DTYPES[step.dtype]
        plan = exchange(step, rank, size)
        room = elements_of_a_round(step.kind, size, dtype.itemsize)
        source = self._elements(step.source, plan.gives, dtype)
        target = self._elements(step.target, plan.takes, dtype)
        for begin in range(0, step.longest, room):
            area.wait(*joined.readers)
            slot = area.slot(rank, dtype)
            for part, piece in enumerate(plan.gives):
                count = min(room, piece.length - begin)
                if count > 0:
                    first = piece.begin + begin
                    slot[part * room : part * room + count] = source[first : first + count]
            number += 1
            area.arrive(rank, number)
            if rank in plan.takers:
                area.wait(plan.givers, number)
                self._take(joined, step, plan, target, begin, room)
            number += 1
            area.arrive(rank, number)
            if rank in plan.givers:
                joined.readers = plan.takers, number

    def _take(
        self,
        joined: _CpuCommunicator,
        step: CollectiveStep,
        plan: RankExchange,
        target: _Array,
        begin: int,
        room: int,
    ) -> None:
        """Read others' slots of this round."""
        own_part = joined.rank * room if plan.parts > 1 else 0
        found = []
        for piece in plan.takes:
            count = min(room, piece.length - begin)
            if count > 0:
                seen = joined.area.slot(piece.rank, target.dtype)[own_part : own_part + count]
                found.append((piece.begin + begin, seen))
        if step.kind not in REDUCING:
            for first, seen in found:
                target[first : first + len(seen)] = seen
        elif found:
            first, seen = found[0]
            target[first : first + len(seen)] = _reduced([each for _, each in found], step)

    def _elements(self, address: int, pieces: list[ExchangePiece], dtype: np.dtype[Any]) -> _Array:
        """A buffer as elements, up to the last that is wanted."""
        count = max((piece.begin + piece.length for piece in pieces), default=0)
        if not count:
            return np.empty(0, dtype)
        return self._context.array(address, (count,), dtype)


@final
class CpuAborts:
    """Aborts communicators, and reports their progress."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._joined = _communicators.setdefault(context, {})
        self.handlers: Final = {AbortCommunicator: self._abort, AskBegun: self._ask_begun}

    def close(self) -> None:
        """Do nothing: it holds nothing."""

    def _abort(self, message: AbortCommunicator) -> None:
        joined = self._joined.setdefault(message.communicator, None)
        if joined is not None:
            del self._joined[message.communicator]
            joined.area.abort()

    def _ask_begun(self, message: AskBegun) -> int:
        joined = self._joined.get(message.communicator)
        return 0 if joined is None else joined.begun


def _reduced(parts: list[_Array], step: CollectiveStep) -> _Array:
    """Elements of all ranks made one, in their order, so every rank gets the same bits."""
    dtype = parts[0].dtype
    # Narrow floats are added up in float32 and rounded once.
    narrow = dtype in HALVES
    wide = np.dtype(np.float32) if narrow else dtype
    combine = _UFUNCS[step.reduction]
    scale = None if step.scale is None else wide.type(step.scale)

    def scaled(part: _Array) -> _Array:
        widened = part.astype(wide)
        return widened if scale is None else (widened * scale).astype(wide)

    total = scaled(parts[0])
    for part in parts[1:]:
        combine(total, scaled(part), out=total)
    if step.reduction == "avg":
        if dtype.kind in "iu":  # as the vendor's library does: towards zero
            quotient = total // len(parts)
            quotient += ((total < 0) & (total % len(parts) != 0)).astype(dtype)
            return quotient
        total = total / wide.type(len(parts))
    return total.astype(dtype)
