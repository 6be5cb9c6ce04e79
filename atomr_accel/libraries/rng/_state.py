"""A generator's position in its sequence. It lives in the program, not in the host."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeAlias

import numpy as np

from .wire._distributions import BLOCK, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .wire._distributions import GeneratorKind


Seed: TypeAlias = "SupportsIndex | Iterable[SupportsIndex] | np.random.SeedSequence | None"

_WORDS: Final = 2**64


@dataclass(frozen=True, slots=True)
class GeneratorStatistics:
    """Statistics of a generator.

    Attributes:
        kind: its name.
        position: its place in the sequence: words of 32 bits, or points.
        draws: the number of draws.
        values: the number of values.
    """

    kind: str
    position: int
    draws: int
    values: int


@dataclass(slots=True, eq=False)
class GeneratorState:
    """A generator's state.

    Attributes:
        kind: a row of ``KINDS``.
        ordering: of cuRAND's words in memory.
        dimensions: of quasi-random points; 1 for others.
        seeds: where the key and the children's seeds come from; None for quasi-random ones.
        position: where the sequence goes on: in words, a multiple of 4, or in points.
        rejection_offset: the same, in blocks of words, for what draws until it accepts.
        draws, values: see ``GeneratorStatistics``.
    """

    kind: str
    ordering: str
    dimensions: int
    seeds: np.random.SeedSequence | None
    position: int = 0
    rejection_offset: int = 0
    draws: int = 0
    values: int = 0
    key: int = 0

    def __post_init__(self) -> None:
        if self.seeds is not None:
            self.key = int(self.seeds.generate_state(1, np.uint64)[0])

    @property
    def spec(self) -> GeneratorKind:
        """The properties of the generator's kind."""
        return KINDS[self.kind]

    def move(self, to: int) -> None:
        """Go to a place in the sequence."""
        to = operator.index(to)
        if to < 0:
            raise ValueError(f"a sequence has no place before its first one: {to}")
        place = to if self.spec.quasi else -(-to // BLOCK) * BLOCK
        limit = 2**self.spec.bits if self.spec.quasi else _WORDS
        if place > limit:
            raise ValueError(f"{self.kind} has {limit} places, and no place {to}")
        self.position = place

    def require_points(self, count: int) -> None:
        """Raise ``ValueError`` if a quasi-random sequence ends before ``count`` more points."""
        if count and self.position + count > 2**self.spec.bits:
            raise ValueError(
                f"{self.kind} has {2**self.spec.bits} points; {count} from number "
                f"{self.position} on are too many"
            )

    def drawn(self, values: int, *, places: int = 0, rejections: int = 0) -> None:
        """Go on behind a draw, which is about to be sent.

        Args:
            values: how many it gives.
            places: words or points that it takes.
            rejections: blocks of words that it takes, if it draws until it accepts.
        """
        to = self.position + places
        self.position = to if self.spec.quasi else to % _WORDS
        self.rejection_offset = (self.rejection_offset + rejections) % _WORDS
        self.draws += 1
        self.values += values

    def save(self) -> dict[str, Any]:
        """The state as plain values."""
        seeds = self.seeds
        entropy: Any = None if seeds is None else seeds.entropy
        return {
            "kind": self.kind,
            "ordering": self.ordering,
            "dimensions": self.dimensions,
            "entropy": entropy if entropy is None or isinstance(entropy, int) else [*entropy],
            "spawn_key": [] if seeds is None else [*map(int, seeds.spawn_key)],
            "children": 0 if seeds is None else seeds.n_children_spawned,
            "position": self.position,
            "rejection_offset": self.rejection_offset,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
        if not isinstance(saved, dict) or saved.keys() != self.save().keys():
            raise TypeError(f"a state is a dict with the keys {', '.join(self.save())}")
        for name in ("kind", "ordering", "dimensions"):
            if saved[name] != getattr(self, name):
                raise ValueError(
                    f"the state must have the {name} of the generator, "
                    f"{getattr(self, name)!r}, not {saved[name]!r}"
                )
        offset, seeds = operator.index(saved["rejection_offset"]), self.seeds
        if not 0 <= offset < _WORDS:
            raise ValueError(f"rejection_offset must be from 0 to 2**64 - 1, not {offset}")
        if seeds is not None:
            seeds = np.random.SeedSequence(
                saved["entropy"],
                spawn_key=tuple(saved["spawn_key"]),
                n_children_spawned=saved["children"],
            )
        self.move(saved["position"])  # the last that may refuse, so nothing is restored halfway
        self.rejection_offset = offset
        if seeds is not None:
            self.seeds = seeds
            self.key = int(seeds.generate_state(1, np.uint64)[0])


def new_state(seed: Seed, kind: str, ordering: str, offset: int, dimensions: int) -> GeneratorState:
    """The state of a new generator."""
    spec = KINDS.get(kind)
    if spec is None:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if ordering not in spec.orderings:
        raise ValueError(
            f"ordering of {kind} must be one of {', '.join(spec.orderings)}, not {ordering!r}"
        )
    if spec.quasi:
        if seed is not None:
            raise TypeError(f"{kind} is one fixed sequence, which takes no seed")
        seeds = None
    else:
        seeds = seed if isinstance(seed, np.random.SeedSequence) else _seeds(seed)
        if dimensions != 1:
            raise ValueError(f"{kind} makes no points, so dimensions is 1, not {dimensions}")
    state = GeneratorState(kind, ordering, dimensions, seeds)
    state.move(offset)
    return state


def _seeds(seed: SupportsIndex | Iterable[SupportsIndex] | None) -> np.random.SeedSequence:
    if seed is None:
        return np.random.SeedSequence()
    parts: Iterable[SupportsIndex] = [seed] if isinstance(seed, SupportsIndex) else seed
    try:
        numbers = [operator.index(part) for part in parts]
    except TypeError:
        raise TypeError(
            f"seed must be an int, a sequence of ints or a numpy.random.SeedSequence, not {seed!r}"
        ) from None
    if any(part < 0 for part in numbers):
        raise ValueError(f"seed must be at least 0, not {seed!r}")
    return np.random.SeedSequence(numbers[0] if isinstance(seed, SupportsIndex) else numbers)
