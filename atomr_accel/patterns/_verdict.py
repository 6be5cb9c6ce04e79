"""Decisions that were prepared where the logits are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from ._errors import WrongResults
from ._sampling import DraftTree, Tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What a target says of a chain of drafts, in place of its logits.

    Logits of a large vocabulary are megabytes a step. A target that knows the distributions that
    drafts were drawn from can do on the device what needs them, and give these few numbers. See
    ``verdict_of_chain``.

    Attributes:
        likely: (drafts,), the probability that each is kept if those before it are: that of the
            target over that of the draft.
        instead: (drafts + 1,), a token for each place: a draw from what the draft leaves of the
            target's distribution there; at the end from that itself, the bonus.
    """

    likely: NDArray[np.float32] | NDArray[np.float64]
    instead: Tokens | NDArray[np.int32]

    def decide(self, tree: DraftTree, rng: np.random.Generator) -> tuple[list[int], int]:
        """What ``accept`` gives, from these numbers.

        Raises:
            WrongResults: they are not of that many drafts.
            ValueError: the tree is no chain.
        """
        count = len(tree)
        if tree.parents != [*range(-1, count - 1)]:
            raise ValueError("a Verdict is of a chain of drafts, but these have branches")
        if np.shape(self.likely) != (count,) or np.shape(self.instead) != (count + 1,):
            raise WrongResults(
                f"a Verdict of {count} drafts must have as many numbers in likely and one more in "
                f"instead, not {np.shape(self.likely)} and {np.shape(self.instead)}",
                expected=count,
                got=len(self.likely),
            )
        kept = 0
        while kept < count and rng.random() < self.likely[kept]:
            kept += 1
        return [*range(kept)], int(self.instead[kept])
