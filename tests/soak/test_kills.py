"""A few of the kills that ``nox -s soak`` does by the thousand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..harness import BACKEND, ROOT


@pytest.mark.slow
@pytest.mark.parametrize(("isolation", "kills"), [("process", 6), ("thread", 3)])
def test_whatever_is_killed_every_answer_comes_once_and_is_right(
    isolation: str, kills: int
) -> None:
    """In a process of its own: what is left there is not of other tests."""
    words = f"--kills {kills} --tasks 16 --backend {BACKEND} --isolation {isolation}".split()
    command = [sys.executable, "-m", "tests.soak.kills", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"kills {kills}" in done.stdout
