"""Recordings on all devices of a world, with collectives in them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from .._errors import ContextPoisoned
from ..arrays import GpuRef
from ..device.batches.replaying import (
    bind_inputs,
    checked_buffers,
    is_ready,
    ready_to_replay,
    submit_replay,
)
from ..libraries.nccl.lanes import COLLECTIVES
from ..libraries.nccl.wire.messages import BeginReplay, Collect
from ..libraries.recordings.wire.messages import RecordingStep, ReplayTogether
from ..wire import encode
from ._interfaces import RankPart
from ._plans import CollectivePlan
from ._together import CollectedCollectives, CollectorSite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..device.batches.record import Recording
    from ..device.batches.replaying import ReplayBuffers, RunningReplay
    from ..device.core import DeviceCore
    from ..lanes import Op, Port
    from ..memory import Block
    from ._engine import Engine, Term
    from ._member import DeviceMember
    from ._world import World

T = TypeVar("T")


@final
class _PresentCommunicator:
    """Stands for the number of the world's communicator in a message until it is sent."""

    def __init__(self, engine: Engine[DeviceMember]) -> None:
        self._engine = engine

    def __index__(self) -> int:
        assert self._engine.term is not None
        return self._engine.term.number


@final
class _PartialReplay:
    """One rank's replay.

    Attributes:
        recording: the rank's part of the recording.
        running: the replay, once it was submitted.
    """

    def __init__(self, recording: Recording, buffers: ReplayBuffers, at: int) -> None:
        self.recording: Final = recording
        self.running: RunningReplay | None = None
        self._buffers = buffers
        self._at = at

    def submit(self, number: int, order: Block) -> Op:
        """See ``RankReplay.submit``."""
        recording, core = self.recording, self.recording.core
        begin = RecordingStep(
            COLLECTIVES.executor_on(core.backend_description),
            "nccl.begin",
            encode(BeginReplay(number, self._at), "nccl.begin"),
        )

        def submit(port: Port, reads: Iterable[Block], writes: Iterable[Block]) -> Op:
            message = ReplayTogether(recording.number, (begin,))
            return core.submit(port, "recording.replay", message, reads, writes)

        # Preparing it may connect ranks, which must not cross their other ops.
        buffers = self._buffers._replace(writes=[*self._buffers.writes, order])
        self.running = submit_replay(recording, buffers, submit, number)
        return self.running.op


@final
class WorldRecording(CollectedCollectives):
    """Ops of all devices of a world that are recorded; see ``World.record``.

    After a rank's death it is prepared again as the recordings of devices are. It is for the ranks
    with which it was made.

    Attributes:
        devices: a recording of each device, in the order of ranks.
    """

    devices: tuple[Recording, ...]

    def __init__(self, world: World, recordings: Sequence[Recording]) -> None:
        super().__init__("recording", "record", len(recordings))
        self.devices = tuple(recordings)
        self._world = world
        self._made_for = world._engine.members, world.devices
        self._sites = [CollectorSite(each) for each in recordings]
        self._rounds = 0

    def _rank_of(self, x: GpuRef) -> int:
        return self._plan().rank_of(x, "x")

    def _plan(self) -> CollectivePlan:
        return CollectivePlan(self._sites, self._rounds, [])

    def _carry_out(self, plan: partial[T]) -> T:
        """Record a collective, on stand-ins for its buffers."""
        self._require_open()
        if any(each.in_part for each in self.devices):
            raise RuntimeError(
                "collectives must not be in a part of a recording that a flag decides on, which "
                "may have other values on other ranks; call it before or after the part"
            )
        made, given = self._plan(), dict[int, GpuRef]()

        def taken(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [taken(each) for each in value]
            if not isinstance(value, GpuRef):
                return value
            for recording in self.devices:
                if value.block.memory is recording.memory:
                    stand_in: GpuRef = recording.take(value)
                    given[id(stand_in)] = value
                    return stand_in
            return value  # the plan refuses it, by its name

        arguments = {name: taken(value) for name, value in plan.keywords.items()}
        result: Any = plan.func(made, **arguments)
        for part in made.parts:
            number: Any = _PresentCommunicator(self._world._engine)
            message = Collect(number, part.steps, recorded=True)
            self.devices[part.rank].submit(
                COLLECTIVES, f"nccl.{made.name}", message, part.reads, part.writes
            )
        self._rounds = made.at
        if isinstance(result, list):
            result = [given.get(id(each), each) for each in result]
        return given.get(id(result), result)  # type: ignore[no-any-return]

    async def replay(self, *inputs: Sequence[GpuRef]) -> None:
        """Execute the recording on all devices, and wait until it has finished.

        Args:
            *inputs: replacements of the inputs of ``world.record``, in order: lists of buffers, one
                for each rank.

        Raises:
            ValueError: a buffer has another shape, or is on another device; inputs are too many.
            TypeError: a buffer has another dtype, or an input is not a list of buffers.
            GpuRefStale: a buffer is stale.
            RuntimeError: another task has replayed it, and it was not made with ``shared=True``; or
                its block was not left, or has raised.
            WorldBroken: a rank failed meanwhile, or the world goes on with other ranks.
            OutOfMemory: no room for its results.
        """
        engine = self._world._engine
        await trio.lowlevel.checkpoint_if_cancelled()
        cores = [each.core for each in self.devices]
        bound = [
            bind_inputs(recording, refs)
            for recording, refs in zip(self.devices, inputs_by_rank(cores, inputs), strict=True)
        ]
        looked = False
        while True:
            term = await self._whole()
            try:
                buffers = [
                    checked_buffers(recording, refs)
                    for recording, refs in zip(self.devices, bound, strict=True)
                ]
            except Exception:
                if looked:
                    raise
                looked = True  # a device may just have failed, which the world does not know yet
                await engine.whole()
                continue
            break
        replays = [
            _PartialReplay(recording, each, term.at)
            for recording, each in zip(self.devices, buffers, strict=True)
        ]
        parts = [RankPart(rank, replay=replay) for rank, replay in enumerate(replays)]
        call = engine.submit(term, "replay", parts, term.at + self._rounds)
        running = [each.running for each in replays if each.running is not None]
        try:
            await call.wait()
        except Exception as error:
            for each in running:
                each.failed(error)
            raise
        except BaseException:
            for each in running:  # nobody waits any more, but it is carried out
                each.succeeded()
            raise
        for each in running:
            each.succeeded()

    async def _whole(self) -> Term:
        """Wait until all members have joined, and all parts can be replayed at once."""
        engine = self._world._engine
        while True:
            term = await engine.whole()
            members, devices = self._made_for
            if self._world.devices != devices:
                engine.require("the recording was not replayed", members)
            try:
                for recording in self.devices:
                    await ready_to_replay(recording)
            except ContextPoisoned:
                continue  # the device comes back, or is lost, which raises another error
            if engine.whole_now() is term and all(map(is_ready, self.devices)):
                return term


def inputs_by_rank(
    cores: Sequence[DeviceCore], inputs: Sequence[Sequence[GpuRef]]
) -> list[tuple[GpuRef, ...]]:
    """Return what each rank has of the inputs of a recording, which are lists for all ranks."""
    plan = CollectivePlan(cores, 0, [])
    for at, refs in enumerate(inputs):
        for rank, ref in enumerate(plan.each(refs, f"input {at}")):
            plan.require_there(ref, rank, f"input {at}[{rank}]")
    return [tuple(refs[rank] for refs in inputs) for rank in range(len(cores))]
