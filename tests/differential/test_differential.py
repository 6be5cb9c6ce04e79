"""A sample of the random cases of every library, and how the runner counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, LibraryMissing, Unsupported
from atomr_accel.testing import poison

from ..harness import BACKEND, ROOT, opened
from . import worker
from .__main__ import calls_of, libraries
from .cases import choose, close, garbage, same, shape, values, viewed
from .worker import run_case, seed_of


async def outcome(
    monkeypatch: pytest.MonkeyPatch,
    device: Device,
    check: Callable[[Any, Any], Awaitable[str | None]],
) -> worker.Outcome:
    """Return the outcome of a case of a library that only this test has."""
    name = f"{worker.__package__}.made_up"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(check=check))
    return await run_case(device, "made_up", 7)


async def test_an_outcome_says_what_a_case_came_to() -> None:
    def ending(how: str | Exception | None) -> Callable[[Any, Any], Awaitable[str | None]]:
        async def check(device: Device, random: np.random.Generator) -> str | None:
            await device.zeros(1)
            if isinstance(how, Exception):
                raise how
            return how

        return check

    async def faulty(device: Device, random: np.random.Generator) -> None:
        await poison(device)

    with pytest.MonkeyPatch.context() as monkeypatch:
        async with opened() as device:
            for how, kind, words in [
                (None, "checked", ""),
                ("too large", "refused", "too large"),
                (AssertionError("2 instead of 1"), "wrong", "2 instead of 1"),
                (ValueError("nobody knows why"), "wrong", "nobody knows why"),
                (Unsupported("no stream of 17 bytes"), "refused", "no stream of # bytes"),
                (LibraryMissing("no such library", library="none"), "absent", "no such library"),
            ]:
                found = await outcome(monkeypatch, device, ending(how))
                assert found.kind == kind
                assert words in found.reason
            found = await outcome(monkeypatch, device, faulty)
            assert found.kind == "fault"
            assert (await outcome(monkeypatch, device, ending(None))).kind == "checked"


def test_a_case_has_a_seed_of_its_own() -> None:
    seeds = {
        seed_of(library, seed, index)
        for library in ("array", "fft")
        for seed in range(3)
        for index in range(50)
    }
    assert len(seeds) == 300
    assert seed_of("array", 1, 2) == seed_of("array", 1, 2)


def test_structures_repeat_with_other_values() -> None:
    pool = worker.POOLS["array"]
    one, other, third = (worker.seed_of("array", 7, at) for at in (3, 3 + pool, 4))
    first, second, last = (worker.random_of("array", seed) for seed in (one, other, third))
    shapes = [shape(each, 3, 3) for each in (first, second, last)]
    assert shapes[0] == shapes[1] != shapes[2]
    drawn = [values(each, (50,), "float64") for each in (first, second)]
    assert (drawn[0] != drawn[1]).any()
    assert first.random() == second.random()  # values take none of the structure's chance


@pytest.mark.slow
def test_a_run_continues_from_its_log(tmp_path: Path) -> None:
    log, report = tmp_path / "log", tmp_path / "report"
    words = ("sorting", "--cases", "8", "--jobs", "2", "--log", str(log), "--report", str(report))
    assert run(*words).returncode == 0
    lines = log.read_text().splitlines(keepends=True)
    assert len(lines) > 1
    whole = json.loads(report.read_text())
    log.write_text("".join(lines[1:]) + lines[0][:9])
    assert run(*words).returncode == 0
    again = json.loads(report.read_text())
    for name in ("checked", "refused", "failures"):
        assert again["sorting"][name] == whole["sorting"][name]


def test_a_view_has_the_values_of_its_array_and_garbage_around() -> None:
    for seed in range(50):
        random = np.random.default_rng(seed)
        array = random.random((3, 5, 2)).astype(np.float32)
        buffer, view, layout = viewed(random, array)
        assert (view(buffer) == array).all()
        assert np.isnan(buffer).any() == (layout.partition(" of")[0] in ("gaps", "offset"))


def test_comparing_finds_what_is_wrong() -> None:
    exact = np.array([1.0, np.inf, -np.inf, np.nan])
    right = exact.astype(np.float32)
    close(right, exact, dtype=np.float32)
    same(right, right.copy())
    for at, value in [(0, 1.001), (0, np.nan), (1, 9.0), (1, -np.inf), (2, np.nan), (3, 0.0)]:
        wrong = right.copy()
        wrong[at] = value
        with pytest.raises(AssertionError, match=rf"1 of 4 .* \({at},\)"):
            close(wrong, exact)
        with pytest.raises(AssertionError, match=rf"1 of 4 .* \({at},\)"):
            same(wrong, right)
    with pytest.raises(AssertionError, match=r"^dtype float64, expected"):
        close(exact, exact, dtype=np.float32)
    with pytest.raises(AssertionError, match=r"^shape \(3,\), expected"):
        close(exact[:3], exact)
    for dtype in ("float16", "float64", "complex64"):
        assert np.isnan(garbage((4,), dtype)).all()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command line."""
    command = [sys.executable, "-m", "tests.differential", "--backend", BACKEND, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_sample_of_each_library_is_right(tmp_path: Path) -> None:
    report = tmp_path / "report"
    done = run("--cases", "2", "--jobs", "2", "--report", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert set(found) == set(libraries())
    for library, tally in found.items():
        counted = tally["checked"] + sum(tally["refused"].values())
        assert counted == -(-2 // calls_of(library)) or tally["absent"], library


@pytest.mark.slow
def test_a_single_case_is_repeated_by_its_seed() -> None:
    seed = choose(np.random.default_rng(0), [seed_of("sorting", 0, at) for at in range(9)])
    done = run("sorting", "--case", str(seed))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"case {seed}" in done.stdout
