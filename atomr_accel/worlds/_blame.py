"""Who keeps a world waiting, by how far its ranks say they are: decided without I/O.

All ranks begin their ops in one order. So whoever asks what an op waits for, then what that waits
for, and so on, comes to ranks that wait for nobody, and have not begun what others are in.
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
        """The members that have not begun it though somebody waits for them in it."""
        found = {member for member, place in self.places.items() if begun[member] < place}
        waited_for = self.joining or len(found) < len(self.places)
        return found if waited_for else frozenset()


def to_blame(
    overdue: Sequence[Unfinished], unfinished: Sequence[Unfinished], begun: Mapping[int, int]
) -> list[int]:
    """The members that keep others waiting, and wait for nobody themselves.

    Args:
        overdue: what takes too long.
        unfinished: all that is not finished, this included.
        begun: how many ops each member has begun.

    Returns:
        They, by number. There are none where all have begun what takes too long. Nor are there
        where nobody has begun an op: what all do before may take its time. But a world that did
        not get its ranks to join would be over.
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
