"""A few of the kills that ``nox -s soak`` does by the thousand."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
import trio

from atomr_accel import Device

from ..harness import BACKEND, ROOT
from .kills import soak


@pytest.mark.slow
@pytest.mark.parametrize(("isolation", "kills"), [("process", 6), ("thread", 3)])
def test_whatever_is_killed_every_answer_comes_once_and_is_right(
    isolation: str, kills: int
) -> None:
    """The soak runs in its own process, so that leftovers of other tests do not count."""
    words = f"--kills {kills} --tasks 16 --backend {BACKEND} --isolation {isolation}".split()
    command = [sys.executable, "-m", "tests.soak.kills", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"kills {kills}" in done.stdout


@pytest.mark.slow
async def test_harm_without_effect_and_a_harm_that_fails_are_told_at_the_end() -> None:
    done = 0

    async def harm(_device: Device, _chance: random.Random) -> str | None:
        nonlocal done
        done += 1
        await trio.lowlevel.checkpoint()
        if done == 1:
            raise AssertionError("no harm")
        raise OSError("no more")

    report = await soak(5, 1, harm=harm, backend=BACKEND)
    assert not report.good
    assert [each.endswith("no harm") for each in report.harmless] == [True]
    assert len(report.wrong) == 1
    assert "no more" in report.wrong[0]
    assert "harm without effect 1" in str(report)
