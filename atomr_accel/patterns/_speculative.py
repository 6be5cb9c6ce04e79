"""Speculative decoding: a draft guesses several tokens, and the target judges them in one step."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack, final

import numpy as np
import trio

from .._errors import EarlierErrors
from ..actors import Place
from ..actors.blocks import opens
from ..actors.util import NoPublicConstructor, check_instance
from ..wire.options import count, whole
from ._cached_text import Following, Prefill
from ._calls import (
    CallsInProgress,
    InCallers,
    NoEnd,
    RequestCounts,
    RequestTally,
    serving_callers,
    unprotected,
)
from ._draft_length import MOST_DRAFTS, AdaptiveLength, LengthSeen
from ._drafts import check_drafts
from ._retry import Retry
from ._sampling import DraftTree, Logits, Sampling, accept
from ._verdict import Verdict

if TYPE_CHECKING:
    from ._drafts import Draft
    from ._observer import Observer

_log = logging.getLogger("atomr_accel.patterns")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeStatistics(RequestCounts):
    """A decoder at one moment.

    Every text that was asked for is in one of these: ``running``, ``answered``, ``failed``,
    ``refused``, ``withdrawn``.

    Attributes:
        submitted: texts so far.
        running: texts in progress.
        answered: texts that have come to their end.
        failed: texts that ended with an error.
        refused: texts whose consumers got ``Closed``, or another refusal by a model.
        withdrawn: texts that were left early.
        steps: steps of the target; those that had to be done again count once.
        tokens: tokens that were decided.
        drafted: drafts, all nodes of trees.
        kept: drafts that were kept.
        retries: steps that were done again after a fault.
        prefills: number of times that a target's cache was made: once a text, and once after each
            loss.
    """

    steps: int
    tokens: int
    drafted: int
    kept: int
    retries: int
    prefills: int

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step of the target gives, the bonus among them; zero before the first."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def acceptance_length(self) -> float:
        """Drafts that a step keeps; zero before the first."""
        return self.kept / self.steps if self.steps else 0.0


@dataclass(slots=True)
class _Counts:
    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    kept: int = 0
    retries: int = 0
    prefills: int = 0


class _DecoderState:
    """State that all texts of a decoder share."""

    def __init__(
        self,
        target: Prefill[Logits | Verdict],
        draft: Draft | None,
        sampling: Sampling,
        length: int | AdaptiveLength,
        branching: tuple[int, ...],
        retry: Retry,
        observer: Observer | None,
    ) -> None:
        self.target: Final = target
        self.draft: Final = draft
        self.sampling: Final = sampling
        self.length: Final = length
        self.branching: Final = branching
        self.retry: Final = retry
        self.calls: Final = CallsInProgress("decoder", None)  # steps
        self.tally: Final = RequestTally(observer)  # texts
        self.counts: Final = _Counts()
        self.texts: set[_Text] = set()
        self.vocabulary: int | None = None  # the target's, once it has given logits

    def shape(self, depth: int) -> list[int]:
        """Return the number of siblings in each depth."""
        forks = self.branching[:depth]
        return [*forks, *[1] * (depth - len(forks))]


class _Text:
    """A text on its way, without the end that the consumer holds.

    A step happens or changes nothing, chance included: one that was cancelled, or that a fault
    took down, is done again with the same random numbers. So neither says anything about which
    tokens come out, even if it was the drafts that have caused it.
    """

    __slots__ = (
        "__weakref__", "began", "closed", "consumer", "decided", "drafts", "finished", "item",
        "left", "length", "plan", "rng", "stop", "target", "text",
    )  # fmt: skip

    def __init__(
        self,
        plan: _DecoderState,
        prompt: Sequence[int],
        most: int | None,
        stop: frozenset[int],
        rng: np.random.Generator,
    ) -> None:
        self.plan: Final = plan
        self.text: Final = list(prompt)
        self.item: Final = tuple(prompt)
        self.left: int | None = most
        self.stop: Final = stop
        self.rng: Final = rng
        self.target: Final = Following(plan.target)
        self.drafts: Final = None if plan.draft is None else plan.draft.begin(self.item)
        self.length: Final = LengthSeen(plan.length)
        self.decided: Final[deque[int]] = deque()
        self.consumer: trio.CancelScope | None = None
        self.finished: bool = most == 0
        self.closed: bool = False
        plan.texts.add(self)
        self.began: Final = plan.tally.submit(self.item)

    # --- a step

    async def step(self) -> None:
        """Decide one token or more."""
        plan = self.plan
        plan.tally.start(self.item)
        chance = self.rng.bit_generator.state
        earlier = EarlierErrors()
        while True:
            try:
                await self._attempt()
                return
            except BaseException as error:
                self.rng.bit_generator.state = chance
                if not isinstance(error, Exception):
                    raise
                delay = plan.retry.delay(error, len(earlier) + 1)
                if delay is None:
                    earlier.tell(error)
                    raise
                earlier.add(error)
                plan.counts.retries += 1
                plan.tally.retry(self.item, error)
                self.drop()  # what was on devices may be lost
            await trio.sleep(delay)

    async def _attempt(self) -> None:
        made = self.target.made
        await self.target.begin(self.text)
        self.plan.counts.prefills += self.target.made - made
        tree = await self._propose()
        scores = await self.target.forward(self.text, tree.tokens, tree.parents)
        # From here on nothing waits.
        self.plan.vocabulary = self.target.vocabulary
        if isinstance(scores, Verdict):
            path, token = scores.decide(tree, self.rng)
        else:
            sampling = self.plan.sampling
            path, token = accept(tree, lambda at: sampling.probabilities(scores[1 + at]), self.rng)
        self.target.keep(path)
        if self.drafts is not None:
            self.drafts.keep(path)
        self.length.saw(tree.depth, len(path))
        self._append([*(tree.tokens[node] for node in path), token])
        counts = self.plan.counts
        counts.steps += 1
        counts.drafted += len(tree)
        counts.kept += len(path)

    async def _propose(self) -> DraftTree:
        depth = self.length.now
        if self.left is not None:
            depth = min(depth, self.left - 1)  # a step gives one more
        if self.drafts is None or depth < 1:
            return DraftTree()
        shape = self.plan.shape(depth)
        tree = await unprotected(
            self.drafts.propose, self.text, shape, self.plan.sampling, self.rng
        )
        check_drafts(tree, self.text, self.plan.vocabulary)
        return tree

    def _append(self, tokens: list[int]) -> None:
        for place, token in enumerate(tokens, 1):
            if token in self.stop or place == self.left:
                del tokens[place:]
                self.finished = True
                break
        if self.left is not None:
            self.left -= len(tokens)
        self.text.extend(tokens)
        self.decided.extend(tokens)
        self.plan.counts.tokens += len(tokens)

    # --- its ends

    def drop(self) -> None:
        """Free its caches."""
        try:
            self.target.drop()
        finally:
            if self.drafts is not None:
                self.drafts.drop()

    def end(self, error: Exception | None = None) -> None:
        """End the text, with this error if there is one."""
        if not self.closed:
            if error is None:
                self.plan.tally.answer(self.item, self.began)
            else:
                self.plan.tally.fail(self.item, error, self.began)
            self._close()

    def leave(self) -> None:
        """End a text whose consumer left. A step in progress is cancelled and then closes it."""
        if self.closed:
            return
        if self.consumer is not None:
            self.consumer.cancel()
            return
        self.plan.tally.withdraw(self.item, self.began)
        self._close()

    def _close(self) -> None:
        self.closed = True
        self.plan.texts.discard(self)
        if self.decided:  # whoever has not taken its end has not come to it
            self.finished = False
            self.decided.clear()
        self.drop()


@final
class Generation(metaclass=NoPublicConstructor):
    """The tokens of ``SpeculativeDecoder.generate``, in order: an async iterator.

    A loop that is left early ends it as soon as nothing refers to it. ``async with tokens:`` or
    ``await tokens.aclose()`` end it at once. If a call for the next token is cancelled, no token
    is lost: the next call goes on where this one was.
    """

    _made_by: ClassVar[str] = "decoder.generate(prompt)"

    def __init__(self, text: _Text) -> None:
        self._text = text
        self._ended = False
        token = trio.lowlevel.current_trio_token()
        self._dropped = weakref.finalize(self, _leave_soon, token, text)
        self._dropped.atexit = False

    def __aiter__(self) -> Generation:
        """Itself."""
        return self

    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> int:
        """The next token.

        Raises:
            StopAsyncIteration: the text has ended or was closed.
            Closed: the decoder's block was left before all tokens were taken.
            trio.BusyResourceError: another task waits for the next token already.
            WrongResults: a model has not returned the logits of its tokens, or a draft has not
                returned a tree of tokens; the message names the result.
            ValueError: logits without a distribution.
            Exception: any error of a model that another attempt could not fix; a
                `StopAsyncIteration` as the cause of a `RuntimeError`.
        """
        text, calls = self._text, self._text.plan.calls
        calls.check_thread("run(anext, tokens)")
        if text.consumer is not None:
            raise trio.BusyResourceError("another task waits for the next token of this text")
        if text.decided:
            await trio.lowlevel.checkpoint()
        elif not (text.closed or text.finished):
            with NoEnd("a model"):
                await self._step()
        else:
            await trio.lowlevel.checkpoint()
        if text.decided:
            token = text.decided.popleft()
            if text.finished and not text.decided:
                self._end()
            return token
        if text.finished:
            self._end()
        if not self._ended and calls.closing:
            self._ended = True
            raise calls.closed()
        raise StopAsyncIteration

    async def _step(self) -> None:
        text = self._text
        try:
            with trio.CancelScope() as text.consumer, text.plan.calls.one(text.item):
                await text.step()
        except Exception as error:
            text.consumer = None
            self._end(error)
            raise
        finally:
            left = text.consumer is not None and text.consumer.cancel_called
            text.consumer = None
            if left:
                text.leave()

    async def aclose(self) -> None:
        """End it: also for a task that waits for its next token."""
        self._leave()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Generation:
        """Itself; leaving the block ends it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _end(self, error: Exception | None = None) -> None:
        self._ended = True
        self._dropped.detach()
        self._text.end(error)

    def _leave(self) -> None:
        self._ended = True
        self._dropped.detach()
        self._text.leave()


def _leave_soon(token: trio.lowlevel.TrioToken, text: _Text) -> None:
    # The finalizer may run in any thread; the text is closed in that of the decoder.
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(_leave_dropped, text)


def _leave_dropped(text: _Text) -> None:
    try:
        text.leave()
    except Exception:  # noqa: BLE001 (nobody is there to be told)
        _log.exception("a model failed to close a text that was dropped")


@final
class SpeculativeDecoder(InCallers, metaclass=NoPublicConstructor):
    """Generates texts with drafts, as `open_speculative` returns it.

    Use ``async for token in decoder.generate(prompt)``.
    """

    _made_by: ClassVar[str] = "open_speculative(target, draft, ...)"

    def __init__(self, plan: _DecoderState, rng: np.random.Generator) -> None:
        self._plan = plan
        self._calls = plan.calls
        self._rng = rng

    def generate(
        self,
        prompt: Iterable[int],
        *,
        max_tokens: int | None = None,
        stop: Iterable[int] = (),
        rng: np.random.Generator | None = None,
    ) -> Generation:
        """Go on with a text.

        Its steps run in the task that asks for tokens, so deadlines and cancellation reach the
        models. Several texts may be generated side by side.

        Args:
            prompt: tokens, at least one; for an empty text, the token of its beginning.
            max_tokens: how many come at most; None for as many as are asked for.
            stop: tokens that end the text. They are given, too.
            rng: where chance comes from. A child is spawned of it; by default of the decoder's.
        """
        self._plan.calls.check()
        text = [count(token, "a token of the prompt", 0) for token in prompt]
        if not text:
            raise ValueError("a prompt has one token at least: that of a text's beginning")
        if max_tokens is not None:
            max_tokens = count(max_tokens, "max_tokens", 0)
        if rng is not None:
            check_instance("rng", rng, np.random.Generator)
        (own,) = (self._rng if rng is None else rng).spawn(1)
        kind: type[Generation] = Generation
        ends = frozenset(whole(token, "a token of stop") for token in stop)
        return kind.construct(_Text(self._plan, text, max_tokens, ends, own))

    async def call(self, item: Iterable[int], **options: Any) -> list[int]:
        """Answer a `Call` with the tokens of a text, all at once. See ``generate``."""
        async with self.generate(item, **options) as tokens:
            return [token async for token in tokens]

    def depth(self) -> int:
        """Texts in progress."""
        return self._plan.tally.in_progress

    def statistics(self) -> SpeculativeStatistics:
        """The decoder at this moment."""
        counts = self._plan.counts
        return SpeculativeStatistics(
            **self._plan.tally.counts(),
            steps=counts.steps,
            tokens=counts.tokens,
            drafted=counts.drafted,
            kept=counts.kept,
            retries=counts.retries,
            prefills=counts.prefills,
        )


@opens
async def open_speculative(
    target: Prefill[Logits] | Prefill[Verdict],
    draft: Draft | None,
    *,
    sampling: Sampling | None = None,
    length: int | AdaptiveLength | None = None,
    branching: Sequence[int] = (),
    rng: np.random.Generator | int | None = None,
    retry: Retry | None = None,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[SpeculativeDecoder]:
    """Open a decoder that has several tokens guessed, and judged in one step of the target.

    Tokens have the distribution that the target alone would give them, whatever the draft is
    worth; a good one makes it quicker. A step that a fault of a device takes down is done again:
    caches are made anew from the tokens so far, and no token is lost or comes twice.

    Leaving the block waits for steps in progress and ends the texts: a later request for a token of
    an unfinished text raises ``Closed``. If an exception or a cancellation leaves it, steps in
    progress are cancelled.

    Args:
        target: puts a text into the cache of the model that decides. See ``CachedText``.
        draft: a ``ModelDraft``, ``LookupDraft`` or ``NGramDraft``, or one of your own. With None
            tokens come one by one.
        sampling: how tokens are drawn from logits; by default, at a temperature of one.
        length: how many drafts in a row, or bounds between which each text finds out what pays;
            by default those of ``AdaptiveLength()``.
        branching: how many siblings are drafted in the first depths of a tree; behind these, and
            by default everywhere, one. With more than one, both models must know what ``parents``
            are: nodes see those before them on their own way only.
        rng: where chance comes from, or a seed. A child is spawned of it for each text, in the
            order of ``generate``. None draws a seed from the system.
        retry: which errors of models are worth another attempt, and how many; by default
            ``Retry()``: faults of devices, three attempts for each step.
        observer: receives the outcomes of texts. Each step is a start.
        **place: ``system=``, ``name=`` and ``parent=``, which make the decoder an actor. It answers
            ``Call(prompt, {"max_tokens": 32})`` with the list of tokens.
    """
    for name, function in ("target", target), ("draft.begin", getattr(draft, "begin", target)):
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {function!r}")
    if draft is not None and not hasattr(draft, "begin"):
        raise TypeError(f"draft must be a ModelDraft or the like, not {draft!r}")
    sampling = Sampling() if sampling is None else sampling
    length = AdaptiveLength() if length is None else length
    retry = Retry() if retry is None else retry
    check_instance("sampling", sampling, Sampling)
    check_instance("retry", retry, Retry)
    if not isinstance(length, AdaptiveLength):
        length = count(length, "length", 0, MOST_DRAFTS)
    if not isinstance(rng, np.random.Generator | None):
        rng = whole(rng, "rng", 0)
    widths = tuple(count(width, "a width of branching", most=MOST_DRAFTS) for width in branching)
    plan = _DecoderState(target, draft, sampling, length, widths, retry, observer)
    decoder: SpeculativeDecoder = SpeculativeDecoder.construct(plan, np.random.default_rng(rng))
    try:
        async with serving_callers(decoder, place):
            yield decoder
    finally:
        with ExitStack() as ends:  # each of them, also where a model fails to close one
            for text in [*plan.texts]:
                ends.callback(text.leave)
