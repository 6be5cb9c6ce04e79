"""Decisions, without I/O, about the ranks that keep a world waiting.

All ranks begin their ops in one order. So the chain from an overdue op to the ranks it waits for,
and on to the ops those ranks wait for, ends at ranks that wait for no other. These ranks have not
begun ops that others have begun.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet


@final
@dataclass(frozen=True, slots=True)
class Unfinished:
    """An op, or joining, that some members have not answered.

    Attributes:
        places: the members that take part, and which of their ops it is, from 1 on.
        unanswered: those of them that have not answered.
        joining: the world itself waits for it.
    """

    places: Mapping[int, int]
    unanswered: AbstractSet[int]
    joining: bool = False

    def missing(self, begun: Mapping[int, int]) -> AbstractSet[int]:
        """Return the members that have not begun the op, if others wait for them in it."""
        found = {member for member, place in self.places.items() if begun[member] < place}
        waited_for = self.joining or len(found) < len(self.places)
        return found if waited_for else frozenset()


def to_blame(
    overdue: Sequence[Unfinished], unfinished: Sequence[Unfinished], begun: Mapping[int, int]
) -> list[int]:
    """Return the members that keep others waiting and wait for no other member.

    Args:
        overdue: the ops that take too long.
        unfinished: all unfinished ops, including these.
        begun: the number of ops that each member has begun.

    Returns:
        The numbers of these members. The list is empty if all members have begun the overdue ops.
        It is also empty if no member has begun an op, because the work before it may take long.
        Joining is different: a member that has not begun to join is always listed.
    """
    waits_for: defaultdict[int, set[int]] = defaultdict(set)
    for each in unfinished:
        missing = each.missing(begun)
        for member in each.unanswered - missing:
            waits_for[member] |= missing
    found = {member for each in overdue for member in each.missing(begun)}
    todo = found.union(*(each.unanswered for each in overdue))
    seen: set[int] = set()
    while todo:
        member = todo.pop()
        seen.add(member)
        found |= waits_for[member]
        todo |= waits_for[member] - seen
    return sorted(member for member in found if not waits_for[member])
