"""Strategies, over the generations of a device and over restarts by a supervisor."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis.errors import NoSuchExample
from hypothesis.stateful import run_state_machine_as_test

from atomr_accel import Blocking, Device, GpuRefStale, LibraryMissing, open_blocking, open_system
from atomr_accel.actors import Backoff, Directive, Intensity, Supervision
from atomr_accel.testing.strategies import (
    DeviceMachine,
    OpProgram,
    PlannedFault,
    arrays,
    faults,
    programs,
)

from ..harness import BACKEND

AT_ONCE = Backoff(initial=0.0, base=0.0)


@asynccontextmanager
async def under_a_supervisor() -> AsyncIterator[Device]:
    """A device that is restarted by its system at each fault."""
    supervision = Supervision(
        decider=lambda _failure, _child: Directive.RESTART,
        intensity=Intensity(restarts=10_000, within=3600.0),
        backoff=AT_ONCE,
    )
    async with open_system("app", supervision=supervision) as system:
        yield await system.spawn_device(0, backend=BACKEND, max_restarts=0, backoff=AT_ONCE)


@pytest.fixture(scope="module", params=["generations", "restarts"])
def quick(request: pytest.FixtureRequest) -> Iterator[Blocking[Device]]:
    opening = (
        open_blocking(0, backend=BACKEND, backoff=AT_ONCE, max_restarts=10_000)
        if request.param == "generations"
        else open_blocking(under_a_supervisor())
    )
    with opening as device:
        yield device


def test_arrays_have_odd_values_of_the_asked_dtype_and_shape() -> None:
    found = find(arrays("float32", (2, 3)), lambda array: bool(np.isnan(array).any()))
    assert (found.dtype, found.shape) == (np.float32, (2, 3))
    assert find(arrays(), lambda array: array.size == 0).size == 0
    with pytest.raises(TypeError):
        find(arrays("O"), lambda _array: True)


def test_faults_without_hosts_kill_none() -> None:
    find(faults(), lambda fault: fault.name == "kill_host")
    with pytest.raises(NoSuchExample):
        find(faults(hosts=False), lambda fault: fault.name == "kill_host")


def test_without_hypothesis_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "atomr_accel.testing.strategies")
    with pytest.raises(LibraryMissing, match="needs package hypothesis"):
        importlib.import_module("atomr_accel.testing.strategies")


async def check_program(device: Device, program: OpProgram) -> None:
    await program.check(device)


@pytest.mark.slow
@settings(max_examples=8)
@given(program=programs(causes=faults()))
def test_programs_give_what_numpy_gives_over_faults(
    quick: Blocking[Device], program: OpProgram
) -> None:
    quick.run(check_program, program)


@pytest.mark.slow
def test_a_wrong_result_of_a_program_is_found(quick: Blocking[Device]) -> None:
    class Wrong(OpProgram):
        def expected(self, upto: int | None = None) -> list[np.ndarray]:
            return [array + 1 for array in super().expected(upto)]

    with pytest.raises(AssertionError, match="not equal"):
        quick.run(check_program, Wrong((np.ones((2, 2)),), (("add", 0, 0, 0),)))


@pytest.mark.slow
def test_the_machine_holds_over_faults(quick: Blocking[Device]) -> None:
    before = quick.run(generation_of)
    short = settings(max_examples=5, stateful_step_count=12)
    made: Any = lambda: DeviceMachine(quick)  # noqa: E731 (a factory serves as well as a class)
    run_state_machine_as_test(made, settings=short)
    assert quick.run(generation_of) > before


@pytest.mark.slow
def test_the_machine_finds_a_buffer_that_is_not_what_it_should_be(quick: Blocking[Device]) -> None:
    machine = DeviceMachine(quick)
    plain, sealed = (machine.put(np.arange(3.0), sealed=each) for each in (False, True))
    quick.run(cause, PlannedFault("trap"))
    machine.read(plain)
    machine.read(sealed)
    plain.sealed = True
    sealed.array = np.zeros(3)
    with pytest.raises(GpuRefStale):
        machine.read(plain)
    with pytest.raises(AssertionError):
        machine.read(sealed)
    machine.teardown()


async def generation_of(device: Device) -> int:
    return device.generation


async def cause(device: Device, fault: PlannedFault) -> None:
    await fault.cause(device)
