"""The first program that a reader sees."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ..harness import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(("page", "start"), [("README.md", "[["), ("docs/index.md", "[[1.")])
def test_the_first_program_of_a_page_runs(page: str, start: str) -> None:
    readme = (ROOT / page).read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert program is not None
    assert len(program[1].splitlines()) <= 16
    command = [sys.executable, "-c", program[1]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(start)
