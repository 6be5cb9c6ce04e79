"""Every example does its work and checks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    """In a process of its own, as a user would run it."""
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=path.parents[1],
        env={**os.environ, "PYTHONPATH": str(path.parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
