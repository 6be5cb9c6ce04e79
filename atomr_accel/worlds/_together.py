"""Collectives of groups and of batches, which are not waited for one by one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, final

import trio

from .._errors import WorldBroken
from ..memory import Hold
from ..ops import Awaited, Collected, D
from . import _plans as plans
from ._collectives import Collectives
from ._mail import Letter, Letters
from ._plans import CollectivePlan, OutputPending

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ..arrays import GpuRef
    from ..device.batches.batch import Batch
    from ..device.batches.record import Recording
    from ..memory import MemoryMap
    from ._engine import CollectiveCall, Term
    from ._world import World

T = TypeVar("T")


class _LaterCollectives(Collectives[D]):
    """Collectives of a block; results have content when it was left or replayed."""

    def __init__(self, what: str, made_by: str, size: int) -> None:
        self._what: Final = what
        self._made_by: Final = made_by
        self._size: Final = size
        self._letters: Final = Letters()
        self._open = True

    def _put(self, x: GpuRef, to: int) -> None:
        """See ``send`` of the classes below."""
        self._require_open()
        to = plans.require_rank(to, self._size, "to")
        self._letters.put(self._rank_of(x), to, Letter(x))

    def _take(self, source: int, to: int, out: GpuRef | None) -> partial[GpuRef]:
        """See ``recv`` of the classes below."""
        self._require_open()
        letter = self._letters.take(source, to)
        if letter is None:
            raise ValueError(
                f"nothing was sent from rank {source} to {to} in this {self._what} before"
            )
        return partial(plans.send, x=letter.ref, to=to, out=out)

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
        for source, to in self._letters.places():
            raise ValueError(
                f"a buffer that rank {source} has sent to rank {to} was not received in this "
                f"{self._what}; call recv({source}, {to}) in its block"
            )


class CollectedCollectives(_LaterCollectives[Collected]):
    """Collectives of a batch or a recording, which return their results at once."""

    call_mode: ClassVar[type[Awaited | Collected]] = Collected

    def send(self, x: GpuRef, to: int) -> None:
        """Give a buffer to a rank, where ``recv`` in this block takes it (``ncclSend``).

        The buffer travels when it is received, with its content at that point.
        """
        self._put(x, to)

    def recv(self, source: int, to: int, *, out: GpuRef | None = None) -> GpuRef:
        """Take what ``send`` has given in this block (``ncclRecv``).

        Raises:
            ValueError: nothing was sent from there to there.
        """
        result: GpuRef = self._carry_out(self._take(source, to, out))
        return result


class _OfOneTerm(_LaterCollectives[D]):
    """Collectives of one epoch of a world."""

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


@final
class CollectiveGroup(_OfOneTerm[Awaited]):
    """Collectives that go together; see ``World.group``."""

    def __init__(self, world: World, term: Term) -> None:
        super().__init__("group", world, term)
        self._outputs: list[tuple[int, GpuRef]] = []
        self._planned: list[partial[Any]] = []

    async def send(self, x: GpuRef, to: int) -> None:
        """Give a buffer to a rank, where ``recv`` in this group takes it (``ncclSend``)."""
        self._require_open()
        await trio.lowlevel.checkpoint()
        self._put(x, to)

    async def recv(self, source: int, to: int, *, out: GpuRef | None = None) -> GpuRef:
        """Take what ``send`` has given in this group (``ncclRecv``).

        Raises:
            ValueError: nothing was sent from there to there.
        """
        return await self._carry_out(self._take(source, to, out))

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
            memory = self._cores[rank].memory
            if ref.block.epoch is memory.epoch:  # else it is stale anyway
                memory.free(ref.block)

    def _send(self) -> CollectiveCall | None:
        """Send all of it."""
        self._close()
        if not self._planned:
            return None
        made = self._plan(self._outputs)
        for each in self._planned:
            each(made)
        return self._submit(made)


class CollectorSite(NamedTuple):
    """A batch or a recording in the form in which plans see a device.

    Buffers that find no room at once are promised.
    """

    collector: Batch | Recording

    @property
    def name(self) -> str:
        """See ``RankSite``."""
        return self.collector.core.name

    @property
    def memory(self) -> MemoryMap:
        """See ``RankSite``."""
        return self.collector.memory

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef:
        """See ``RankSite``."""
        del nbytes
        return self.collector.output(shape, dtype)


@final
class _Deferred:
    """A collective that is deferred to the end of the block."""

    def __init__(self, batch: WorldBatch, made: CollectivePlan) -> None:
        self._batch = batch
        self._made = made
        self._missing = len(batch.devices)
        self._sent = trio.Event()
        # Until it is ordered, memory that is freed meanwhile must not be used for anything else.
        self._holds = [Hold(each) for part in made.parts for each in (*part.reads, *part.writes)]

    async def come(self) -> None:
        """Submit it once all ranks have come here: all that was collected before is submitted."""
        self._missing -= 1
        if self._missing:
            await self._sent.wait()
            return
        for part in self._made.parts:
            await self._batch.devices[part.rank].provide((*part.reads, *part.writes))
        self._made.begin_at(self._batch._term.at)
        self._batch._calls.append(self._batch._submit(self._made))
        self._holds.clear()
        self._sent.set()


@final
class WorldBatch(_OfOneTerm[Collected], CollectedCollectives):
    """Ops of all devices of a world that are collected; see ``World.batch``.

    Attributes:
        devices: a batch of each device, in the order of ranks.
    """

    devices: tuple[Batch, ...]

    def __init__(self, world: World, term: Term, batches: Sequence[Batch]) -> None:
        super().__init__("batch", world, term)
        self.devices = tuple(batches)
        self._sites = [CollectorSite(each) for each in batches]
        self._calls: list[CollectiveCall] = []
        self._epochs = [each.memory.epoch for each in self._cores]

    def broken(self, error: Exception) -> WorldBroken:
        """Return the error of the batch when one of its devices has failed."""
        ranks = range(self._size)
        lost = [at for at in ranks if self._cores[at].memory.epoch is not self._epochs[at]]
        rank = lost[0] if lost else None
        who = "a rank" if rank is None else f"rank {rank}"
        epoch = self._term.epoch
        broken = WorldBroken(
            f"the batch was not done: {who} of {self._size} failed in epoch {epoch}: {error}",
            rank=rank,
            epoch=epoch,
        )
        broken.__cause__ = error
        return broken

    def _carry_out(self, plan: partial[T]) -> T:
        self._require_open()
        for rank, core in enumerate(self._cores):
            if core.memory.epoch is not self._epochs[rank]:
                raise self.broken(core.lifecycle.why_over("the batch", core.memory.generation - 1))
        made = CollectivePlan(self._sites, self._term.at, [])
        result = plan(made)
        if any(batch.late for batch in self.devices):
            deferred = _Deferred(self, made)
            for batch in self.devices:
                batch.put_off(deferred.come)
        else:
            self._calls.append(self._submit(made))
        return result

    async def _finish(self) -> None:
        """Wait for all collectives."""
        self._close()
        errors: list[Exception] = []

        async def place(batch: Batch) -> None:
            try:
                await batch.placed()
            except Exception as error:  # noqa: BLE001 - it is raised below
                errors.append(error)
                nursery.cancel_scope.cancel()

        if any(batch.late for batch in self.devices):
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                for batch in self.devices:
                    nursery.start_soon(place, batch)
        if errors:
            try:
                raise errors[0]
            finally:
                errors.clear()
        for call in self._calls:
            if not call.done.is_set() or call.broken is not None:
                await call.wait()

    def _abandon(self) -> None:
        """Refuse further calls. The devices' batches free all buffers."""
        self._open = False
