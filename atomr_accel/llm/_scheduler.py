"""Which tokens of which sequences the next step computes. It does no I/O, and reads no clock.

Each step has the next token of every sequence that has got that far, then chunks of prompts, up to
a number of tokens. Sequences have pages of the cache for all their tokens. When there are none
left, the latest sequence of the lowest priority is preempted: its pages go, and its tokens are
computed again when there is room. The first sequence of the highest priority is never preempted,
so there is progress always.

Sequences of a higher priority go first. Among equal ones, keys get fair shares of the tokens,
prompts included, and a sequence that was begun comes before those that were not.

A fault takes all of the cache, or some tokens of it. Sequences keep the others, and compute those
that are lost again, where they were. Of sequences that share a lost page, one does.

A step that fails is done again: first with the sequences that have got through their prompts, then
with the others. If it fails again, halves of it are tried by themselves, until one sequence fails
alone: it is at fault.
"""

from __future__ import annotations

import enum
import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedDict, SortedKeyList

from ..patterns import Overloaded, Shares
from ..wire.options import count
from ._pages import ROOT, PageKey, PagePool
from ._request_errors import PromptTooLong
from ._steps import StepSlice, StepWork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..patterns import WaitingRequest

_CHARGED = 32
"""Generated tokens that a key is charged for at a time."""

_SCORED = 256
"""Tokens of prompts that a step scores, at most: each has as many logits as the vocabulary."""


class SequenceState(enum.Enum):
    """State of a sequence."""

    WAITING = "waiting"
    """Never begun."""
    READY = "ready"
    """Waiting for pages: the next one to begin, or one that was preempted."""
    RUNNING = "running"
    """In possession of pages."""
    ENDED = "ended"
    """Finished or aborted, at fault, or past its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """A scheduler at one moment.

    Attributes:
        waiting: sequences that have no pages at present.
        running: sequences that have some.
        pages: pages of the cache.
        pages_used: pages that running sequences have.
        pages_cached: pages of the prefix cache that no running sequence has.
        steps: steps that were computed.
        computed: tokens that steps computed, those again included.
        recomputed: tokens that had been computed before a preemption or a fault.
        kept: tokens that were in the cache after faults as before, added up over all faults. Those
            that sequences share count once.
        prompt_tokens: tokens of prompts that were looked up in the prefix cache.
        cache_hits: tokens of prompts that were found there.
        preemptions: how often a sequence lost its pages to another one.
        expired: sequences whose deadlines passed.
        faults: steps that failed.
        suspects: sequences that failed steps had, and that have not got as far since.
    """

    waiting: int
    running: int
    pages: int
    pages_used: int
    pages_cached: int
    steps: int
    computed: int
    recomputed: int
    kept: int
    prompt_tokens: int
    cache_hits: int
    preemptions: int
    expired: int
    faults: int
    suspects: int


class ScheduledSequence:
    """A prompt and the tokens that were generated after it.

    Attributes:
        number: its own.
        tokens: the prompt and the generated tokens.
        prompt: the length of the prompt.
        limit: the most tokens in all.
        priority: sequences with a higher one go first.
        deadline: the time at which it is dropped.
        state: whether it waits or runs.
        computed: the number of its tokens that are in the cache, without a gap.
        stored: the number of its tokens up to the last one in the cache, if a fault has left a gap
            before it.
        scored: the number of tokens of the prompt after which logits are no longer needed; all of
            them, unless scores were asked for.
    """

    __slots__ = (
        "charged", "computed", "deadline", "filled", "filling", "limit", "number", "order",
        "page_tuple", "pages", "prefix", "priority", "prompt", "proof", "queued", "reached",
        "scored", "share", "state", "stored", "strikes", "tokens",
    )  # fmt: skip

    def __init__(
        self, number: int, prompt: tuple[int, ...], limit: int, priority: int, deadline: float
    ) -> None:
        self.number: int = number
        self.tokens: list[int] = list(prompt)
        self.prompt: int = len(prompt)
        self.limit: int = limit
        self.priority: int = priority
        self.deadline: float = deadline
        self.state: SequenceState = SequenceState.WAITING
        self.computed: int = 0
        self.stored: int = 0
        self.scored: int = len(prompt)
        self.reached: int = 0  # as far as it was ever computed
        self.order: int = -1
        self.queued: bool = False  # in the heap of those that are ready, or were
        self.share: WaitingRequest | None = None
        self.charged: int = 0
        self.pages: list[int] = []
        self.page_tuple: tuple[int, ...] = ()
        self.filled: int = 0  # pages that have a number of a prefix
        self.filling: PageKey | None = None  # the page of the prompt that it fills next
        self.prefix: int = ROOT
        self.strikes: int = 0
        self.proof: int = 0

    @property
    def generated(self) -> int:
        """The number of generated tokens."""
        return len(self.tokens) - self.prompt

    @property
    def full(self) -> bool:
        """True if no token may follow."""
        return len(self.tokens) >= self.limit

    @property
    def reusable(self) -> int:
        """The most tokens that it can take from the cache; logits after others are needed."""
        most = len(self.tokens) - 1
        return min(most, self.scored) if self.scored < self.prompt else most


class _PriorityClass:
    """Sequences of one priority that wait."""

    __slots__ = ("alive", "ready", "shares", "waiting")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.shares = Shares(weights, {})
        self.waiting: dict[WaitingRequest, ScheduledSequence] = {}
        self.ready: list[tuple[int, ScheduledSequence]] = []
        self.alive = 0  # sequences that have not ended

    def head(self) -> ScheduledSequence | None:
        """The one that begins next."""
        ready = self.ready
        while ready and ready[0][1].state is not SequenceState.READY:
            heapq.heappop(ready)[1].queued = False
        return ready[0][1] if ready else None


def _path(key: str) -> str:
    """Return a key as the path of one tenant, whatever characters it has."""
    return "key " + key.replace("%", "%25").replace("/", "%2F")


class Scheduler:
    """Sequences that wait or are computed, and the pages of the cache.

    Call `plan`, do the step, then `computed` or `failed`; `append` a token to each sequence that
    `computed` returns, or `finish` it; and tell by `score` which logits of prompts were taken.
    `abort` may be called at any time. ``step_sequences``, the most that have pages at a time, are
    fewer than ``step_tokens``. A key without a weight has 1.
    """

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        context: int,
        step_tokens: int = 2048,
        step_sequences: int = 256,
        most_waiting: int = 1024,
        weights: Mapping[str, float] | None = None,
        prefix_cache: bool = True,
    ) -> None:
        self._pool = PagePool(
            count(pages, "pages"), count(page_size, "page_size"), reuse=prefix_cache
        )
        self._step_tokens = count(step_tokens, "step_tokens", least=2)
        self._step_sequences = count(step_sequences, "step_sequences")
        if self._step_sequences >= self._step_tokens:
            raise ValueError(
                f"step_sequences must be less than step_tokens ({step_tokens}), not "
                f"{step_sequences}; otherwise no prompt would get a turn"
            )
        self._most_waiting = count(most_waiting, "most_waiting")
        self._weights = {_path(key): weight for key, weight in (weights or {}).items()}
        Shares(self._weights, {})  # which checks them
        self.longest: Final = min(count(context, "context", least=2), pages * page_size)
        self._classes: SortedDict[int, _PriorityClass] = SortedDict()  # by -priority
        self._running: SortedKeyList[ScheduledSequence] = SortedKeyList(
            key=lambda each: (-each.priority, each.order)
        )
        self._deadlines: list[tuple[float, int, ScheduledSequence]] = []
        self._flight: list[tuple[ScheduledSequence, int, bool]] = []
        self._trials: list[list[ScheduledSequence]] = []
        self._suspects: set[ScheduledSequence] = set()
        self._filling: dict[PageKey, ScheduledSequence] = {}
        self._numbers = self._orders = 0
        self._waiting = self._ready = 0
        self._room = self._step_tokens
        self._steps = self._computed = self._recomputed = self._looked_up = self._hits = 0
        self._preemptions = self._expired = self._faults = self._kept = 0

    # --- sequences

    def submit(
        self,
        prompt: tuple[int, ...],
        *,
        most: int | None = None,
        priority: int = 0,
        key: str = "",
        deadline: float = math.inf,
        scores: bool = False,
    ) -> ScheduledSequence:
        """Add a sequence.

        Sequences with a higher ``priority`` go first, and those of different keys get fair shares.
        ``scores`` wants logits after each token of the prompt.
        """
        if not prompt:
            raise ValueError("prompt must have one token at least, not be empty")
        if len(prompt) >= self.longest:
            raise PromptTooLong(
                f"prompt must have at most {self.longest - 1} tokens, not {len(prompt)}; "
                "shorten it",
                tokens=len(prompt),
                most=self.longest - 1,
            )
        if self._waiting >= self._most_waiting:
            raise Overloaded(
                f"{self._waiting} requests wait already; ask again later",
                waiting=self._waiting,
                capacity=self._most_waiting,
            )
        limit = self.longest if most is None else min(self.longest, len(prompt) + most)
        self._numbers += 1
        made = ScheduledSequence(self._numbers, prompt, limit, priority, deadline)
        if scores:
            made.scored = 0
        kind = self._classes.get(-priority)
        if kind is None:
            kind = self._classes[-priority] = _PriorityClass(self._weights)
        made.share = kind.shares.add(_path(key), float(len(prompt)))
        kind.waiting[made.share] = made
        kind.alive += 1
        self._waiting += 1
        if deadline < math.inf:
            self._forget_deadlines()
            heapq.heappush(self._deadlines, (deadline, made.number, made))
        return made

    def append(self, sequence: ScheduledSequence, token: int) -> None:
        """Add a token that was generated."""
        sequence.tokens.append(token)
        if len(sequence.tokens) - sequence.prompt - sequence.charged >= _CHARGED:
            self._charge(sequence)

    def score(self, sequence: ScheduledSequence, number: int) -> None:
        """Take note that logits after the first tokens of a prompt, a number of them, were taken.

        Until that is so for all of the prompt, they are computed, also if the cache has the tokens.
        """
        sequence.scored = max(sequence.scored, min(number, sequence.prompt))

    def finish(self, sequence: ScheduledSequence) -> None:
        """End a sequence: its pages are free, and their content may be reused."""
        self.abort(sequence)

    def abort(self, sequence: ScheduledSequence) -> None:
        """End a sequence at once, whatever it is doing; one that has ended stays so.

        While a step is in flight, its pages are still written to, but no page is given away before
        the next plan.
        """
        state = sequence.state
        if state is SequenceState.ENDED:
            return
        kind = self._classes[-sequence.priority]
        assert sequence.share is not None
        if state is SequenceState.WAITING:
            del kind.waiting[sequence.share]
            kind.shares.withdraw(sequence.share)
            self._waiting -= 1
        else:
            self._charge(sequence)
            kind.shares.end(sequence.share)
            if state is SequenceState.RUNNING:
                self._running.remove(sequence)
                self._give_back(sequence)
            else:
                self._ready -= 1
        sequence.state = SequenceState.ENDED
        self._suspects.discard(sequence)
        kind.alive -= 1
        if not kind.alive:
            del self._classes[-sequence.priority]

    def expire(self, now: float) -> list[ScheduledSequence]:
        """End the sequences whose deadlines have passed, and return them."""
        gone = []
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.state is not SequenceState.ENDED:
                self.abort(sequence)
                gone.append(sequence)
        self._expired += len(gone)
        return gone

    def _forget_deadlines(self) -> None:
        """Drop the entries of sequences that have ended when they are many."""
        alive = self._waiting + self._ready + len(self._running)
        if len(self._deadlines) > 2 * alive + 64:
            self._deadlines = [
                each for each in self._deadlines if each[2].state is not SequenceState.ENDED
            ]
            heapq.heapify(self._deadlines)

    def _charge(self, sequence: ScheduledSequence) -> None:
        more = sequence.generated - sequence.charged
        if more and sequence.share is not None:
            sequence.charged += more
            self._classes[-sequence.priority].shares.charge(sequence.share, float(more))

    # --- steps

    def plan(self) -> StepWork | None:
        """Choose what the next step computes; None if there is nothing to compute."""
        assert not self._flight, "a step is in flight"
        trial = self._trial()
        self._begin_some(trial)
        slices: list[StepSlice] = []
        left = self._room
        prompts = []
        filling: set[int] = set()  # lost pages that the step computes again
        size, running = self._pool.page_size, SequenceState.RUNNING
        for sequence in list(self._running):
            if trial is not None and sequence not in trial:
                continue
            if sequence.state is not running:
                continue  # preempted by one before it
            length = len(sequence.tokens)
            if sequence.computed < sequence.stored:
                self._skip_stored(sequence)
            if length - sequence.computed > 1:
                prompts.append(sequence)
            elif left and (length <= len(sequence.pages) * size or self._grow(sequence, trial)):
                slices.append(self._slice(sequence, 1))
                left -= 1
        scored = _SCORED
        for sequence in prompts:
            if not left:
                break
            if sequence.state is SequenceState.RUNNING:
                number = min(left, self._gap(sequence, filling))
                if not number:
                    continue
                if sequence.scored < sequence.prompt:
                    number = min(number, scored)
                    scored -= number
                    if not number:
                        continue
                slices.append(self._slice(sequence, number))
                left -= number
        return StepWork(slices=tuple(slices)) if slices else None

    def computed(self) -> list[ScheduledSequence]:
        """Take note that the step was done.

        Returns:
            The sequences whose slices were sampled, in the order of the rows of logits. Some may
            have ended meanwhile.
        """
        sampled = []
        size, running = self._pool.page_size, SequenceState.RUNNING
        flight, self._flight = self._flight, []
        self._steps += 1
        self._room = min(self._step_tokens, self._room + max(1, self._room // 8))
        for sequence, number, sample in flight:
            self._computed += number
            if sample:
                sampled.append(sequence)
            if sequence.state is not running:
                continue
            end = sequence.computed + number
            if sequence.computed < sequence.stored:
                self._restore(sequence, end)
            if sequence.reached > sequence.computed:
                self._recomputed += min(sequence.reached, end) - sequence.computed
            sequence.computed = end
            sequence.reached = max(sequence.reached, end)
            if sequence.strikes and end >= sequence.proof:
                sequence.strikes = 0
                self._suspects.discard(sequence)
            if (sequence.filled + 1) * size <= end or sequence.filling is not None:
                self._fill(sequence)
        return sampled

    def failed(
        self,
        *,
        lost: bool,
        kept: Sequence[int] | None = None,
        smaller: bool = False,
        blame: bool = True,
    ) -> ScheduledSequence | None:
        """Take note that the step in flight failed.

        Args:
            lost: True if the cache has lost content.
            kept: tokens that it has kept, see `lose`.
            smaller: True if a smaller step may succeed, as after an out-of-memory error.
            blame: False if it is certain that no sequence of the step is at fault.

        Returns:
            The sequence that is at fault, which has ended; or None, and the next plan tries again.
        """
        flight, self._flight = self._flight, []
        self._faults += bool(flight)
        if not blame:
            if lost:
                self.lose(kept)
            return None
        total = sum(number for _, number, _ in flight)
        if smaller and total > 1:
            self._room = max(1, total // 2)
            return None
        group = []
        for sequence, number, _ in flight:
            if sequence.state is SequenceState.RUNNING:
                sequence.strikes += 1
                sequence.proof = max(sequence.proof, sequence.computed + number)
                self._suspects.add(sequence)
                group.append(sequence)
        if lost:
            self.lose(kept)
        if not any(sequence.strikes > 1 for sequence in group):
            self._part(group)
            return None
        if len(flight) == 1:
            self._trials.clear()
            self.abort(group[0])
            return group[0]
        if self._trials:
            rest = [each for each in self._trials.pop() if each not in set(group)]
            self._trials += [rest] if rest else []
        self._halve(group)
        return None

    def lose(self, kept: Sequence[int] | None = None) -> None:
        """Take note that the cache has lost content. Lost tokens are computed again.

        Args:
            kept: for each page of the cache, the number of its tokens before the first one that is
                lost; None if nothing is left.
        """
        if kept is None:
            for sequence in list(self._running):
                self._set_aside(sequence)
            self._pool.clear()
            return
        for sequence in list(self._running):
            if max(sequence.computed, sequence.stored) > sequence.reusable:
                self._set_aside(sequence)  # its last logits have not arrived
        pool, size = self._pool, self._pool.page_size
        self._kept += pool.keep(kept)
        counted: set[int] = set()
        for sequence in self._running:
            sequence.stored = max(sequence.computed, sequence.stored)
            for page, left in zip(sequence.pages, range(sequence.stored, 0, -size), strict=False):
                if page not in counted:
                    counted.add(page)
                    needed = min(size, left)
                    pool.lose(page, kept[page], needed)
                    self._kept += pool.lost.get(page, needed)
            sequence.computed = 0
            self._skip_stored(sequence)

    # --- tokens that a fault has left, and those between them

    def _skip_stored(self, sequence: ScheduledSequence) -> None:
        """Count tokens as computed that are in the cache still, or again."""
        lost, size, at = self._pool.lost, self._pool.page_size, sequence.computed
        while at < sequence.stored:
            begin = at // size * size
            end = begin + lost.get(sequence.pages[at // size], size)
            if end <= at:
                break
            at = min(end, sequence.stored)
        sequence.computed = at

    def _gap(self, sequence: ScheduledSequence, filling: set[int]) -> int:
        """Return how many tokens are to be computed up to the next one that is in the cache.

        Args:
            sequence: the sequence.
            filling: lost pages that the step computes already, to which its own are added.
        """
        lost, size, pages = self._pool.lost, self._pool.page_size, sequence.pages
        start = end = sequence.computed
        while end < sequence.stored:
            page = pages[end // size]
            if page in filling or page not in lost:
                return end - start
            filling.add(page)
            end = (end // size + 1) * size
        return min(len(sequence.tokens), len(pages) * size) - start

    def _restore(self, sequence: ScheduledSequence, end: int) -> None:
        """Take note that tokens of lost pages are in the cache again, up to ``end``."""
        size = self._pool.page_size
        for at in range(sequence.computed // size, -(-min(end, sequence.stored) // size)):
            first = at * size
            needed = min(size, sequence.stored - first)
            self._pool.restore(sequence.pages[at], min(end - first, size), needed)

    # --- trials of sequences that may be at fault

    def _part(self, group: list[ScheduledSequence]) -> None:
        """Try sequences whose prompts are computed first, so that they need not wait for others."""
        new = [each for each in group if each.reached < each.prompt]
        if new and len(new) < len(group) and not self._trials:
            self._trials += [new, [each for each in group if each.reached >= each.prompt]]

    def _halve(self, group: list[ScheduledSequence]) -> None:
        half = (len(group) + 1) // 2
        self._trials += [part for part in (group[half:], group[:half]) if part]

    def _trial(self) -> set[ScheduledSequence] | None:
        """The sequences that are tried by themselves at present; None if there are no trials."""
        while self._trials:
            group = self._trials[-1]
            trial = {each for each in group if each in self._suspects}
            if trial:
                return trial
            # This half is not at fault. So the other one is, most likely.
            self._trials.pop()
            if self._trials:
                other = [each for each in self._trials.pop() if each in self._suspects]
                self._halve(other)
        return None

    def _begin_some(self, trial: set[ScheduledSequence] | None) -> None:
        """Begin sequences until there is enough to compute, or no room."""
        backlog = sum(len(each.tokens) - each.computed for each in self._running)
        while True:
            begun = self._begin(backlog) if trial is None else self._begin_one_of(trial)
            if begun is None:
                break
            backlog += len(begun.tokens) - begun.computed

    def _begin_one_of(self, trial: set[ScheduledSequence]) -> ScheduledSequence | None:
        ready = [each for each in trial if each.state is SequenceState.READY]
        if not ready:
            return None
        sequence: ScheduledSequence = min(ready, key=lambda each: (-each.priority, each.order))
        while not self._admit(sequence):
            other = next((each for each in reversed(self._running) if each not in trial), None)
            if other is None:
                return None
            self._preempt(other)
        return sequence

    # --- sequences that begin

    def _begin(self, backlog: int) -> ScheduledSequence | None:
        """Begin the sequence whose turn it is, if there is room."""
        for priority, kind in self._classes.items():
            if backlog >= self._room and -self._running[-1].priority <= priority:
                return None
            sequence: ScheduledSequence | None = kind.head()
            if sequence is None:
                share = kind.shares.next(0.0)
                if share is None:
                    continue
                sequence = kind.waiting.pop(share)
                assert sequence is not None
                sequence.order = self._orders
                self._orders += 1
                self._waiting -= 1
                self._make_ready(sequence)
            if self._follows(sequence):
                return None
            while not (len(self._running) < self._step_sequences and self._admit(sequence)):
                last: ScheduledSequence | None = self._running[-1] if self._running else None
                if last is None or -last.priority <= priority:
                    return None
                self._preempt(last)
            return sequence
        return None

    def _follows(self, sequence: ScheduledSequence) -> bool:
        """Return True if another one computes just now the page that this one needs first.

        It can have that page after the step.
        """
        if not self._filling or sequence.scored < sequence.prompt:
            return False
        pool, tokens = self._pool, sequence.tokens
        found, prefix = pool.match(tokens, len(tokens) - 1)
        pool.release(found)
        start = len(found) * pool.page_size
        if start + pool.page_size >= len(tokens):
            return False
        other = self._filling.get((prefix, tuple(tokens[start : start + pool.page_size])))
        return other is not None and other.priority >= sequence.priority

    def _fill_next(self, sequence: ScheduledSequence) -> None:
        """Note the page that a sequence fills next, if its tokens are known."""
        if sequence.filling is not None:
            del self._filling[sequence.filling]
            sequence.filling = None
        size = self._pool.page_size
        start = sequence.filled * size
        if self._pool.reuse and start + size <= len(sequence.tokens):
            key = (sequence.prefix, tuple(sequence.tokens[start : start + size]))
            if key not in self._filling:
                self._filling[key] = sequence
                sequence.filling = key

    def _admit(self, sequence: ScheduledSequence) -> bool:
        """Give a sequence pages for all its tokens, if there are enough."""
        pool = self._pool
        tokens = sequence.tokens
        found, prefix = pool.match(tokens, sequence.reusable)
        missing = -(-len(tokens) // pool.page_size) - len(found)
        spare = len(self._running) // 4  # or the first to grow would take the pages back
        if missing + spare > pool.available:
            pool.release(found)
            return False
        sequence.filled = len(found)
        sequence.prefix = prefix
        sequence.computed = len(found) * pool.page_size
        sequence.pages = found + [pool.take() for _ in range(missing)]
        sequence.page_tuple = tuple(sequence.pages)
        if not sequence.reached:
            self._looked_up += len(tokens)
            self._hits += sequence.computed
        sequence.reached = max(sequence.reached, sequence.computed)
        sequence.state = SequenceState.RUNNING
        self._ready -= 1
        self._running.add(sequence)
        self._fill_next(sequence)
        return True

    def _make_ready(self, sequence: ScheduledSequence) -> None:
        sequence.state = SequenceState.READY
        self._ready += 1
        if not sequence.queued:
            sequence.queued = True
            heapq.heappush(self._classes[-sequence.priority].ready, (sequence.order, sequence))

    # --- pages

    def _slice(self, sequence: ScheduledSequence, number: int) -> StepSlice:
        start, tokens = sequence.computed, sequence.tokens
        end = start + number
        sample = end == len(tokens)
        self._flight.append((sequence, number, sample))
        return StepSlice(
            sequence=sequence.number,
            tokens=(tokens[start],) if number == 1 else tuple(tokens[start:end]),
            start=start,
            pages=sequence.page_tuple,
            sample=sample,
            every=sequence.scored < sequence.prompt,
        )

    def _grow(self, sequence: ScheduledSequence, trial: set[ScheduledSequence] | None) -> bool:
        """Give a sequence a page for its last token; False if it was preempted."""
        pool = self._pool
        while not pool.available:
            last = self._running[-1]
            if trial is not None:
                last = next((each for each in reversed(self._running) if each not in trial), last)
            self._preempt(last)
            if last is sequence:
                return False
        sequence.pages.append(pool.take())
        sequence.page_tuple = tuple(sequence.pages)
        return True

    def _fill(self, sequence: ScheduledSequence) -> None:
        """Make the pages known that are full now."""
        pool = self._pool
        size = pool.page_size
        changed = False
        while (sequence.filled + 1) * size <= sequence.computed:
            at = sequence.filled
            page = sequence.pages[at]
            tokens = tuple(sequence.tokens[at * size : (at + 1) * size])
            sequence.pages[at], sequence.prefix = pool.fill(page, sequence.prefix, tokens)
            changed = changed or sequence.pages[at] != page
            sequence.filled += 1
        if changed:
            sequence.page_tuple = tuple(sequence.pages)
        if sequence.filling is not None:
            self._fill_next(sequence)

    def _preempt(self, sequence: ScheduledSequence) -> None:
        self._preemptions += 1
        self._set_aside(sequence)

    def _set_aside(self, sequence: ScheduledSequence) -> None:
        self._running.remove(sequence)
        self._give_back(sequence)
        self._make_ready(sequence)

    def _give_back(self, sequence: ScheduledSequence) -> None:
        if sequence.filling is not None:
            del self._filling[sequence.filling]
            sequence.filling = None
        self._pool.release(sequence.pages)
        sequence.pages = []
        sequence.page_tuple = ()
        sequence.computed = sequence.stored = sequence.filled = 0
        sequence.prefix = ROOT

    # --- for display

    @property
    def idle(self) -> bool:
        """True if all sequences have ended."""
        return not self._classes

    def statistics(self) -> SchedulerStatistics:
        """The scheduler at this moment."""
        pool = self._pool
        return SchedulerStatistics(
            waiting=self._waiting + self._ready,
            running=len(self._running),
            pages=pool.pages,
            pages_used=pool.pages - pool.available,
            pages_cached=pool.cached,
            steps=self._steps,
            computed=self._computed,
            recomputed=self._recomputed,
            kept=self._kept,
            prompt_tokens=self._looked_up,
            cache_hits=self._hits,
            preemptions=self._preemptions,
            expired=self._expired,
            faults=self._faults,
            suspects=len(self._suspects),
        )
