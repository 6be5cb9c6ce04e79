"""The first program that a reader sees."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ..harness import ROOT


@pytest.mark.slow
def test_the_program_of_the_readme_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert program is not None
    assert len(program[1].splitlines()) <= 13
    command = [sys.executable, "-c", program[1]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[")
