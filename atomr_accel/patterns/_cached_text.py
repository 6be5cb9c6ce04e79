"""The cache of keys and values that a model keeps for a text, and its use over steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import numpy as np

from .._errors import said_of
from ._calls import unprotected
from ._errors import WrongResults
from ._sampling import ROOT, Logits, Tokens
from ._verdict import Verdict

ScoresT_co = TypeVar("ScoresT_co", bound=Logits | Verdict, covariant=True)


class CachedText(Protocol[ScoresT_co]):
    """A text in a model's cache. You write it; see *Serve requests* for one in pages.

    It has tokens that are kept, and behind these, between two calls of ``keep``, a tree of nodes
    that may not be. All else, such as devices and batches, is yours.
    """

    async def forward(self, tokens: Tokens, parents: Tokens) -> ScoresT_co:
        """Append nodes to the cache, and compute the scores of the token after each.

        Args:
            tokens: of the nodes, (nodes,), at least one.
            parents: (nodes,), the number of each one's parent, which comes before it. Nodes are
                counted from the last ``keep`` on, over several calls; -1 is the last token that
                was kept. Without branches and with one call these are -1, 0, 1, and so on.

        Returns:
            Logits, (nodes, vocabulary); or a ``Verdict``.
        """
        ...

    def keep(self, path: Tokens) -> None:
        """Keep these nodes, and forget all others.

        It is called after each step, and with no nodes after a ``forward`` that was cancelled or
        has failed, even if that was done in part. It cannot wait: the next ``forward`` moves data
        on the device if needed.

        Args:
            path: nodes, each the parent of the next; the first one's is -1.
        """
        ...

    def close(self) -> None:
        """Free the cache. It is called once, even after the device has lost it."""
        ...


Prefill: TypeAlias = Callable[[Tokens], Awaitable[CachedText[ScoresT_co]]]
"""Puts a text into a model's cache: ``async def prefill(tokens) -> CachedText``. There may be no
tokens at all. If it is cancelled or fails it leaves nothing behind."""

_NONE: Final[Tokens] = np.empty(0, np.int64)


class Following:
    """Cache of a text, filled again from the text's tokens after it was lost.

    A text's last token is not cached, because the next step computes the scores after it. So a
    step's first nodes are the tokens that the cache lacks, in a chain. Drafts follow them.
    """

    def __init__(self, prefill: Prefill[Logits | Verdict]) -> None:
        self._prefill = prefill
        self._cache: CachedText[Logits | Verdict] | None = None
        self._cached = 0
        self._lacking = self._nodes = 0
        self.made: int = 0
        self.vocabulary: int | None = None  # known from the first logits on

    async def begin(self, text: Sequence[int]) -> None:
        """Have all but the last token in the cache at least, and no nodes."""
        if self._cache is None:
            made = await unprotected(self._prefill, np.array(text[:-1], np.int64))
            if not callable(getattr(made, "forward", None)):
                raise WrongResults(
                    f"a prefill must return a CachedText, got {said_of(made)}", expected=1, got=None
                )
            self._cache = made
            self._cached = len(text) - 1
            self.made += 1
        elif self._nodes:
            self._cache.keep(_NONE)
        self._lacking = self._nodes = 0

    async def forward(
        self, text: Sequence[int], tokens: Sequence[int], parents: Sequence[int]
    ) -> Logits | Verdict:
        """Compute the scores after the text and after each draft; later, after further drafts.

        Args:
            text: so far.
            tokens: of drafts.
            parents: of drafts, counted over all calls since ``begin``.

        Returns:
            Logits: (1 + drafts, vocabulary) from the first call, then (drafts, vocabulary). Or a
            verdict.
        """
        assert self._cache is not None  # begin() was awaited
        first = not self._nodes
        lacking = list(text[self._cached :]) if first else []
        if first:
            self._lacking = len(lacking)
        last = self._lacking - 1
        at = [*range(-1, len(lacking) - 1), *(last if p == ROOT else last + 1 + p for p in parents)]
        self._nodes += len(at)
        scores = await unprotected(
            self._cache.forward,
            np.array([*lacking, *tokens], np.int64),
            np.array(at, np.int64),
        )
        if isinstance(scores, Verdict):
            return scores
        self._check(scores, len(at))
        return scores[max(0, len(lacking) - 1) :]

    def _check(self, logits: Logits, rows: int) -> None:
        given: object = logits
        wanted = self.vocabulary
        got: int | None = None
        if isinstance(given, np.ndarray):
            got = len(given) if given.ndim else None
            said = f"{given.dtype} of shape {given.shape}"
            right = given.ndim == 2 and got == rows and np.can_cast(given.dtype, np.float64)
            if right and given.shape[1] and wanted in (None, given.shape[1]):
                self.vocabulary = given.shape[1]
                return
        else:
            said = said_of(given)
        raise WrongResults(
            f"forward must return logits of shape ({rows}, {wanted or 'vocabulary'}), got {said}",
            expected=rows,
            got=got,
        )

    def keep(self, path: Sequence[int]) -> None:
        """The text has got these drafts: those of them that were computed are cached now."""
        if self._cache is None or not self._nodes:
            return
        drafts = self._nodes - self._lacking
        kept = [*range(self._lacking), *(self._lacking + node for node in path if node < drafts)]
        self._nodes = 0
        self._cache.keep(np.array(kept, np.int64))
        self._cached += len(kept)

    def drop(self) -> None:
        """Free the cache; the next ``begin`` makes another one."""
        cache, self._cache = self._cache, None
        self._cached = self._lacking = self._nodes = 0
        if cache is not None:
            cache.close()
