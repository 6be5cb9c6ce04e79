"""Policies for devices: by memory, by the location of data, and by key.

`RoundRobin`, `LeastLoaded` and `PowerOfTwo` choose between anything that has requests
(``actors/policies``).
"""

from __future__ import annotations

import math
from bisect import bisect
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal, final

from ..._errors import said_of
from ...actors.policies import LeastLoaded, PowerOfTwo, RoundRobin
from ...wire.options import count, real

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ._candidate import Candidate, Hints, PlacementPolicy

PlacementPolicyName = Literal[
    "round_robin",
    "least_loaded",
    "power_of_two",
    "most_free_memory",
    "data_locality",
    "consistent_hash",
]


@final
class MostFreeMemory:
    """The one with the most free memory; of several, the one with the fewest requests."""

    def choose(self, candidates: Sequence[Candidate], _hints: Hints, /) -> Candidate:
        """Return a candidate with the most free memory."""
        return max(candidates, key=lambda each: (each.free_bytes, -each.in_flight))


@final
class DataLocality:
    """Chooses the device that gets the buffers to read soonest: where they lie, or next to it.

    If several are equally near, the least loaded one is chosen. Work that reads no buffers goes to
    the least loaded device.
    """

    def __init__(self) -> None:
        self._ties = LeastLoaded()

    def choose(self, candidates: Sequence[Candidate], hints: Hints, /) -> Candidate:
        """Return a candidate that gets ``hints.near`` soonest."""
        seconds = {each: each.seconds_to(hints.near) for each in candidates}
        least = min(seconds.values())
        return self._ties.choose([each for each in candidates if seconds[each] == least])


_MOST_POINTS: Final = 1 << 16


@final
class ConsistentHash:
    """Sends equal keys to the same device, without giving it much more than its share.

    Devices have points on a ring, and a key goes to the one whose point comes next after its own
    (Karger et al., 1997). If that device has ``balance`` times the mean number of blocks in flight,
    the key goes to the next (Mirrokni, Thorup and Zadimoghaddam, 2018). When a device is left out,
    only its keys move, and they return with it. Work without a key goes to the least loaded device.

    Args:
        balance: the limit for a device, as a multiple of the mean number of blocks in flight. 1.25
            is a good value, and infinity never moves keys.
        points: number of points of each device on the ring; more points make shares more even.
    """

    def __init__(self, balance: float = 1.25, points: int = 128) -> None:
        self._balance: Final = real(balance, "balance", above=1, infinity=True)
        self._points: Final = count(points, "points", most=_MOST_POINTS)
        self._keyless: Final = LeastLoaded()
        self._of: dict[str, list[int]] = {}
        self._known: tuple[str, ...] = ()
        self._ring: list[tuple[int, str]] = []

    def choose(self, candidates: Sequence[Candidate], hints: Hints, /) -> Candidate:
        """Return the candidate that ``hints.key`` belongs to, unless it is overloaded."""
        if hints.key is None:
            return self._keyless.choose(candidates)
        by_name = {each.name: each for each in candidates}
        ring = self._ring_of(tuple(by_name))
        total = sum(each.in_flight for each in candidates) + 1
        most = self._balance * total / len(candidates)
        most = math.inf if math.isinf(most) else math.ceil(most)
        start = bisect(ring, (_hash(_bytes_of(hints.key)), ""))
        for at in range(len(ring)):
            found = by_name[ring[(start + at) % len(ring)][1]]
            if found.in_flight < most:
                return found
        raise AssertionError("not all can have more than the mean")

    def _ring_of(self, names: tuple[str, ...]) -> list[tuple[int, str]]:
        if names != self._known:
            for name in names:
                if name not in self._of:
                    self._of[name] = [
                        _hash(f"{name} {number}".encode()) for number in range(self._points)
                    ]
            self._ring = sorted((point, name) for name in names for point in self._of[name])
            self._known = names
        return self._ring


def _bytes_of(key: str | bytes | int) -> bytes:
    """Return a key's bytes, which differ between types and are the same in every process."""
    if isinstance(key, bytes):
        return b"b" + key
    return (f"i{int(key)}" if isinstance(key, int) else f"s{key}").encode("utf-8", "surrogatepass")


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


_POLICIES: Final[Mapping[PlacementPolicyName, Callable[[], PlacementPolicy]]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
    "most_free_memory": MostFreeMemory,
    "data_locality": DataLocality,
    "consistent_hash": ConsistentHash,
}


def policy_of(policy: PlacementPolicyName | PlacementPolicy) -> PlacementPolicy:
    """A policy, by its name or as itself."""
    if isinstance(policy, str):
        make = _POLICIES.get(policy)
        if make is None:
            raise ValueError(f"policy must be one of {', '.join(_POLICIES)}, not {policy!r}")
        return make()
    if isinstance(policy, type):
        name = policy.__name__
        raise TypeError(f"policy must be an object, not the class {name}: make one, {name}()")
    if not callable(getattr(policy, "choose", None)):
        raise TypeError(f"policy must have a method choose, or be a name, not {said_of(policy)}")
    return policy
