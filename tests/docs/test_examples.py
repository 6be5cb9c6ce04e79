"""Every example does its work and checks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..harness import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path) -> None:
    """In a process of its own, as a user would run it."""
    done = run_program(str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
def test_http_server_answers_requests_of_a_rebuild_when_hypercorn_is_impatient() -> None:
    """Hypercorn cancels requests 3 s after SIGTERM by default, so the program allows more."""
    impatient = (
        "import runpy, hypercorn.config; hypercorn.config.Config.graceful_timeout = 0.001; "
        "runpy.run_path('examples/http_server.py', run_name='__main__')"
    )
    done = run_program("-c", impatient)
    assert done.returncode == 0, done.stderr
    assert ", 0 lost" in done.stdout
