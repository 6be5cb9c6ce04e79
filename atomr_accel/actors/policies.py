"""Policies that choose one of several members that do the same work.

They look at nothing but how much each has to do, so members may be actors, replicas or devices.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar, final
from weakref import WeakKeyDictionary

from .util import check_instance


class LoadedMember(Protocol):
    """A member that has requests. It stays the same object as long as it takes part."""

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        ...


Member = TypeVar("Member", bound=LoadedMember)


@final
class RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._turns: WeakKeyDictionary[LoadedMember, int] = WeakKeyDictionary()
        self._turn = 0

    def choose(self, members: Sequence[Member], hints: object = None, /) -> Member:
        """The one whose turn is longest ago."""
        del hints
        chosen = min(members, key=lambda member: self._turns.get(member, 0))
        self._turn += 1
        self._turns[chosen] = self._turn
        return chosen


@final
class LeastLoaded:
    """The one with the fewest requests; of several, the one that was chosen longest ago."""

    def __init__(self) -> None:
        self._ties = RoundRobin()

    def choose(self, members: Sequence[Member], hints: object = None, /) -> Member:
        """One with the fewest requests in flight."""
        del hints
        least = min(member.in_flight for member in members)
        return self._ties.choose([each for each in members if each.in_flight == least])


@final
class PowerOfTwo:
    """The less loaded of two that are drawn at random (Mitzenmacher, 2001).

    Nearly as even as to look at all of them, and where several programs share the members, they
    do not all run to the same one.

    Args:
        rng: the random numbers; pass ``random.Random(seed)`` to make the choice repeatable.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        if rng is not None:
            check_instance("rng", rng, random.Random)
        self._rng = rng or random.Random()  # noqa: S311 (no secret)

    def choose(self, members: Sequence[Member], hints: object = None, /) -> Member:
        """The less loaded of two drawn at random."""
        del hints
        if len(members) == 1:
            return members[0]
        one, other = self._rng.sample(members, 2)
        return one if one.in_flight <= other.in_flight else other
