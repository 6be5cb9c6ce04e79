"""Scheduling: every request gets its tokens, whatever happens to others and to the device."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.llm import PromptTooLong
from atomr_accel.llm._scheduler import Scheduler, SequenceState
from atomr_accel.patterns import Overloaded

from .. import seeds
from ..harness import sized
from .simulated import Load, SimulatedDevice, following, reference, simulate

LOADS = st.builds(
    Load,
    requests=st.integers(1, 30),
    pages=st.integers(17, 40),
    page_size=st.integers(1, 5),
    context=st.integers(41, 60),
    prompt=st.integers(2, 16),
    most=st.integers(1, 10),
    step_tokens=st.integers(9, 40),
    step_sequences=st.integers(1, 8),
    most_waiting=st.integers(1, 30),
    arrive=st.floats(0.1, 0.9),
    fault=st.sampled_from((0.0, 0.05, 0.3)),
    durable=st.sampled_from((0.0, 0.7, 1.0)),
    scribbled=st.sampled_from((0.0, 0.05, 0.5)),
    shortage=st.sampled_from((0.0, 0.05, 0.3)),
    abort=st.sampled_from((0.0, 0.05, 0.3)),
    poisoned=st.sampled_from((0.0, 0.1, 0.5)),
    deadline=st.sampled_from((0.0, 0.1, 0.9)),
    prefix_cache=st.booleans(),
)


@settings(max_examples=60)
@given(st.integers(0, 2**32), LOADS)
def test_each_request_has_one_end_and_exactly_its_tokens(seed: int, load: Load) -> None:
    ends = simulate(seed, load).counts
    assert (
        sum(ends[how] for how in ("finished", "aborted", "expired", "at fault", "refused"))
        == load.requests
    )


def test_a_simulation_is_repeated_by_its_seed() -> None:
    seed = seeds.draw()
    first, second = (simulate(seed, Load(requests=60)) for _ in range(2))
    assert first == second
    assert simulate(seed + 1, Load(requests=60)) != first


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_requests_under_faults_and_memory_pressure(part: int) -> None:
    load = Load(requests=sized(2_000, 100_000), pages=48, step_tokens=64, step_sequences=24)
    ends = simulate(seeds.draw() + part, load).counts
    for how in ("finished", "aborted", "expired", "at fault", "fault", "error", "shortage"):
        assert ends[how], how
    for how in ("preemptions", "hits", "recomputed", "kept"):
        assert ends[how], how


def _scheduler(
    *,
    pages: int = 16,
    context: int = 32,
    step_tokens: int = 64,
    step_sequences: int = 16,
    most_waiting: int = 64,
) -> Scheduler:
    return Scheduler(
        pages=pages,
        page_size=4,
        context=context,
        step_tokens=step_tokens,
        step_sequences=step_sequences,
        most_waiting=most_waiting,
    )


def _run(scheduler: Scheduler, device: SimulatedDevice, steps: int = 1) -> None:
    for _ in range(steps):
        work = scheduler.plan()
        if work is None:
            return
        tokens = [following(state) for state in device.step(work)]
        for sequence, token in zip(scheduler.computed(), tokens, strict=True):
            scheduler.append(sequence, token)
            if sequence.full:
                scheduler.finish(sequence)


def test_prompts_beyond_the_context_are_refused() -> None:
    with pytest.raises(PromptTooLong) as caught:
        _scheduler().submit((1,) * 32)
    assert (caught.value.tokens, caught.value.most) == (32, 31)
    with pytest.raises(PromptTooLong):  # the cache is smaller than the context
        _scheduler(pages=4).submit((1,) * 16)
    with pytest.raises(ValueError, match="one token"):
        _scheduler().submit(())


def test_more_than_may_wait_are_refused() -> None:
    scheduler = _scheduler(most_waiting=2)
    first = scheduler.submit((1,))
    scheduler.submit((2,))
    with pytest.raises(Overloaded) as caught:
        scheduler.submit((3,))
    assert (caught.value.waiting, caught.value.capacity) == (2, 2)
    scheduler.abort(first)
    scheduler.submit((3,))


def test_options_that_starve_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="step_sequences"):
        _scheduler(step_tokens=8, step_sequences=8)


def test_a_prefix_is_computed_once() -> None:
    scheduler, device = _scheduler(), SimulatedDevice(16, 4)
    scheduler.submit((*range(10), 20), most=3)
    _run(scheduler, device, 9)
    before = scheduler.statistics().computed
    again = scheduler.submit((*range(10), 30), most=1)
    other = scheduler.submit((1, *range(1, 10), 30), most=1)  # the same but for its beginning
    _run(scheduler, device, 9)
    assert scheduler.statistics().cache_hits == 8
    assert scheduler.statistics().computed - before == 3 + 11
    assert again.tokens[11:] == reference((*range(10), 30), 1)
    assert other.state is SequenceState.ENDED


def test_requests_that_come_together_compute_their_prefix_once() -> None:
    scheduler, device = _scheduler(pages=64), SimulatedDevice(64, 4)
    sequences = [scheduler.submit((*range(20), number), most=2) for number in range(6)]
    _run(scheduler, device, 9)
    assert scheduler.statistics().cache_hits == 5 * 20
    assert all(sequence.state is SequenceState.ENDED for sequence in sequences)
    assert scheduler.statistics().steps <= 4


def test_without_a_prefix_cache_nothing_is_shared() -> None:
    scheduler = Scheduler(pages=64, page_size=4, context=32, prefix_cache=False)
    device = SimulatedDevice(64, 4)
    for _ in range(2):
        for number in range(3):
            scheduler.submit((*range(20), number), most=2)
        _run(scheduler, device, 9)
    assert scheduler.statistics().cache_hits == 0
    assert scheduler.statistics().pages_cached == 0
    assert scheduler.statistics().computed == 6 * 22


def test_a_higher_priority_preempts() -> None:
    scheduler, device = _scheduler(pages=8), SimulatedDevice(8, 4)
    low = [scheduler.submit((number,) * 12, most=8) for number in range(2)]
    _run(scheduler, device, 2)
    high = scheduler.submit((9,) * 20, most=2, priority=1)
    _run(scheduler, device, 2)
    assert high.state is SequenceState.ENDED
    assert scheduler.statistics().preemptions
    _run(scheduler, device, 99)
    for sequence in (*low, high):
        prompt = tuple(sequence.tokens[: sequence.prompt])
        assert sequence.tokens[sequence.prompt :] == reference(prompt, sequence.generated)


def test_keys_get_fair_shares() -> None:
    scheduler = _scheduler(step_sequences=1)
    device = SimulatedDevice(16, 4)
    many = [scheduler.submit((1, 2), most=4, key="many/and more") for _ in range(20)]
    _run(scheduler, device, 6)
    few = [scheduler.submit((3, 4), most=4, key="few") for _ in range(3)]
    _run(scheduler, device, 5 * 4)
    assert all(sequence.state is SequenceState.ENDED for sequence in few)
    assert sum(sequence.state is SequenceState.ENDED for sequence in many) < 8


def test_tokens_between_two_faults_are_computed_once() -> None:
    scheduler, device = _scheduler(), SimulatedDevice(16, 4)
    both = [scheduler.submit((*range(14), 20 + at), most=8) for at in range(2)]
    _run(scheduler, device, 4)
    kept = [4] * 16
    kept[both[0].pages[1]] = 1  # of positions from 4 on, which both have
    kept[both[1].pages[3]] = 2  # of positions from 12 on
    for row in (device.before, device.after):
        row[both[0].pages[1]][1:] = [-2] * 3
        row[both[1].pages[3]][2:] = [-2] * 2
    before = [sequence.computed for sequence in both]
    there = scheduler.statistics()
    scheduler.lose(kept)
    told = scheduler.statistics()
    lost = 3 + 2
    assert told.kept - there.kept == before[0] + before[1] - 12 - lost  # 12 are of both
    assert told.running == 2
    _run(scheduler, device, 99)
    assert scheduler.statistics().recomputed == lost
    for sequence in both:
        prompt = tuple(sequence.tokens[: sequence.prompt])
        assert sequence.tokens[sequence.prompt :] == reference(prompt, 8)


def test_a_token_that_was_not_added_before_a_fault_is_computed_again() -> None:
    scheduler, device = _scheduler(), SimulatedDevice(16, 4)
    sequence = scheduler.submit(tuple(range(8)), most=3)
    work = scheduler.plan()
    assert work is not None
    device.step(work)
    assert scheduler.computed() == [sequence]
    scheduler.failed(lost=True, kept=[4] * 16, blame=False)
    _run(scheduler, device, 9)
    assert sequence.tokens[8:] == reference(tuple(range(8)), 3)
    assert scheduler.statistics().recomputed == 4  # those of its last page


def test_long_prompts_do_not_hold_up_those_that_generate() -> None:
    scheduler = _scheduler(pages=64, context=200, step_tokens=8, step_sequences=4)
    device = SimulatedDevice(64, 4)
    quick = scheduler.submit((1,), most=30)
    _run(scheduler, device)
    scheduler.submit((2,) * 100, most=1)
    before = quick.generated
    _run(scheduler, device, 10)
    assert quick.generated == before + 10


def test_those_that_generate_do_not_wait_until_a_new_request_is_at_fault() -> None:
    scheduler, device = Scheduler(pages=1024, page_size=4, context=64), SimulatedDevice(1024, 4)
    others = [scheduler.submit((1, 2, at), most=8) for at in range(30)]
    _run(scheduler, device, 3)
    bad = scheduler.submit((50, 1), most=8)
    before = [each.generated for each in others]
    faults: list[int] = []
    while bad.state is not SequenceState.ENDED:
        work = scheduler.plan()
        assert work is not None
        if any(50 in piece.tokens for piece in work.slices):
            device.lose()
            faults.append(len(work.slices))
            scheduler.failed(lost=True)
            continue
        for sequence, state in zip(scheduler.computed(), device.step(work), strict=True):
            scheduler.append(sequence, following(state))
    assert faults == [31, 1]
    assert all(each.generated > number for each, number in zip(others, before, strict=True))


@given(st.integers(2, 256), st.data())
@settings(max_examples=10)
def test_the_request_at_fault_is_found_within_few_faults(number: int, data: st.DataObject) -> None:
    scheduler = Scheduler(pages=1024, page_size=4, context=64)
    device = SimulatedDevice(1024, 4)
    sequences = [scheduler.submit((at % 50, at // 50), most=6) for at in range(number)]
    bad = sequences[data.draw(st.integers(0, number - 1))]
    bad.tokens[0] = 50
    faults = 0
    while not scheduler.idle:
        work = scheduler.plan()
        assert work is not None
        if any(50 in piece.tokens for piece in work.slices):
            faults += 1
            device.lose()
            guilty = scheduler.failed(lost=True)
            assert guilty in (None, bad)
            continue
        for sequence, state in zip(scheduler.computed(), device.step(work), strict=True):
            scheduler.append(sequence, following(state))
            if sequence.full:
                scheduler.finish(sequence)
    assert bad.generated == 0
    assert faults <= 3 + (number - 1).bit_length()
    for sequence in sequences:
        if sequence is not bad:
            assert sequence.tokens[2:] == reference(tuple(sequence.tokens[:2]), 6)
