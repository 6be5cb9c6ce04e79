"""Stand-ins for the devices of a group, as policies and placement see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atomr_accel import CandidateState, Hints


@dataclass(eq=False)
class Member:
    """A candidate with given properties."""

    name: str
    in_flight: int = 0
    memory: int = 1000
    state: CandidateState = CandidateState.READY
    limit: int = 4
    seconds: float = 0.0
    reserved: int = 0

    @property
    def free_bytes(self) -> int:
        return self.memory - self.reserved

    def seconds_to(self, _near: object) -> float:
        return self.seconds

    def _admits(self, hints: Hints) -> bool:
        ready = self.state is CandidateState.READY
        return ready and self.in_flight < self.limit and hints.nbytes <= self.free_bytes

    def _take(self, hints: Hints) -> None:
        self.in_flight += 1
        self.reserved += hints.nbytes

    def _give_back(self, hints: Hints) -> None:
        self.in_flight -= 1
        self.reserved -= hints.nbytes


def members(count: int, **given: Any) -> list[Any]:
    """Return a number of members; of type Any, since they are not candidates."""
    return [Member(f"fake:{number}", **given) for number in range(count)]


class First:
    """Chooses the first candidate, and notes its arguments."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    def choose(self, candidates: Sequence[Any], _hints: Hints, /) -> Any:
        self.given.append([each.name for each in candidates])
        return candidates[0]
