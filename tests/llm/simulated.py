"""A device that computes tokens from the content of its cache, and a program of random requests."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from atomr_accel.llm._scheduler import ScheduledSequence, Scheduler, SequenceState
from atomr_accel.llm._steps import StepWork
from atomr_accel.patterns import Overloaded

VOCABULARY = 50
_MASK = (1 << 61) - 1


def advance(state: int, token: int) -> int:
    """Return the state of a prefix with one more token."""
    return (state * 1_000_003 + token + 1) & _MASK


def following(state: int) -> int:
    """The token after a prefix."""
    return (state >> 7) % VOCABULARY


def reference(prompt: tuple[int, ...], number: int) -> list[int]:
    """Tokens that follow a prompt."""
    state = 7
    for token in prompt:
        state = advance(state, token)
    found = []
    for _ in range(number):
        found.append(following(state))
        state = advance(state, found[-1])
    return found


class StepFault(Exception):
    """A step failed."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class SimulatedDevice:
    """A cache of pages with states of prefixes in place of keys and values.

    What a step gives follows from the contents of pages alone. A wrong page, or one that another
    sequence has written to, is noticed.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.before = [[-1] * page_size for _ in range(pages)]
        self.after = [[-1] * page_size for _ in range(pages)]

    def lose(self) -> None:
        """Forget all."""
        for rows in (self.before, self.after):
            for row in rows:
                row[:] = [-1] * self.page_size

    def scribble(self, rng: random.Random, share: float) -> list[int]:
        """Lose the ends of some pages; return how many rows before them each page has kept."""
        kept = [self.page_size] * len(self.before)
        for page, (before, after) in enumerate(zip(self.before, self.after, strict=True)):
            if rng.random() < share:
                kept[page] = rng.randrange(self.page_size)
                for rows in (before, after):
                    rows[kept[page] :] = [-2] * (self.page_size - kept[page])
        return kept

    def step(self, work: StepWork) -> list[int]:
        """Compute slices, and return the states of the prefixes whose logits are wanted."""
        size = self.page_size
        readers: Counter[int] = Counter()
        for piece in work.slices:
            readers.update(piece.pages[: -(-(piece.start + len(piece.tokens)) // size)])
        found = []
        assert len({piece.sequence for piece in work.slices}) == len(work.slices)
        for piece in work.slices:
            end = piece.start + len(piece.tokens)
            assert piece.tokens
            assert len(piece.pages) * size >= end
            assert len(set(piece.pages)) == len(piece.pages)
            for page in piece.pages[piece.start // size : -(-end // size)]:
                assert readers[page] == 1, "a page that is written to is shared"
            state = 7
            for at in range(0, piece.start, size):  # each page follows from the one before it
                page = piece.pages[at // size]
                assert self.before[page][0] == state
                state = self.after[page][min(size, piece.start - at) - 1]
            for at, token in enumerate(piece.tokens, piece.start):
                page, row = piece.pages[at // size], at % size
                self.before[page][row] = state
                state = self.after[page][row] = advance(state, token)
                if piece.every or (piece.sample and at == end - 1):
                    found.append(state)
        return found


@dataclass
class Load:
    """Random behaviour of a simulation.

    Attributes:
        requests: how many there are.
        pages: pages of the cache.
        page_size: tokens of a page.
        prompt: the longest prompt.
        most: the most tokens to generate.
        arrive: chance that another request comes before a step.
        fault: chance that the device faults in a step.
        durable: chance that the cache keeps pages at a fault; otherwise it loses all.
        scribbled: chance that a page loses tokens at a fault that the cache survives.
        shortage: chance that a step of more than one token finds no memory.
        abort: chance that a sequence is aborted, before each step and while it is in flight.
        poisoned: chance that a prompt has a token that faults the device.
        deadline: chance that a request has a deadline.
        scores: chance that a request wants the logits of its prompt.
    """

    requests: int = 200
    pages: int = 24
    page_size: int = 4
    context: int = 64
    prompt: int = 40
    most: int = 12
    step_tokens: int = 32
    step_sequences: int = 8
    most_waiting: int = 40
    arrive: float = 0.5
    fault: float = 0.02
    durable: float = 0.7
    scribbled: float = 0.05
    shortage: float = 0.01
    abort: float = 0.01
    poisoned: float = 0.01
    deadline: float = 0.1
    scores: float = 0.2
    prefix_cache: bool = True


@dataclass
class Outcome:
    """Ends of the requests of a simulation."""

    counts: Counter[str] = field(default_factory=Counter)
    trace: int = 0


POISON = VOCABULARY
"""A token that is never generated."""


def simulate(seed: int, load: Load) -> Outcome:
    """Run a program of random requests, check all that must hold, and return what happened."""
    rng = random.Random(seed)
    scheduler = Scheduler(
        pages=load.pages,
        page_size=load.page_size,
        context=load.context,
        step_tokens=load.step_tokens,
        step_sequences=load.step_sequences,
        most_waiting=load.most_waiting,
        prefix_cache=load.prefix_cache,
    )
    device = SimulatedDevice(load.pages, load.page_size)
    prefixes = [tuple(rng.choices(range(VOCABULARY), k=load.prompt // 2)) for _ in range(4)]
    alive: dict[int, ScheduledSequence] = {}
    outcome = Outcome()
    counts = outcome.counts
    came = 0
    now = 0.0
    begun: dict[tuple[int, str], list[ScheduledSequence]] = defaultdict(list)
    scores: dict[int, list[int]] = {}  # states after tokens of prompts, by sequence

    def ended(sequence: ScheduledSequence, how: str) -> None:
        del alive[sequence.number]
        counts[how] += 1
        outcome.trace = hash((outcome.trace, sequence.number, how, tuple(sequence.tokens)))
        prompt = tuple(sequence.tokens[: sequence.prompt])
        tokens = sequence.tokens[sequence.prompt :]
        assert tokens == reference(prompt, len(tokens))
        assert sequence.state is SequenceState.ENDED
        states = scores.pop(sequence.number, None)
        if how == "finished":
            assert states is None or [following(each) for each in states] == [
                reference(prompt[: at + 1], 1)[0] for at in range(len(prompt))
            ]
            assert POISON not in prompt
            assert len(sequence.tokens) == sequence.limit
        if how == "at fault":
            assert POISON in prompt

    def abort_some() -> None:
        if alive and rng.random() < load.abort:
            sequence = rng.choice([*alive.values()])
            scheduler.abort(sequence)
            ended(sequence, "aborted")

    while came < load.requests or alive:
        now += 1.0
        while came < load.requests and (not alive or rng.random() < load.arrive):
            came += 1
            prompt = tuple(rng.choices(range(VOCABULARY), k=rng.randint(1, load.prompt // 2)))
            if rng.random() < 0.5:
                prompt = rng.choice(prefixes) + prompt
            if rng.random() < load.poisoned:
                at = rng.randrange(len(prompt))
                prompt = (*prompt[:at], POISON, *prompt[at + 1 :])
            key = rng.choice("abc")
            scored = rng.random() < load.scores
            try:
                sequence = scheduler.submit(
                    prompt,
                    most=rng.randint(1, load.most),
                    priority=rng.choice((0, 0, 0, 1)),
                    key=key,
                    deadline=now + rng.randint(1, 60) if rng.random() < load.deadline else 1e9,
                    scores=scored,
                )
            except Overloaded:
                counts["refused"] += 1
            else:
                alive[sequence.number] = sequence
                if scored:
                    scores[sequence.number] = []
                begun[sequence.priority, key].append(sequence)
        abort_some()
        for sequence in scheduler.expire(now):
            ended(sequence, "expired")
        work = scheduler.plan()
        if work is None:
            assert not alive, "a sequence waits, and nothing is computed"
            continue
        number = sum(len(piece.tokens) for piece in work.slices)
        assert number <= load.step_tokens
        counts["tokens"] += number
        counts["steps"] += 1
        try:
            if any(POISON in piece.tokens for piece in work.slices):
                raise StepFault("fault")
            # An innocent sequence that fails by chance, alone and again, would be blamed.
            if not scheduler.statistics().suspects:
                if rng.random() < load.fault:
                    raise StepFault("fault")
                if rng.random() < load.fault:
                    raise StepFault("error")
            if number > 1 and rng.random() < load.shortage:
                raise StepFault("shortage")
            states = device.step(work)
        except StepFault as fault:
            counts[fault.kind] += 1
            kept = None
            if fault.kind == "fault" and rng.random() < load.durable:
                if rng.random() < 0.5:
                    device.step(work)  # in part, and nobody heard of it
                kept = device.scribble(rng, load.scribbled)
            elif fault.kind == "fault":
                device.lose()
            abort_some()
            guilty = scheduler.failed(
                lost=fault.kind == "fault", kept=kept, smaller=fault.kind == "shortage"
            )
            if guilty is not None:
                ended(guilty, "at fault")
            continue
        abort_some()
        sampled = [sequence.number for sequence in scheduler.computed()]
        assert sampled == [piece.sequence for piece in work.slices if piece.sample]
        at = 0
        for piece in work.slices:
            rows = states[at : at + piece.rows]
            at += piece.rows
            if piece.sequence not in alive:
                continue
            sequence = alive[piece.sequence]
            if piece.every:
                known = scores[piece.sequence]
                assert len(known) == sequence.scored >= piece.start
                known += rows[sequence.scored - piece.start :]
                scheduler.score(sequence, piece.start + len(piece.tokens))
            if not piece.sample:
                continue
            scheduler.append(sequence, following(rows[-1]))
            if sequence.full:
                scheduler.finish(sequence)
                ended(sequence, "finished")
    statistics = scheduler.statistics()
    assert scheduler.idle
    assert (statistics.running, statistics.waiting, statistics.pages_used) == (0, 0, 0)
    assert statistics.suspects == 0
    for sequences in begun.values():  # those of a key begin in the order in which they came
        orders = [sequence.order for sequence in sequences if sequence.order >= 0]
        assert orders == sorted(orders)
    counts.update(
        preemptions=statistics.preemptions,
        recomputed=statistics.recomputed,
        kept=statistics.kept,
        hits=statistics.cache_hits,
    )
    return outcome
