"""Placement of work on devices, as a service with a line for tasks that must wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import trio

from ..._errors import DeviceLost, OutOfMemory
from ...actors import Message, Service, handler
from ...actors.nursery import PlainNursery
from ._candidate import CandidateState
from ._topology import Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._device import Device
    from ._candidate import Candidate, Hints, PlacementPolicy


class GetTopology(Message[Topology]):
    """A question for the links between the devices of a group: ``devices.ref`` answers it."""


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """One device of a group at one moment.

    Attributes:
        name: such as ``"cuda:0"``.
        state: its state.
        in_flight: number of blocks of ``place`` that it has.
        queued: number of its ops that are not answered yet, from all callers.
        free_bytes: bytes that the program may still allocate there, less the reserved ones.
        generation: its generation, which grows with each fault.
        utilization: its utilization from 0 to 1; None if unknown.
    """

    name: str
    state: CandidateState
    in_flight: int
    queued: int
    free_bytes: int
    generation: int
    utilization: float | None


@dataclass(frozen=True, slots=True)
class DevicesStatistics:
    """A group of devices at one moment.

    Attributes:
        devices: each of them, in the group's order.
        waiting: how many blocks of ``place`` wait for a device.
    """

    devices: tuple[DeviceLoad, ...]
    waiting: int


@final
class _PlacementWaiter:
    """Work that waits for a device."""

    __slots__ = ("answered", "candidates", "error", "hints", "policy", "taken")

    def __init__(
        self, candidates: Sequence[Candidate], policy: PlacementPolicy, hints: Hints
    ) -> None:
        self.candidates = candidates
        self.policy = policy
        self.hints = hints
        self.answered = trio.Event()
        self.taken: Candidate | None = None
        self.error: BaseException | None = None

    def try_now(self) -> bool:
        """Take a device if one has room, or find out that none will; whether it is decided."""
        candidates, hints = self.candidates, self.hints
        admitting = [each for each in candidates if each._admits(hints)]
        if admitting:
            chosen = self.policy.choose(admitting, hints)
            if not any(chosen is each for each in admitting):
                raise ValueError(
                    f"policy must choose one of the devices that it was given, not {chosen!r}"
                )
            chosen._take(hints)
            self.taken = chosen
            return True
        left = [each for each in candidates if each.state is not CandidateState.LOST]
        if not left:
            names = ", ".join(each.name for each in candidates)
            raise DeviceLost(f"there is no device left to place work on: {names} are lost")
        # A task that waits for memory waits for others to free some. Freed buffers are not
        # reported, so it checks at the end of each block of ``place``.
        if all(each.state is CandidateState.READY and not each.in_flight for each in left):
            most = max(each.free_bytes for each in left)
            raise OutOfMemory(
                f"no room to place {hints.nbytes} bytes: all devices are idle, and none has more "
                f"than {most} bytes free",
                requested=hints.nbytes,
                free=most,
            )
        return False


@final
class Placement(Service):
    """The line of tasks that wait for a device of a group, or of one of its slices.

    It outlives its restarts: tasks go on waiting, and those that have a device keep it.
    """

    def __init__(
        self, candidates: Sequence[Candidate] = (), topology: Topology | None = None
    ) -> None:
        self._waiting: deque[_PlacementWaiter] = deque()
        self._idle = trio.Event()
        self._candidates = candidates
        self._topology = topology
        self._over = False

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Have waiting tasks check again when a device is ready again, has failed, or is lost."""
        async with PlainNursery() as nursery:
            for each in self._candidates:
                nursery.start_soon(self._follow, each.device)
            task_status.started()
            await trio.sleep_forever()

    async def _follow(self, device: Device) -> None:
        core = device.core
        try:
            with core.lifecycle.watch() as changes:
                while True:
                    await core.ready()
                    self.look()
                    await changes.receive()
        except (DeviceLost, trio.EndOfChannel):
            self.look()

    def ended(self, cause: BaseException | None) -> None:
        """Refuse all that wait."""
        self._over = True
        for waiter in self._waiting:
            waiter.error = _stopped()
            waiter.error.__cause__ = cause
            waiter.answered.set()
        self._waiting.clear()

    def depth(self) -> int:
        """Blocks that wait for a device, or have one."""
        return self.waiting + sum(each.in_flight for each in self._candidates)

    def statistics(self, of: Sequence[Candidate] | None = None) -> DevicesStatistics:
        """A snapshot of the devices, or of some of them, as policies see them."""
        return DevicesStatistics(
            devices=tuple(
                DeviceLoad(
                    name=each.name,
                    state=each.state,
                    in_flight=each.in_flight,
                    queued=each.queued,
                    free_bytes=each.free_bytes,
                    generation=each.generation,
                    utilization=each.utilization,
                )
                for each in (self._candidates if of is None else of)
            ),
            waiting=self.waiting,
        )

    @handler
    async def _on_topology(self, message: GetTopology) -> Topology:  # noqa: ARG002 (it is empty)
        await trio.lowlevel.checkpoint()
        assert self._topology is not None
        return self._topology

    @property
    def waiting(self) -> int:
        """Number of waiting tasks."""
        return len(self._waiting)

    async def take(
        self, candidates: Sequence[Candidate], policy: PlacementPolicy, hints: Hints
    ) -> Candidate:
        """Wait for a device that has room; ``give_back`` it."""
        await trio.lowlevel.checkpoint()
        if self._over:
            raise _stopped()
        waiter = _PlacementWaiter(candidates, policy, hints)
        self.look()  # freed memory is not reported, and the first in line goes first
        if not waiter.try_now():
            self._waiting.append(waiter)
            try:
                await waiter.answered.wait()
            except BaseException:
                if waiter.taken is not None:  # at this very moment
                    self.give_back(waiter.taken, hints)
                elif waiter in self._waiting:
                    self._waiting.remove(waiter)
                raise
            if waiter.error is not None:
                try:
                    raise waiter.error
                finally:
                    waiter.error = None
        assert waiter.taken is not None
        return waiter.taken

    def give_back(self, candidate: Candidate, hints: Hints) -> None:
        """The work is over."""
        candidate._give_back(hints)
        if not candidate.in_flight:
            self._idle.set()
            self._idle = trio.Event()
        self.look()

    async def idle(self, candidate: Candidate) -> None:
        """Wait until a device has no work."""
        await trio.lowlevel.checkpoint()
        while candidate.in_flight:
            await self._idle.wait()

    def look(self) -> None:
        """Give devices with room to waiting tasks, in the order of their arrival."""
        for waiter in list(self._waiting):
            try:
                decided = waiter.try_now()
            except BaseException as error:  # noqa: BLE001 (whoever waits raises it)
                waiter.error = error
                decided = True
            if decided:
                self._waiting.remove(waiter)
                waiter.answered.set()


def _stopped() -> DeviceLost:
    return DeviceLost("there is no device left to place work on: their placement has stopped")
