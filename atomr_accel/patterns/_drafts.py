"""Drafts, from a smaller model or from the earlier text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Protocol, final

import numpy as np

from .._errors import said_of
from ..wire.options import count
from ._cached_text import Following, Prefill
from ._draft_length import MOST_DRAFTS
from ._errors import WrongResults
from ._sampling import ROOT, DraftTree, Logits, Sampling, draw_children
from ._verdict import Verdict


def check_drafts(tree: DraftTree, text: Sequence[int], vocabulary: int | None) -> None:
    """See that the drafts can be given to a model, which may look them up in memory.

    Args:
        tree: the drafts.
        text: the text to continue. Its own tokens are always valid.
        vocabulary: of the model, if it is known.
    """
    given: object = tree
    if not isinstance(given, DraftTree):
        raise WrongResults(
            f"propose must return a DraftTree, got {said_of(given)}", expected=1, got=None
        )
    end = np.iinfo(np.int64).max if vocabulary is None else vocabulary
    for token in tree.tokens:
        if token < 0 or (token >= end and token not in text):
            raise WrongResults(
                f"a draft is token {token}, but the target's are from 0 to {end - 1}",
                expected=end,
                got=token,
            )
    for parent, q in tree.drawn_from.items():
        numbers: object = q
        if not (
            isinstance(numbers, np.ndarray)
            and numbers.ndim == 1
            and np.can_cast(numbers.dtype, np.float64)
            and (numbers >= 0).all()
            and 0 < numbers.sum() < np.inf
        ):
            raise WrongResults(
                f"drawn_from[{parent}] must be probabilities of all tokens, got {numbers!r}",
                expected=1,
                got=None,
            )


class DraftText(Protocol):
    """Drafts for one text."""

    async def propose(
        self,
        text: Sequence[int],
        shape: Sequence[int],
        sampling: Sampling,
        rng: np.random.Generator,
    ) -> DraftTree:
        """Propose how the text may go on.

        A call that was cancelled or has failed may be made again. With the same ``rng`` it
        proposes the same.

        Args:
            text: so far. It only grows, by the tokens that were decided.
            shape: how many siblings to propose in each depth; fewer are allowed.
            sampling: what the target's logits will be used with.
            rng: where chance comes from.
        """
        ...

    def keep(self, path: Sequence[int]) -> None:
        """The text has got these nodes of the last tree, and a token behind them."""
        ...

    def drop(self) -> None:
        """Free device memory: it was lost, or the text has ended.

        If ``propose`` is called after that, it starts from the text.
        """
        ...


class Draft(Protocol):
    """Source of drafts."""

    def begin(self, prompt: Sequence[int]) -> DraftText:
        """Drafts for one more text, which begins with this prompt."""
        ...


@final
class ModelDraft:
    """Drafts by a model, drawn from its distributions.

    Without randomness, it proposes the most probable tokens.

    Args:
        prefill: as the target's, with logits over the same vocabulary.
    """

    __slots__ = ("_prefill",)

    def __init__(self, prefill: Prefill[Logits]) -> None:
        if not callable(prefill):
            raise TypeError(f"argument of ModelDraft must be a coroutine function, not {prefill!r}")
        self._prefill = prefill

    def begin(self, prompt: Sequence[int]) -> DraftText:  # noqa: ARG002 (the text has it, too)
        """Drafts for one more text."""
        return _ModelText(self._prefill)


class _ModelText:
    def __init__(self, prefill: Prefill[Logits]) -> None:
        self._model = Following(prefill)

    async def propose(
        self,
        text: Sequence[int],
        shape: Sequence[int],
        sampling: Sampling,
        rng: np.random.Generator,
    ) -> DraftTree:
        tree = DraftTree()
        await self._model.begin(text)
        level = [ROOT]
        for width in shape:
            nodes = [node for node in level if node != ROOT]
            rows = await self._model.forward(
                text, [tree.tokens[node] for node in nodes], [tree.parents[node] for node in nodes]
            )
            if isinstance(rows, Verdict):
                raise TypeError("the model of a draft must give logits, not a Verdict")
            below: list[int] = []
            for node, row in zip(level, rows, strict=True):
                if sampling.greedy:
                    best = np.argsort(-row, kind="stable")[:width]
                    below += [tree.add(token, node) for token in best.tolist()]
                else:
                    q = sampling.probabilities(row)
                    below += draw_children(tree, node, q, width, rng)
            level = below
        return tree

    def keep(self, path: Sequence[int]) -> None:
        self._model.keep(path)

    def drop(self) -> None:
        self._model.drop()


@final
class LookupDraft:
    """Drafts that are found in the text: what came after the same tokens before.

    It looks for the longest end of the text, of ``most`` tokens down to ``fewest``, that also
    occurs earlier, and proposes the tokens that follow it there, the latest place first. It costs
    almost no time, and helps if texts repeat their input: summaries, edits, code.

    Args:
        most: tokens of an end that is looked for.
        fewest: tokens of an end that is looked for.
        prompt_only: look in the prompt, and not in what came after it.
    """

    __slots__ = ("_fewest", "_most", "_prompt_only")

    def __init__(self, *, most: int = 3, fewest: int = 1, prompt_only: bool = True) -> None:
        self._most = count(most, "most", most=MOST_DRAFTS)
        self._fewest = count(fewest, "fewest", most=self._most)
        self._prompt_only = prompt_only

    def begin(self, prompt: Sequence[int]) -> DraftText:
        """Drafts for one more text."""
        within = len(prompt) if self._prompt_only else None
        return _LookupText(self._most, self._fewest, within)


class _FromText:
    """Drafts from the text alone, without state: kept tokens are part of the next text."""

    def keep(self, path: Sequence[int]) -> None:
        pass

    def drop(self) -> None:
        pass


class _LookupText(_FromText):
    def __init__(self, most: int, fewest: int, within: int | None) -> None:
        self._lengths = range(most, fewest - 1, -1)
        self._within = within
        self._read = 0
        self._places: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)

    async def propose(
        self,
        text: Sequence[int],
        shape: Sequence[int],
        sampling: Sampling,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> DraftTree:
        end = len(text) if self._within is None else self._within
        for place in range(self._read + 1, end):  # what begins there comes after an n-gram
            for length in self._lengths:
                if length <= place:
                    self._places[tuple(text[place - length : place])].append(place)
        self._read = max(self._read, end - 1)
        tree = DraftTree()
        if shape:
            for place in self._found(text, max(shape)):
                tree.add_chain(list(text[place : min(place + len(shape), end)]))
        return tree

    def _found(self, text: Sequence[int], most: int) -> list[int]:
        """Places whose continuations are proposed."""
        for length in self._lengths:
            if places := self._places.get(tuple(text[-length:])):
                return places[: -most - 1 : -1]
        return []


@final
class NGramDraft:
    """Drafts by the n-grams of the text so far: what mostly came after the last tokens.

    In each place the tokens that came most often after the same ``order - 1`` tokens are
    proposed; where these were never seen, after fewer.

    Args:
        order: tokens of an n-gram, at least 2.
    """

    __slots__ = ("_order",)

    def __init__(self, *, order: int = 4) -> None:
        self._order = count(order, "order", 2, MOST_DRAFTS)

    def begin(self, prompt: Sequence[int]) -> DraftText:  # noqa: ARG002 (the text has it, too)
        """Drafts for one more text."""
        return _NGramText(self._order)


class _NGramText(_FromText):
    def __init__(self, order: int) -> None:
        self._lengths = range(order - 1, 0, -1)
        self._read = 0
        self._seen: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    async def propose(
        self,
        text: Sequence[int],
        shape: Sequence[int],
        sampling: Sampling,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> DraftTree:
        for place in range(self._read, len(text)):
            for length in self._lengths:
                if length <= place:
                    self._seen[tuple(text[place - length : place])][text[place]] += 1
        self._read = len(text)
        tree = DraftTree()
        level = [(ROOT, tuple(text[-self._lengths[0] :]))]
        for width in shape:
            level = [
                (tree.add(token, node), (*last, token)[-self._lengths[0] :])
                for node, last in level
                for token in self._likely(last, width)
            ]
        return tree

    def _likely(self, last: tuple[int, ...], most: int) -> list[int]:
        for length in self._lengths:
            if length <= len(last) and (seen := self._seen.get(last[-length:])):
                return [token for token, _ in seen.most_common(most)]
        return []
