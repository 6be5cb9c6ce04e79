"""Number of drafts in a row that are worth their time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from ..wire.options import count, real, set_fields

MOST_DRAFTS: Final = 4096
"""The largest length of drafts: each length up to it is compared."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveLength:
    """Chooses the number of drafts in a row by the fraction that was kept recently.

    Suppose a draft is kept with probability ``a``, and a step of the draft takes ``cost`` times as
    long as one of the target. Then ``n`` drafts in a row give
    ``(1 - a**(n + 1)) / (1 - a)`` tokens. They take the time of ``1 + n * cost`` steps of the
    target (Leviathan et al., section 3.3). Each text
    takes the ``n`` with the most tokens for the time. The tokens' distribution does not change,
    because a step's ``n`` depends only on the steps before it.

    Attributes:
        maximum: the most.
        minimum: the fewest. With 0, a text whose drafts are never kept goes on without any, and
            never learns whether that has changed.
        cost: of a draft, as a fraction of the target's step; 0.02 is enough for look-ups.
        memory: how many drafts count: each one further makes those before it count a little less.
    """

    maximum: int = 8
    minimum: int = 1
    cost: float = 0.1
    memory: float = 50.0

    def __post_init__(self) -> None:
        maximum = count(self.maximum, "maximum", 0, MOST_DRAFTS)
        set_fields(
            self,
            maximum=maximum,
            minimum=count(self.minimum, "minimum", 0, maximum),
            cost=real(self.cost, "cost", least=0),
            memory=real(self.memory, "memory", least=1, infinity=True),
        )

    def best(self, kept: float) -> int:
        """Return the best number of drafts in a row for this probability; of equals, the least."""
        kept = real(kept, "kept", least=0, most=1)

        def worth(length: int) -> float:
            return sum(kept**n for n in range(length + 1)) / (1 + length * self.cost)

        return max(range(self.minimum, self.maximum + 1), key=worth)


_KEPT: Final = 0.7
_TRIED: Final = 4.0
"""Initial state of a text: this number of drafts tried, and this fraction of them kept."""


class LengthSeen:
    """The length for one text, which learns."""

    __slots__ = ("_kept", "_length", "_tried", "now")

    def __init__(self, length: int | AdaptiveLength) -> None:
        self._length = length
        self._tried = _TRIED
        self._kept = _KEPT * _TRIED
        self.now: int = length if isinstance(length, int) else length.best(_KEPT)

    def saw(self, depth: int, kept: int) -> None:
        """Note that the first ``kept`` of ``depth`` drafts in a row were kept."""
        if isinstance(self._length, int) or not depth:
            return
        for success in [1.0] * kept + [0.0] * (kept < depth):
            fade = 1 - 1 / self._length.memory
            self._tried = fade * self._tried + 1
            self._kept = fade * self._kept + success
        self.now = self._length.best(self._kept / self._tried)
