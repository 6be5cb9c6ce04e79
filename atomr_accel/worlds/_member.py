"""A device as a member of worlds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary

import trio

from .._errors import ContextPoisoned
from ..device.batches.replaying import RECORDINGS, forget
from ..lanes import uninterrupted
from ..libraries.nccl.lanes import ABORTS, COLLECTIVES
from ..libraries.nccl.wire.messages import (
    AbortCommunicator,
    AskBegun,
    Collect,
    Join,
)
from ..memory import block_at
from ..ops import LaneSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..device import Device
    from ..device.batches.record import Recording
    from ..device.core import DeviceCore
    from ..lanes import Op
    from ..memory import Block, MemoryMap
    from ..wire import Message
    from ._interfaces import OnAnswer, RankPart, RankReplay

REPLAYS: Final = LaneSpec(
    "nccl-recordings", RECORDINGS.executors, watched=False, own_thread=True, parkable=False
)
"""Lane of the recordings of worlds, which wait for other devices as collectives do."""


@final
class _MembersOrder:
    """The value of ``DeviceCore.collectives`` once a device was in a world."""

    def __init__(self, memory: MemoryMap) -> None:
        self.unanswered: Final[dict[int, object]] = {}
        self._memory: Final = memory
        self._block: Block = block_at(memory, 0, 0)

    def block(self) -> Block:
        """Return a block that every collective of the device writes, so they begin in order.

        Ranks that began two collectives in different orders would wait for each other forever, even
        if the two were of different worlds.
        """
        if self._block.epoch is not self._memory.epoch:
            self._block = block_at(self._memory, 0, 0)
        return self._block


@final
@uninterrupted
class DeviceMember:
    """A device: what a world asks of it are ops of its lanes for collectives."""

    def __init__(self, device: Device) -> None:
        self.device: Final = device
        self.core: Final[DeviceCore] = device.core
        if self.core.collectives is None:
            self.core.collectives = _MembersOrder(self.core.memory)
        self._order: Final = self.core.collectives
        # The communicator that each recording was replayed on last.
        self._replayed: Final[WeakKeyDictionary[Recording, int]] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The device's name."""
        return self.core.name

    def require_open(self) -> None:
        """See ``WorldMember.require_open``."""
        self.core.lifecycle.require_open()

    async def start(self) -> None:
        """See ``WorldMember.start``."""
        while True:
            try:
                await self.core.open_lane(COLLECTIVES)
                await self.core.open_lane(ABORTS)
            except ContextPoisoned:
                continue  # the device comes back, or is lost, which raises another error
            return

    async def follow(
        self, ready: Callable[[], object], lost: Callable[[Exception], object]
    ) -> None:
        """See ``WorldMember.follow``."""
        core = self.core
        with core.lifecycle.watch() as changes:
            while True:
                await self.start()
                try:
                    while True:
                        changes.receive_nowait()
                except (trio.WouldBlock, trio.EndOfChannel):
                    pass
                if not core.ports.keys() >= {COLLECTIVES.name, ABORTS.name}:
                    continue
                ready()
                try:
                    generation = await changes.receive()
                except trio.EndOfChannel:
                    await core.ready()  # raises why
                    return
                lost(core.lifecycle.why_over("idle", generation - 1))

    def join(
        self, number: int, rank: int, size: int, place: tuple[bytes, int], answered: OnAnswer
    ) -> None:
        """See ``WorldMember.join``."""
        meeting, area = place
        self._submit("nccl.join", Join(number, rank, size, meeting, area), answered)

    def collect(self, number: int, name: str, part: RankPart, answered: OnAnswer) -> None:
        """See ``WorldMember.collect``."""
        if part.replay is not None:
            self._replay(number, part.replay, answered)
            return
        message = Collect(number, part.steps)
        self._submit(f"nccl.{name}", message, answered, part.reads, part.writes)

    def _replay(self, number: int, replay: RankReplay, answered: OnAnswer) -> None:
        if REPLAYS.name not in self.core.ports:
            answered(self.core.lifecycle.why_over("replay", self.core.memory.generation - 1))
            return
        self._replayed[replay.recording] = number
        self._await(replay.submit(number, self._order.block()), answered)

    def ask_begun(self, number: int, answered: Callable[[int, Exception | None], object]) -> None:
        """See ``WorldMember.ask_begun``."""
        port = self.core.ports.get(ABORTS.name)
        if port is not None:
            op = self.core.submit(port, "nccl.begun", AskBegun(number))

            def tell() -> None:
                error = op.error
                if not isinstance(error, ContextPoisoned):  # who follows the device tells that
                    answered(op.value or 0, error)

            op.when_answered(tell)

    def waits_elsewhere(self) -> bool:
        """See ``WorldMember.waits_elsewhere``."""
        oldest = next(iter(self._order.unanswered.values()), self)
        return oldest is not self

    def abort(self, number: int, answered: Callable[[], object]) -> None:
        """See ``WorldMember.abort``.

        The host cannot end a communicator before its recordings are gone.
        """
        for recording, last in list(self._replayed.items()):
            if last == number:
                del self._replayed[recording]
                forget(recording)
        port = self.core.ports.get(ABORTS.name)
        if port is None:  # its host is gone
            answered()
            return
        op = self.core.submit(port, "nccl.abort", AbortCommunicator(number))
        op.when_answered(partial(_call, answered))

    def kill(self, op: str, cause: Exception) -> Exception | None:
        """See ``WorldMember.kill``."""
        context = self.core.context
        if context is None:
            return cause
        if context.host.pid is None:
            return None
        return context.hung(op, str(cause))

    def _submit(
        self,
        name: str,
        message: Message,
        answered: OnAnswer,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> None:
        port = self.core.ports.get(COLLECTIVES.name)
        if port is None:
            answered(self.core.lifecycle.why_over(name, self.core.memory.generation - 1))
            return
        op = self.core.submit(port, name, message, reads, (*writes, self._order.block()))
        self._await(op, answered)

    def _await(self, op: Op, answered: OnAnswer) -> None:
        waiting = self._order.unanswered
        waiting[op.seq] = self

        def tell() -> None:
            waiting.pop(op.seq, None)
            answered(op.error)

        op.when_answered(tell)


def _call(answered: Callable[[], object]) -> None:
    answered()
