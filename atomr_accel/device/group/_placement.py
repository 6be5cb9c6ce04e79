"""Placement of work on devices, with a line for tasks that must wait."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

import trio

from ..._errors import DeviceLost, OutOfMemory
from ._candidate import CandidateState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._candidate import Candidate, Hints, PlacementPolicy


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
class Placement:
    """The line of tasks that wait for a device of a group, or of one of its slices."""

    def __init__(self) -> None:
        self._waiting: deque[_PlacementWaiter] = deque()
        self._idle = trio.Event()

    @property
    def waiting(self) -> int:
        """Number of waiting tasks."""
        return len(self._waiting)

    async def take(
        self, candidates: Sequence[Candidate], policy: PlacementPolicy, hints: Hints
    ) -> Candidate:
        """Wait for a device that has room; ``give_back`` it."""
        await trio.lowlevel.checkpoint()
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
