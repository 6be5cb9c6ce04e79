"""Collectives that are not waited for one by one: those of groups and of batches."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from .._errors import WorldBroken
from . import _plans as plans
from ._collectives import Collectives
from ._mail import Letter, Letters
from ._plans import CollectivePlan, OutputPending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..arrays import GpuRef
    from ..device.batches.batch import Batch
    from ..memory import Block
    from ._engine import CollectiveCall, Term
    from ._world import World

T = TypeVar("T")


class LaterCollectives(Collectives):
    """Collectives whose results have content later, when a block was left or replayed."""

    def __init__(self, what: str, made_by: str, size: int) -> None:
        self._what: Final = what
        self._made_by: Final = made_by
        self._size: Final = size
        self._letters: Final = Letters()
        self._open = True

    async def send(self, x: GpuRef, to: int) -> None:
        """Give a buffer to a rank, where ``recv`` in this block takes it (``ncclSend``)."""
        self._require_open()
        await trio.lowlevel.checkpoint()
        to = plans.require_rank(to, self._size, "to")
        self._letters.put(self._rank_of(x), to, Letter(x))

    async def recv(self, source: int, to: int, *, out: GpuRef | None = None) -> GpuRef:
        """Take what ``send`` has given in this block (``ncclRecv``).

        Raises:
            ValueError: nothing was sent from there to there.
        """
        self._require_open()
        letter = self._letters.take(source, to)
        if letter is None:
            raise ValueError(
                f"nothing was sent from rank {source} to {to} in this {self._what} before"
            )
        return await self._carry_out(partial(plans.send, x=letter.ref, to=to, out=out))

    def _rank_of(self, x: GpuRef) -> int:
        raise NotImplementedError

    def _require_open(self) -> None:
        if not self._open:
            raise RuntimeError(
                f"the {self._what}'s block was left; open another one with world.{self._made_by}()"
            )

    def _close(self) -> None:
        """Refuse further calls, and an end at which something was sent and not received."""
        self._open = False
        if len(self._letters):
            raise ValueError(
                f"{len(self._letters)} buffers were sent in a {self._what}, and not received"
            )


class _OfOneTerm(LaterCollectives):
    """Collectives of one epoch of a world; buffers that they make are freed if they fail."""

    def __init__(self, what: str, world: World, term: Term) -> None:
        super().__init__(what, what, world.size)
        self._world = world
        self._term = term
        self._cores = world._cores()

    def _rank_of(self, x: GpuRef) -> int:
        return self._plan([]).rank_of(x, "x")

    def _plan(self, outputs: list[tuple[int, GpuRef]]) -> CollectivePlan:
        return CollectivePlan(self._cores, self._term.at, outputs)

    def _submit(self, made: CollectivePlan) -> CollectiveCall:
        """Send a plan as one op."""
        engine = self._world._engine
        if engine.term is not self._term or engine.membership.phase != "whole":
            broken = engine.membership.broken
            raise WorldBroken(
                f"the {self._what} was not sent: the world broke meanwhile",
                rank=None if broken is None else broken.rank,
                epoch=self._term.epoch,
            )
        return self._world._submit(self._term, made)

    def _free(self, rank: int, block: Block) -> None:
        memory = self._cores[rank].memory
        if block.epoch is memory.epoch:  # else it is stale anyway
            memory.free(block)


@final
class CollectiveGroup(_OfOneTerm):
    """Collectives that go together; see ``World.group``."""

    def __init__(self, world: World, term: Term) -> None:
        super().__init__("group", world, term)
        self._outputs: list[tuple[int, GpuRef]] = []
        self._planned: list[partial[Any]] = []

    async def _carry_out(self, plan: partial[T]) -> T:
        """Note a call of the group; all calls are planned again when the group is sent."""
        self._require_open()
        await trio.lowlevel.checkpoint()
        while True:
            self._require_open()
            try:
                result = self._try(plan)
            except OutputPending as pending:
                await self._world._provide(self._cores, pending, self._outputs)
            else:
                self._planned.append(plan)
                return result

    def _try(self, plan: partial[T]) -> T:
        """Plan all calls of the group so far, and this one: later checks see earlier calls."""
        trial = self._plan(self._outputs)
        for each in self._planned:
            each(trial)
        return plan(trial)

    def _abandon(self) -> None:
        """Refuse what the group has made."""
        self._open = False
        for rank, ref in self._outputs:
            self._free(rank, ref.block)

    def _send(self) -> CollectiveCall | None:
        """Send all of it."""
        self._close()
        if not self._planned:
            return None
        made = self._plan(self._outputs)
        for each in self._planned:
            each(made)
        return self._submit(made)


@final
class WorldBatch(_OfOneTerm):
    """Ops of all devices of a world that are collected; see ``World.batch``.

    Attributes:
        devices: a batch of each device, in the order of ranks.
    """

    devices: tuple[Batch, ...]

    def __init__(self, world: World, term: Term, batches: Sequence[Batch]) -> None:
        super().__init__("batch", world, term)
        self.devices = tuple(batches)
        self._calls: list[CollectiveCall] = []
        self._made: list[tuple[int, weakref.ref[Block]]] = []

    async def _carry_out(self, plan: partial[T]) -> T:
        """Send a collective, after all that was collected before."""
        self._require_open()
        await trio.lowlevel.checkpoint()
        outputs: list[tuple[int, GpuRef]] = []
        while True:
            for batch in self.devices:
                await batch.placed()
            self._require_open()
            made = self._plan(outputs)
            try:
                result = plan(made)
            except OutputPending as pending:
                await self._world._provide(self._cores, pending, outputs)
            else:
                break
        self._made += [(rank, weakref.ref(ref.block)) for rank, ref in outputs]
        self._calls.append(self._submit(made))
        return result

    async def _finish(self) -> None:
        """Wait for all collectives."""
        self._close()
        for call in self._calls:
            if not call.done.is_set() or call.broken is not None:
                await call.wait()

    def _abandon(self) -> None:
        """Free what collectives have made. The devices' batches free what theirs have."""
        self._open = False
        for rank, made in self._made:
            block = made()
            if block is not None:
                self._free(rank, block)
