"""A run can be repeated, and another one made, by one number."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import seeds

HERE = Path(__file__).parent

TESTS = """
from hypothesis import given, strategies as st
from tests import seeds

def test_chosen(): print("\\ndrawn", seeds.draw(), seeds.draw())

def test_fails(): assert not seeds.draw()

def test_plain(): assert False

@given(st.integers(0, 2**60))
def test_example(number): print("\\nexample", number)
"""


def run(folder: Path, *options: str, **environment: str) -> str:
    """Return pytest's output for a few tests with this folder's ``conftest.py``."""
    (folder / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    (folder / "test_some.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", str(folder)]
    env = {"PATH": "/usr/bin", "PYTHONPATH": str(HERE.parent), **environment}
    done = subprocess.run(
        [*command, "--rootdir", str(folder), *options],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def chosen(output: str) -> list[str]:
    return re.findall(r"^(?:drawn|example) .*$", output, re.MULTILINE)


@pytest.mark.slow
def test_runs_are_the_same_unless_another_seed_is_asked_for(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path, "-k", "chosen or example")
    assert "seed: 0 (--seed or ATOMR_TEST_SEED)" in first
    assert chosen(first) == chosen(second) != []
    five, again = run(tmp_path, "--seed", "5"), run(tmp_path, ATOMR_TEST_SEED="5")
    assert chosen(five) == chosen(again)
    assert chosen(five)[0] != chosen(first)[0]
    assert chosen(five)[1:] != chosen(first)[1:], "Hypothesis, too"
    explored = run(tmp_path, "--hypothesis-profile=explore")
    [number] = re.findall(r"seed: (\d+) \(", explored)
    assert int(number) > 0
    assert chosen(run(tmp_path, "--seed", number)) == chosen(explored)
    failed = [part for part in re.split(r"_{3,} ", explored) if part.startswith("test_")]
    assert [f"pytest --seed {number} 'test_some.py::test_fails'" in part for part in failed] == [
        True,
        False,
    ]


def test_a_test_draws_the_same_whatever_ran_before() -> None:
    one = seeds.Draws("a test")
    numbers = [one.draw() for _ in range(3)]
    assert len({*numbers}) == 3
    again = seeds.Draws("a test")
    assert [again.draw() for _ in range(3)] == numbers
    assert seeds.Draws("another").draw() not in numbers
