"""Decisions that were prepared where the logits are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ._errors import WrongResults
from ._sampling import DraftTree, Tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..arrays.expressions import Operand


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision of a target about a chain of drafts, instead of its logits.

    Logits of a large vocabulary are megabytes a step. A target that knows the distributions that
    drafts were drawn from can do on the device what needs them, and give these few numbers. See
    ``judge_chain``.

    Attributes:
        likely: (drafts,), the probability that each is kept if those before it are: that of the
            target over that of the draft.
        instead: (drafts + 1,), a token for each place: a draw from what the draft leaves of the
            target's distribution there; at the end from that itself, the bonus. -1 if the
            distribution is undefined, because the logits are NaN or their largest is infinite.
    """

    likely: NDArray[np.float32] | NDArray[np.float64]
    instead: Tokens | NDArray[np.int32]

    def decide(self, tree: DraftTree, rng: np.random.Generator) -> tuple[list[int], int]:
        """Return the result of ``accept``, computed from these numbers.

        Raises:
            WrongResults: they are not of that many drafts, or neither probabilities nor tokens.
            ValueError: the tree is not a chain; or the logits had no distribution.
        """
        count = len(tree)
        if tree.parents != [*range(-1, count - 1)]:
            raise ValueError("drafts of a Verdict must be a chain, without branches")
        if np.shape(self.likely) != (count,) or np.shape(self.instead) != (count + 1,):
            raise WrongResults(
                f"a Verdict of {count} drafts must have as many numbers in likely and one more in "
                f"instead, not {np.shape(self.likely)} and {np.shape(self.instead)}",
                expected=count,
                got=len(self.likely),
            )
        self._check(count)
        kept = 0
        while kept < count and rng.random() < self.likely[kept]:
            kept += 1
        token = int(self.instead[kept])
        if token == _NONE:
            raise ValueError(f"the target's logits behind {kept} drafts are of no distribution")
        return [*range(kept)], token

    def _check(self, count: int) -> None:
        likely: NDArray[Any] = np.asarray(self.likely)
        instead: NDArray[Any] = np.asarray(self.instead)
        if not np.can_cast(likely.dtype, np.float64) or instead.dtype.kind not in "iu":
            raise WrongResults(
                "a Verdict is of probabilities and whole numbers, not of "
                f"{likely.dtype} and {instead.dtype}",
                expected=count,
                got=None,
            )
        known = instead != _NONE
        wrong = known[:-1] & ~(likely >= 0)
        if wrong.any() or (instead < _NONE).any():
            raise WrongResults(
                f"a Verdict must have probabilities in likely and tokens in instead, not {likely} "
                f"and {instead}",
                expected=count,
                got=count,
            )


_NONE: Final = -1
"""Number that replaces a token if its distribution is undefined."""

# What follows is computed by whoever computes with refs: `device.evaluate`, a batch or a recording,
# and `device.fuse` makes one kernel or two of it.


def draw_token(
    logits: Operand, noise: Operand, *, temperature: float = 1.0, least: Operand | None = None
) -> tuple[Operand, Operand]:
    """Expressions that draw a token on the device: for drafts.

    Args:
        logits: (rows, vocabulary), of any floating dtype.
        noise: float32 of the same shape, exponentially distributed with mean 1, new each time:
            ``device.rng.exponential``.
        temperature: what logits are divided by; above zero.
        least: (rows, 1), to leave out logits below these: for a top k, the last values of
            ``device.array.topk``.

    Returns:
        The distribution q, float32 (rows, vocabulary), and tokens drawn from it, int64 (rows,);
        NaN and -1 where the logits have none.
    """
    q = _softmax(logits, temperature, least)
    return q, _drawn(q, noise)


def judge_chain(
    logits: Operand,
    q: Operand,
    drafts: Operand,
    noise: Operand,
    numbers: Operand,
    *,
    temperature: float = 1.0,
    least: Operand | None = None,
) -> tuple[Operand, Operand]:
    """Return expressions for the fields of a ``Verdict``, so that no logits leave the device.

    They compute in float32: tokens have the target's distribution, up to rounding.

    Args:
        logits: of the target, (drafts + 1, vocabulary): before each draft, and at the end.
        q: what drafts were drawn from, float32 of the same shape; zeros in the last row.
        drafts: their tokens, integers (drafts + 1,); the last one is none, whatever it is.
        noise: as for ``draw_token``, of the logits' shape.
        numbers: 0, 1, 2 and so on, integers (vocabulary,).
        temperature: what logits are divided by; 0 takes the most probable tokens.
        least: as for ``draw_token``.

    Returns:
        ``likely``, float32 (drafts + 1,), whose last number means nothing, and ``instead``, int64
        (drafts + 1,). Where the logits are NaN, or their largest is infinite, the token is -1, and
        the probability is NaN or 0: ``Verdict.decide`` raises if it comes to that place.
    """
    if temperature == 0:
        largest: Any = logits.max(axis=-1).astype(np.float32)
        best: Any = np.where(np.isfinite(largest), logits.argmax(axis=-1), _NONE)
        return (best == drafts).astype(np.float32), best
    p = _softmax(logits, temperature, least)
    drafted: Any = np.expand_dims(drafts, -1) == numbers
    there = np.where(drafted, p, np.float32(0)).sum(axis=-1)
    here = np.where(drafted, q, np.float32(0)).sum(axis=-1)
    rest: Any = np.maximum(p - q, np.float32(0))
    # By rounding alone nothing may be left: then the draft's chance was all there is. NaN stays.
    likely: Any = np.where(rest.max(axis=-1) == 0, 1, there / np.maximum(here, _TINY))
    return likely.astype(np.float32), _drawn(rest, noise)


_TINY: Final = np.finfo(np.float32).tiny


def _softmax(logits: Operand, temperature: float, least: Operand | None) -> Operand:
    x: Any = logits.astype(np.float32)
    if least is not None:
        x = np.where(logits < least, np.float32(-np.inf), x)
    e: Operand = np.exp((x - x.max(axis=-1, keepdims=True)) / temperature)
    return e / e.sum(axis=-1, keepdims=True)


def _drawn(p: Operand, noise: Operand) -> Operand:
    """The least of exponential times, each divided by its rate, is the first by that chance."""
    times: Any = np.where(p > 0, noise / np.maximum(p, _TINY), np.float32(np.inf))
    found: Any = np.where(p.max(axis=-1) >= 0, times.argmin(axis=-1), _NONE)
    drawn: Operand = found
    return drawn
