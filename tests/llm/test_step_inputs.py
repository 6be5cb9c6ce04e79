"""Checks of steps and their numbers, beside a plain model of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import GpuRefStale
from atomr_accel.llm._step_inputs import PagedSteps
from atomr_accel.llm._steps import StepSlice, StepWork

PAGES, SIZE, TILE, CONTEXT = 12, 4, 8, 24


class Plain:
    """A model of the checks of `PagedSteps`, one page after the other."""

    def __init__(self) -> None:
        self.filled = [0] * PAGES

    def refused(self, work: StepWork) -> type[Exception] | None:
        uses: list[tuple[int, bool]] = []
        for each in work.slices:
            end = each.start + len(each.tokens)
            used = -(-end // SIZE)
            if not all(0 <= page < PAGES for page in each.pages) or len(each.pages) < used:
                return ValueError
            uses += [(page, at >= each.start // SIZE) for at, page in enumerate(each.pages[:used])]
        written = [page for page, writes in uses if writes]
        if any(written.count(page) != int(writes) for page, writes in uses):
            return ValueError
        for each in work.slices:
            for at, page in enumerate(each.pages):
                if self.filled[page] < min(each.start - at * SIZE, SIZE):
                    return GpuRefStale
        return None

    def write(self, work: StepWork, *, done: bool) -> None:
        for each in work.slices:
            end = each.start + len(each.tokens)
            for at in range(each.start // SIZE, -(-end // SIZE)):
                left = (end if done else each.start) - at * SIZE
                self.filled[each.pages[at]] = min(max(left, 0), SIZE)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Sequences that go on, come, go, change places, share pages, start again and are wrong."""
    free = [*range(PAGES)]
    found: list[tuple[str, Any]] = []
    there: dict[int, tuple[int, tuple[int, ...]]] = {}
    for number in range(draw(st.integers(1, 12))):
        event = draw(st.sampled_from(["step"] * 8 + ["lose", "keep", "failed"]))
        if event in ("lose", "keep"):
            found.append((event, draw(st.integers(0, SIZE))))
            continue
        comes: bool = draw(st.booleans())
        if len(there) < 4 and comes:
            shared: tuple[int, ...] = ()
            sharing: bool = draw(st.booleans())
            if there and sharing:
                start, pages = draw(st.sampled_from([*there.values()]))
                shared = pages[: start // SIZE]
            there[number] = len(shared) * SIZE, shared
        slices = []
        for sequence in draw(st.permutations([*there])):
            start, pages = there[sequence]
            if draw(st.integers(0, 9)) == 0:
                continue
            length = draw(st.sampled_from([1, 1, 1, 3, 6]))
            if start + length > CONTEXT:
                del there[sequence]
                continue
            while len(pages) * SIZE < start + length:
                fresh = free or [*range(PAGES)]
                pages += (draw(st.sampled_from(fresh)),)
                free = [page for page in free if page != pages[-1]]
            odd = draw(st.integers(0, 30))
            given = {1: pages[:-1], 2: (*pages[:-1], PAGES), 3: (-1, *pages[1:])}.get(odd, pages)
            every, sample = draw(st.booleans()), draw(st.booleans())
            tokens = tuple(draw(st.integers(0, 9)) for _ in range(length))
            slices.append(
                StepSlice(
                    sequence=sequence,
                    tokens=tokens,
                    start=start,
                    pages=given,
                    sample=sample,
                    every=every,
                )
            )
            if event == "step":
                there[sequence] = start + length, pages
            if draw(st.integers(0, 9)) == 0:
                there[sequence] = draw(st.integers(0, start)), pages
        if slices:
            found.append((event, StepWork(slices=tuple(slices))))
    return found


def check_numbers(inputs: Any, work: StepWork, choices: np.ndarray[Any, Any]) -> None:
    total, samples, numbers = inputs.total, inputs.samples, inputs.numbers
    rows = numbers[: 4 * total].reshape(4, total)
    tokens = [
        (token, each.start + at, each.pages[(each.start + at) // SIZE], owner)
        for owner, each in enumerate(work.slices)
        for at, token in enumerate(each.tokens)
    ]
    for place, (token, position, page, owner) in zip(inputs.places, tokens, strict=True):
        expected = [token, position, page * SIZE + position % SIZE, owner]
        assert rows[:, place].tolist() == expected
    unused = np.delete(rows, inputs.places, axis=1)
    assert (unused[1:3] == -1).all()
    wanted = [
        each.every or (each.sample and at == len(each.tokens) - 1)
        for each in work.slices
        for at in range(len(each.tokens))
    ]
    chosen = numbers[4 * total : 4 * total + samples]
    assert chosen[inputs.sampled].tolist() == inputs.places[np.flatnonzero(wanted)].tolist()
    kinds = numbers[4 * total + samples : 4 * total + 5 * samples].view(np.float64)
    assert (kinds.reshape(samples, 2)[inputs.sampled] == choices).all()
    tables = numbers[4 * total + 5 * samples :].reshape(-1, inputs.columns)
    for row, each in zip(tables, work.slices, strict=False):
        used = -(-(each.start + len(each.tokens)) // SIZE)
        assert row.tolist() == [*each.pages[:used]] + [0] * (inputs.columns - used)
    assert not tables[len(work.slices) :].any()


@settings(max_examples=150, deadline=None)
@given(events=steps(), fixed=st.booleans())
def test_steps_are_checked_and_numbered_as_one_after_the_other(
    events: list[tuple[str, Any]], fixed: bool
) -> None:
    plan = PagedSteps(
        pages=PAGES, page_size=SIZE, vocabulary=10, context=CONTEXT, tile=TILE, fixed=fixed
    )
    plain = Plain()
    for event, given_to in events:
        if event == "lose":
            plan.lose()
            plain.filled = [0] * PAGES
            continue
        if event == "keep":
            kept = np.arange(PAGES) % (SIZE + 1) + given_to
            plan.keep(kept)
            plain.filled = np.minimum(plain.filled, kept).tolist()
            continue
        error = plain.refused(given_to)
        if error is not None:
            with pytest.raises(error):
                plan.check_filled(plan.use(given_to), given_to)
            continue
        use = plan.use(given_to)
        plan.check_filled(use, given_to)
        choices = np.random.default_rng(0).random((sum(each.rows for each in given_to.slices), 2))
        check_numbers(plan.inputs(use, given_to, choices), given_to, choices)
        plan.touch(use, done=False)
        plain.write(given_to, done=False)
        if event == "step":
            plan.touch(use, done=True)
            plain.write(given_to, done=True)
        assert plan.filled.tolist() == plain.filled


def one(sequence: int, start: int, pages: tuple[int, ...], tokens: int = 1) -> StepSlice:
    return StepSlice(sequence=sequence, tokens=(1,) * tokens, start=start, pages=pages, sample=True)


def made(plan: PagedSteps, *slices: StepSlice) -> np.ndarray[Any, Any]:
    """Return the table of a step that is done."""
    work = StepWork(slices=slices)
    use = plan.use(work)
    plan.check_filled(use, work)
    inputs = plan.inputs(use, work, None)
    plan.touch(use, done=True)
    return inputs.numbers[4 * inputs.total + 5 * inputs.samples :].reshape(-1, inputs.columns)


@pytest.mark.parametrize("kept", [None, 2])
def test_pages_that_are_lost_are_missed_also_by_sequences_that_went_on(kept: int | None) -> None:
    """Here the next token has a page of its own, so only the ones before it are missing."""
    plan = PagedSteps(
        pages=PAGES, page_size=SIZE, vocabulary=10, context=CONTEXT, tile=TILE, fixed=False
    )
    pages = (1, 2, 3)
    made(plan, one(0, 0, pages, 2 * SIZE))
    made(plan, one(0, 2 * SIZE, pages))
    if kept is None:
        plan.lose()
    else:
        plan.keep(np.full(PAGES, kept))
    with pytest.raises(GpuRefStale, match=f"positions before {2 * SIZE} of sequence 0"):
        made(plan, one(0, 2 * SIZE, pages))


def test_rows_that_come_again_have_no_pages_of_those_before_them() -> None:
    plan = PagedSteps(
        pages=PAGES, page_size=SIZE, vocabulary=10, context=CONTEXT, tile=TILE, fixed=False
    )
    long = one(1, 0, (5, 6, 7), 3 * SIZE)
    assert made(plan, one(0, 0, (1,)), long).tolist() == [[1, 0, 0, 0], [5, 6, 7, 0]]
    assert made(plan, one(0, 1, (1,))).tolist() == [[1]]
    found = made(plan, one(2, 0, (2, 3, 4), 3 * SIZE), one(3, 0, (8,)))
    assert found.tolist() == [[2, 3, 4, 0], [8, 0, 0, 0]]
