"""Random programs give what NumPy gives when it runs them one op after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.lanes import Op
from atomr_accel.testing import lane_delays

from ..harness import opened, sized
from .programs import KINDS, Run
from .running import Delayed, compiled, programs


@pytest.fixture(scope="module")
def delayed() -> Iterator[Delayed]:
    with lane_delays(150), contextlib.closing(Delayed(isolation="thread")) as device:
        yield device


@pytest.fixture(scope="module")
def delayed_process() -> Iterator[Delayed]:
    options = {"isolation": "process", "max_restarts": 10**6}
    with lane_delays(150), contextlib.closing(Delayed(**options)) as device:
        yield device


@pytest.mark.slow
@settings(max_examples=sized(40, 100))
@given(ops=programs())
def test_ops_behave_as_if_run_one_after_the_other(
    delayed: Delayed, ops: list[tuple[str, int]]
) -> None:
    delayed.run(lambda: delayed.check(ops))


@pytest.mark.slow
@settings(max_examples=sized(15, 40))
@given(ops=programs())
def test_programs_agree_in_another_process(
    delayed_process: Delayed, ops: list[tuple[str, int]]
) -> None:
    delayed_process.run(lambda: delayed_process.check(ops))


@pytest.mark.slow
@settings(max_examples=sized(6, 15))
@given(ops=st.integers(1, 2).flatmap(lambda faults: programs(60, faults)))
def test_programs_agree_when_contexts_fail(
    delayed_process: Delayed, ops: list[tuple[str, int]]
) -> None:
    delayed_process.run(lambda: delayed_process.check(ops))


def without_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the ports send every op as if it depended on no other."""
    nothing = property(lambda op: (), lambda op, dependencies: None)
    monkeypatch.setattr(Op, "dependencies", nothing)


async def test_without_dependencies_the_model_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the tests above would prove nothing."""
    without_dependencies(monkeypatch)
    with lane_delays(150):
        async with opened(isolation="thread") as device:
            kernel = await compiled(device)
            wrong = 0
            for seed in range(10):
                ops = [(kind, seed * 100 + at) for at, kind in enumerate(KINDS * 3)]
                try:
                    await Run(device, kernel).run(ops)
                except AssertionError:
                    wrong += 1
            assert wrong >= 3
