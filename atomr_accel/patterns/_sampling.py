"""Rejection sampling of speculative decoding: which drafts a text keeps, and what follows them.

For a single draft see Leviathan, Kalman and Matias, ICML 2023, and Chen et al., arXiv:2302.01318.
Trees of drafts use recursive rejection (Miao et al., SpecInfer, ASPLOS 2024). Siblings are drawn
without replacement (Jeon et al., arXiv:2402.14160). For any drafts, the resulting tokens have the
distribution of the target alone. The functions here do not wait and keep no state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..wire.options import count, real, set_fields, whole

Tokens: TypeAlias = NDArray[np.int64]
"""Numbers of tokens, or of nodes of a tree."""

Logits: TypeAlias = NDArray[np.float16] | NDArray[np.float32] | NDArray[np.float64]
"""Logits of all tokens of the vocabulary: one row, or rows of shape (nodes, vocabulary)."""

Probabilities: TypeAlias = NDArray[np.float64]
"""Probabilities of all tokens of the vocabulary, (vocabulary,). They sum to one."""

ROOT: Final = -1
"""The parent of the first drafts of a tree: the end of the text."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Transformation of logits before a token is drawn, the same for target and drafts.

    Attributes:
        temperature: the divisor of the logits. 0 takes the most probable token (the first of equal
            ones), without chance.
        top_k: keep only this number of the most probable tokens, and those equal to the last of
            them. None keeps all.
        top_p: keep only the most probable tokens, among those that ``top_k`` keeps, until their sum
            reaches this probability.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        set_fields(
            self,
            temperature=real(self.temperature, "temperature", least=0),
            top_k=None if self.top_k is None else count(self.top_k, "top_k"),
            top_p=real(self.top_p, "top_p", above=0, most=1),
        )

    @property
    def greedy(self) -> bool:
        """True if the choice of tokens involves no chance."""
        return self.temperature == 0

    def probabilities(self, logits: Logits) -> Probabilities:
        """Return the distribution from which tokens are drawn.

        Args:
            logits: (vocabulary,), of any floating dtype; -inf for tokens that are impossible.
                Logarithms of probabilities are logits.

        Returns:
            float64, (vocabulary,).

        Raises:
            ValueError: a NaN or +inf among the logits, or nothing but -inf.
        """
        best = logits.max()
        if not np.isfinite(best):
            raise ValueError(f"the largest of {logits.size} logits is {best}: of no distribution")
        if self.greedy:
            certain = np.zeros(logits.size)
            certain[logits.argmax()] = 1.0
            return certain
        x = np.asarray(logits, np.float64)
        if self.top_k is not None and self.top_k < x.size:
            x = np.where(x < np.partition(x, -self.top_k)[-self.top_k], -np.inf, x)
        with np.errstate(over="ignore"):  # to minus infinity, where logits are far apart
            p: Probabilities = np.exp((x - best) / self.temperature)
        p /= p.sum()
        if self.top_p < 1:
            # Those below a fraction of what is to be left out, though all of them, are too few.
            some = np.flatnonzero(p > 0.5 * (1 - self.top_p) / p.size)
            order = some[np.argsort(-p[some], kind="stable")]
            before = np.cumsum(p[order]) - p[order]
            kept = order[before < self.top_p]
            nucleus = np.zeros(p.size)
            nucleus[kept] = p[kept] / p[kept].sum()
            return nucleus
        return p


@final
class DraftTree:
    """Continuations of a text that a draft proposes, with common beginnings shared.

    Nodes have numbers in the order in which they are added, so a parent precedes its children.
    ``ROOT`` is the end of the text. A chain is a tree without forks; siblings are tried in their
    order.

    Attributes:
        tokens: the token of each node.
        parents: the parent of each node.
        drawn_from: the distributions from which children were drawn, by parent. The first child is
            drawn from the distribution, and each further one from the rest without the earlier
            ones. The children of a node without a distribution are guesses, not draws.
            Distributions need not sum to one.
        depth: the number of nodes on the longest path from the root.
    """

    __slots__ = ("_children", "_depths", "depth", "drawn_from", "parents", "tokens")

    def __init__(self) -> None:
        self.tokens: Final[list[int]] = []
        self.parents: Final[list[int]] = []
        self.drawn_from: Final[dict[int, Probabilities]] = {}
        self.depth: int = 0
        self._depths: Final[list[int]] = []
        self._children: Final[dict[int, list[int]]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int = ROOT) -> int:
        """Add a node after its siblings, and return its number."""
        node = len(self)
        token, parent = whole(token, "token"), whole(parent, "parent", ROOT, node - 1)
        self.tokens.append(token)
        self.parents.append(parent)
        self._children.setdefault(parent, []).append(node)
        self._depths.append(1 if parent == ROOT else self._depths[parent] + 1)
        self.depth = max(self.depth, self._depths[node])
        return node

    def add_chain(self, tokens: list[int]) -> None:
        """Add a continuation; where one that is there begins alike, only the rest of it."""
        at = ROOT
        for token in tokens:
            same = [child for child in self.children(at) if self.tokens[child] == token]
            at = same[0] if same else self.add(token, at)

    def children(self, node: int) -> list[int]:
        """The children of a node, or of ``ROOT``, in the order in which they are tried."""
        return self._children.get(node, [])


def draw(p: Probabilities, rng: np.random.Generator) -> int:
    """A token by chance. Never one of probability zero; ``p`` need not sum to one."""
    sums = np.cumsum(p)
    place = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
    return place if place < p.size else int(np.flatnonzero(p)[-1])  # the product was rounded up


def draw_children(
    tree: DraftTree, parent: int, q: Probabilities, count: int, rng: np.random.Generator
) -> list[int]:
    """Add children that are drawn without replacement; their numbers.

    ``tree`` gets them and ``q``. They are fewer than ``count`` if fewer tokens have a probability.
    """
    tree.drawn_from[parent] = q
    left = q.copy()
    nodes = []
    for _ in range(min(count, int(np.count_nonzero(q)))):
        token = draw(left, rng)
        left[token] = 0.0
        nodes.append(tree.add(token, parent))
    return nodes


def accept(
    tree: DraftTree, distribution: Callable[[int], Probabilities], rng: np.random.Generator
) -> tuple[list[int], int]:
    """Decide which drafts a text keeps.

    Args:
        tree: the drafts.
        distribution: returns the target's distribution after a node; called for the root and for
            nodes that are kept.
        rng: the random numbers of the decision.

    Returns:
        The nodes that are kept, from the root on, and the token that comes after them. If the
        last one has no children this is the bonus: a draw from the target's distribution there.
        Otherwise it is a draw from what its children have left of that.

    Raises:
        ValueError: a draft has no probability in the distribution that it was drawn from, or that
            one is of another vocabulary.
    """
    path: list[int] = []
    at = ROOT
    while True:
        p = distribution(at)
        q = tree.drawn_from.get(at)
        for child in tree.children(at):
            token = tree.tokens[child]
            rest, likely = _tried(p, q, token)
            # Of rounding alone nothing may be left: then the draft's chance was all there is.
            if rng.random() < likely or not rest.any():
                path.append(child)
                break
            p = rest / rest.sum()
            if q is not None:
                q = q.copy()
                q[token] = 0.0
        else:
            return path, draw(p, rng)
        at = path[-1]


def _tried(p: Probabilities, q: Probabilities | None, token: int) -> tuple[Probabilities, float]:
    """Return the rest of ``p`` if a draft is rejected, and the probability that it is kept."""
    known = 0 <= token < p.size
    if q is None:
        if not known:  # of the text, but none that the target ever says
            return p, 0.0
        rest = p.copy()
        rest[token] = 0.0
        return rest, float(p[token])
    if q.size != p.size:
        raise ValueError(
            f"the draft's vocabulary has {q.size} tokens and the target's {p.size}; they must be "
            "the same"
        )
    if not (known and q[token] > 0):
        raise ValueError(
            f"token {token} cannot have been drawn: it has no probability, or was drawn before"
        )
    q = q / q.sum()
    return np.maximum(p - q, 0.0), float(p[token] / q[token])
