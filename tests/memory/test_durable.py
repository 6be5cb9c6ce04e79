"""The program's knowledge of a durable block, compared with a model that keeps all bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.memory import DurableState, Proof
from atomr_accel.wire import CHUNK_BYTES

UNIT = CHUNK_BYTES // 4
"""The model has a number for each quarter of a chunk."""


def digest(content: list[int], state: DurableState, proof: Proof) -> bytes:
    """The digests of a proof: of each chunk its numbers."""
    begin, nbytes = state.range_of(proof)
    end = begin + nbytes
    return b"".join(
        bytes((*content[at // UNIT : at // UNIT + 4], 0, 0, 0, 0)[:8])
        for at in range(begin, end, CHUNK_BYTES)
    )


writes = st.tuples(st.integers(0, 19), st.integers(1, 20), st.integers(1, 255))
scribbles = st.tuples(st.integers(0, 19), st.integers(0, 255))


@given(
    steps=st.lists(st.one_of(writes, scribbles), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_changes_are_found_and_nothing_else(steps: list[tuple[int, ...]], order: object) -> None:
    """Digests are taken when ops run, and arrive in any order."""
    content, proven = [0] * 20, [0] * 20
    state = DurableState(20 * UNIT)
    first = state.proof_of(0, state.nbytes)
    assert first is not None
    assert not state.take(first, digest(content, state, first))
    answers: list[tuple[Proof, bytes]] = []
    found = expected = False
    for step in steps:
        if len(step) == 2:
            content[step[0]] = step[1]
            continue
        begin, length, value = step
        end = min(begin + length, 20)
        for chunk in {begin // 4, (end - 1) // 4}:
            part = slice(4 * chunk, 4 * chunk + 4)
            if not begin <= part.start <= part.stop <= end:
                expected = expected or content[part] != proven[part]
        checks = state.checks_of(begin * UNIT, end * UNIT)
        answers += [(check, digest(content, state, check)) for check in checks]
        content[begin:end] = [value] * (end - begin)
        proof = state.proof_of(begin * UNIT, end * UNIT)
        assert proof is not None
        answers.append((proof, digest(content, state, proof)))
        part = slice(begin // 4 * 4, -(-end // 4) * 4)
        proven[part] = content[part]
        assert state.in_flight
        if order.random() < 0.3:  # type: ignore[attr-defined]
            order.shuffle(answers)  # type: ignore[attr-defined]
            while answers:
                found = bool(state.take(*answers.pop())) or found
            assert not state.in_flight
    for answer in answers:
        found = bool(state.take(*answer)) or found
    assert not state.in_flight
    assert found == expected
    whole = digest(content, state, Proof(0, state.chunks, checks=True))
    if not expected:
        changed = {
            at for at in range(5) if content[4 * at : 4 * at + 4] != proven[4 * at : 4 * at + 4]
        }
        assert set(state.changed(whole)) == changed


def test_an_empty_block_has_nothing_to_prove() -> None:
    state = DurableState(0)
    assert state.proof_of(0, 0) is None
    assert state.checks_of(0, 0) == []
    assert state.changed(b"") == []


def test_a_check_that_is_not_needed_is_dropped() -> None:
    state = DurableState(CHUNK_BYTES)
    (check,) = state.checks_of(3, 4)
    assert not state.in_flight  # nothing is written yet
    state.drop(check)
    state.drop(check)
    proof = state.proof_of(0, 3)
    assert proof is not None
    before = state.in_flight
    state.settle()
    assert (before, state.in_flight) == (True, False)
