"""Members, epochs and ops of a world: a state machine without I/O.

A world is *gathering* until the devices of all its members take ops, then *joining* until all
have joined a communicator, and then *whole*. What goes wrong in either of the last two breaks
it: the epoch passes, every op in flight is settled, survivors leave the communicator, and it
gathers again. So it does when it is resized, but that waits until no op is in flight. When it is
over, whether it was left or cannot go on, no op is in flight either.

The caller reports events by method calls, and carries out the actions that these return. It must
keep their order, and may carry them out later: results of a past epoch are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

MOST_FAILURES: Final = 3
"""Maximum of failed communicators in a row, if no member can join but all devices work."""

Phase = Literal["gathering", "joining", "whole", "over"]


@dataclass(frozen=True, slots=True)
class Broken:
    """The reason for the end of an epoch.

    Attributes:
        epoch: the number of the epoch.
        rank: the rank that failed, numbered as in that epoch; None if it is unknown.
        cause: the error.
        size: the number of ranks in that epoch.
    """

    epoch: int
    rank: int | None
    cause: Exception
    size: int


@dataclass(frozen=True, slots=True)
class FormCommunicator:
    """Have members, in the order of their ranks, join a new communicator."""

    epoch: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaveCommunicator:
    """Have the members that are left leave the communicator of an epoch.

    Attributes:
        epoch: which one.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class WorldOpened:
    """The world is whole."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Settled:
    """An op is over: done, or broken."""

    op: int
    broken: Broken | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The world is over for good."""

    broken: Broken


Effect = FormCommunicator | LeaveCommunicator | WorldOpened | Settled | Ended


@final
class Membership:
    """State of a world.

    Args:
        members: numbers of its devices. A member's rank is its place among those left.
        shrink: go on without a member whose device has failed, rather than wait for it. The last
            one is waited for.

    Attributes:
        epoch: the number of the present epoch; it grows whenever the world breaks.
        members: those of this epoch, in the order of their ranks.
        phase: the state of the present epoch.
        broken: what broke the epoch before this one.
        ended: why the world is over, if it is.
        breaks: the number of epochs that broke.
        completed: the number of ops that were done.
        shrinks: as given.
    """

    def __init__(self, members: Iterable[int], *, shrink: bool = False) -> None:
        self.epoch: int = 1
        self.members: tuple[int, ...] = tuple(members)
        self.phase: Phase = "gathering"
        self.broken: Broken | None = None
        self.ended: Broken | None = None
        self.breaks: int = 0
        self.completed: int = 0
        self.shrinks: Final = shrink
        self._ready: set[int] = set()
        self._joining: set[int] = set()
        self._failures = 0
        self._ops: dict[int, set[int]] = {}
        self._numbers = 0

    @property
    def in_flight(self) -> int:
        """Number of ops that are not settled."""
        return len(self._ops)

    def waited_for(self, op: int) -> AbstractSet[int]:
        """The members that have not answered an op, or have not joined if it is 0."""
        return self._ops[op] if op else self._joining

    # --- what is asked for -----------------------------------------------------------------

    def begin(self, members: Iterable[int]) -> int:
        """Begin an op of these members, and return its number."""
        assert self.phase == "whole"
        self._numbers += 1
        self._ops[self._numbers] = set(members)
        return self._numbers

    def resize(self, members: Iterable[int]) -> list[Effect]:
        """Continue with these members in a new epoch. No op may be in flight.

        The number of a member that has left is never used again.
        """
        assert not self._ops
        if self.phase == "over":
            return []
        effects: list[Effect] = []
        if self.phase != "gathering":
            effects.append(LeaveCommunicator(self.epoch))
            self.phase = "gathering"
        self.epoch += 1
        self.members = tuple(members)
        self._ready.intersection_update(self.members)
        self._failures = 0
        return effects + self._form()

    def restart(self, cause: Exception) -> list[Effect]:
        """Gather again, and wait until all members are reported ready: actions were interrupted.

        The caller has all members leave the communicator itself, and carries out `Settled` alone.
        """
        if self.phase == "over":
            return []
        self._ready.clear()
        return self._break(None, cause, self.members)

    def close(self, rank: int | None, cause: Exception) -> list[Effect]:
        """End the world, perhaps because a rank is lost. Later answers are ignored."""
        return [] if self.phase == "over" else self._over(rank, cause)

    # --- what happens ----------------------------------------------------------------------

    def ready(self, member: int) -> list[Effect]:
        """A member's device takes ops."""
        if self.phase == "over" or member not in self.members:
            return []
        self._ready.add(member)
        return self._form()

    def joined(self, epoch: int, member: int) -> list[Effect]:
        """A member is in the communicator of an epoch."""
        if epoch != self.epoch or self.phase != "joining":
            return []
        self._joining.discard(member)
        if self._joining:
            return []
        self.phase = "whole"
        self._failures = 0
        return [WorldOpened(epoch)]

    def answered(self, op: int, member: int) -> list[Effect]:
        """A member has done its part of an op."""
        waiting = self._ops.get(op)
        if waiting is None:
            return []
        waiting.discard(member)
        if waiting:
            return []
        del self._ops[op]
        self.completed += 1
        return [Settled(op, None)]

    def lost(self, member: int, cause: Exception) -> list[Effect]:
        """A member's device has failed; it may come back."""
        if self.phase == "over" or member not in self.members:
            return []
        rank = self.members.index(member)
        good = member in self._ready
        self._ready.discard(member)
        left = tuple(other for other in self.members if other != member)
        if good:
            self._failures = 0  # that communicator may have failed because of the device
        if self.shrinks and left:
            return self._break(rank, cause, left)
        return self._break(rank, cause, self.members) if good else []

    def gone(self, member: int, cause: Exception) -> list[Effect]:
        """A member's device will not come back."""
        if self.phase == "over" or member not in self.members:
            return []
        if self.shrinks and len(self.members) > 1:
            return self.lost(member, cause)
        self._ready.discard(member)
        return self._end(self.members.index(member), cause)

    def failed(
        self, epoch: int, member: int | None, cause: Exception, *, for_good: bool = False
    ) -> list[Effect]:
        """Handle a communicator that failed although no device has failed.

        ``for_good`` says whether every other communicator would fail too.
        """
        if epoch != self.epoch or self.phase not in ("joining", "whole"):
            return []
        rank = None if member is None else self.members.index(member)
        if self.phase == "joining":
            self._failures += 1
        if for_good or self._failures >= MOST_FAILURES:
            return self._end(rank, cause)
        return self._break(rank, cause, self.members)

    # --- what follows ----------------------------------------------------------------------

    def _form(self) -> list[Effect]:
        if self.phase != "gathering" or not self._ready.issuperset(self.members):
            return []
        self.phase = "joining"
        self._joining = set(self.members)
        return [FormCommunicator(self.epoch, self.members)]

    def _break(
        self,
        rank: int | None,
        cause: Exception,
        members: tuple[int, ...],
    ) -> list[Effect]:
        """The epoch is over, if it had begun; another one begins with ``members``."""
        effects: list[Effect] = []
        if self.phase != "gathering":
            self.broken = Broken(self.epoch, rank, cause, len(self.members))
            self.breaks += 1
            effects = [*self._settle(self.broken), LeaveCommunicator(self.epoch)]
            self.epoch += 1
            self.phase = "gathering"
        elif members != self.members:
            self.broken = Broken(self.epoch, rank, cause, len(self.members))
            self.epoch += 1
        self.members = members
        return effects + self._form()

    def _end(self, rank: int | None, cause: Exception) -> list[Effect]:
        effects = self._over(rank, cause)
        assert self.ended is not None
        self.broken = self.ended
        self.breaks += 1
        return [*effects, Ended(self.broken)]

    def _over(self, rank: int | None, cause: Exception) -> list[Effect]:
        self.ended = Broken(self.epoch, rank, cause, len(self.members))
        effects = self._settle(self.ended)
        if self.phase != "gathering":
            effects.append(LeaveCommunicator(self.epoch))
        self.phase = "over"
        return effects

    def _settle(self, broken: Broken) -> list[Effect]:
        """Every op in flight is over."""
        settled: list[Effect] = [Settled(op, broken) for op in self._ops]
        self._ops.clear()
        return settled
