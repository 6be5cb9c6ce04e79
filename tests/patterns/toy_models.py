"""Language models of a few tokens, whose distributions are known, and caches that hold them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence

import numpy as np
import trio
from numpy.typing import NDArray
from scipy.stats import chi2

from atomr_accel.patterns import Logits, Probabilities, Sampling, Tokens

FALSE_ALARMS = 1e-6
"""Probability, over seeds, that a test of a distribution fails although all is well. Each test has
its own seed, so that it fails always or never."""

Hook = Callable[[str], Awaitable[None]]
"""Is called, and may wait or fail, in the middle of what a model does."""


class ToyModel:
    """Logits by the last two tokens, by chance.

    Args:
        seed: says which.
        vocabulary: how many tokens there are.
        like: another model, whose logits these are, but for ``noise``.
        noise: how far from these.
    """

    def __init__(
        self,
        seed: int,
        vocabulary: int = 4,
        *,
        like: ToyModel | None = None,
        noise: float = 1.0,
        hook: Hook | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.vocabulary: int = vocabulary if like is None else like.vocabulary
        shape = (self.vocabulary + 1, self.vocabulary + 1, self.vocabulary)
        self.table: NDArray[np.float64] = rng.normal(0.0, noise, shape)
        if like is not None:
            self.table += like.table
        self.hook = hook
        self.open = 0
        self.forwards = 0

    def logits(self, text: Sequence[int]) -> NDArray[np.float64]:
        """Return the logits after a text."""
        *_, before, last = [-1, -1, *text]
        row: NDArray[np.float64] = self.table[before, last]
        return row

    async def __call__(self, tokens: Tokens) -> ToyText:
        """Prefill."""
        if self.hook is not None:
            await self.hook("prefill")
        return ToyText(self, tokens.tolist())

    def joint(self, prompt: list[int], length: int, sampling: Sampling) -> Probabilities:
        """The probabilities of all continuations of a length, in their order."""

        def chances() -> Iterator[float]:
            for tokens in itertools.product(range(self.vocabulary), repeat=length):
                text, p = list(prompt), 1.0
                for token in tokens:
                    p *= float(sampling.probabilities(self.logits(text))[token])
                    text.append(token)
                yield p

        return np.array([*chances()])


class ToyText:
    """A cache that computes from its own contents alone, and refuses impossible calls."""

    def __init__(self, model: ToyModel, kept: list[int]) -> None:
        self.model = model
        self.kept = kept
        self.nodes: list[int] = []
        self.parents: list[int] = []
        self.closed = False
        self.broken = False
        model.open += 1

    def text(self, node: int) -> list[int]:
        """Return the text that ends with a node."""
        if node == -1:
            return self.kept
        return [*self.text(self.parents[node]), self.nodes[node]]

    async def forward(self, tokens: Tokens, parents: Tokens) -> Logits:
        assert not self.closed
        assert not self.broken, "nothing was kept after a forward that has failed"
        assert len(tokens) == len(parents) >= 1
        self.broken = True
        if self.model.hook is not None:
            await self.model.hook("before")
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            assert -1 <= parent < len(self.nodes)
            self.nodes.append(token)
            self.parents.append(parent)
        rows = range(len(self.nodes) - len(tokens), len(self.nodes))
        if self.model.hook is not None:
            await self.model.hook("after")
        self.broken = False
        self.model.forwards += 1
        return np.stack([self.model.logits(self.text(node)) for node in rows])

    def keep(self, path: Tokens) -> None:
        assert not self.closed
        at = -1
        for node in path.tolist():
            assert self.parents[node] == at
            self.kept.append(self.nodes[node])
            at = node
        self.nodes.clear()
        self.parents.clear()
        self.broken = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.model.open -= 1


def assert_distributed(found: Counter[int], expected: Probabilities) -> None:
    """Pearson's chi-squared test, in which a false alarm is as rare as ``FALSE_ALARMS`` says.

    Rare outcomes are one cell together. Cells of probability zero must be empty.
    """
    count = found.total()
    counts = np.array([found[cell] for cell in range(expected.size)])
    assert counts.sum() == count
    assert not counts[expected == 0].any()
    rare = expected * count < 8
    cells = [(counts[rare].sum(), expected[rare].sum() * count)] if rare.any() else []
    cells += [*zip(counts[~rare], expected[~rare] * count, strict=True)]
    cells = [(n, mean) for n, mean in cells if mean > 0]
    statistic = sum((n - mean) ** 2 / mean for n, mean in cells)
    assert len(cells) > 1
    assert statistic < chi2.isf(FALSE_ALARMS, len(cells) - 1)


async def one_by_one(model: ToyModel) -> None:
    """A checkpoint, as models' calls are."""
    await trio.lowlevel.checkpoint()
