"""A few of the harms that ``python -m tests.soak.nodes`` does by the hundred."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..harness import ROOT, sized


@pytest.mark.slow
def test_whatever_happens_to_nodes_each_acknowledged_effect_is_there_once() -> None:
    words = f"--harms {sized(2, 40)} --clients {sized(16, 64)} --store sqlite".split()
    command = [sys.executable, "-m", "tests.soak.nodes", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout
