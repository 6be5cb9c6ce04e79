"""Cost of a test in a process of its own: ``--isolate``, ``pytest-forked``, ``pytest-isolate``.

Each contender runs the same empty tests in one session, which imports torch if it is installed,
else NumPy and SciPy. The contenders take turns, in another order each round. Prints the median
time of a session, and how much longer each test takes than in one process. The goal: 30 ms.

Rivals that are not installed, or do not run with this pytest, are left out.
Words on the command line: rounds, and tests.
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Final

PLUGIN: Final = "atomr_accel.testing.pytest_plugin"

CONTENDERS: Final = {
    "one process": (None, []),
    "--isolate": (None, ["-p", PLUGIN, "--isolate"]),
    "pytest-forked": ("pytest_forked", ["-p", "pytest_forked", "--forked"]),
    "pytest-isolate": ("pytest_isolate", ["-p", "pytest_isolate.plugin", "--isolate"]),
}
"""The package that each needs, and its options."""


def seconds(folder: Path, options: list[str], tests: int) -> float | None:
    """Return the time of a session, or None if its tests do not pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.perf_counter() - begin
    return took if f"{tests} passed" in done.stdout else None


def main(rounds: int = 5, tests: int = 200) -> None:
    """Run all, and print a table."""
    heavy = "torch" if importlib.util.find_spec("torch") else "scipy.linalg"
    there = {
        name: options
        for name, (needed, options) in CONTENDERS.items()
        if needed is None or importlib.util.find_spec(needed)
    }
    times: dict[str, list[float]] = {name: [] for name in there}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text(
            f"import pytest, {heavy}\n\n"
            f"@pytest.mark.parametrize('i', range({tests}))\n"
            "def test_nothing(i): pass\n",
            encoding="utf-8",
        )
        seconds(folder, [], tests)  # so that all modules are compiled
        runs = {name for name, options in there.items() if seconds(folder, options, tests)}
        order, chance = sorted(runs), random.Random(0)
        for _ in range(rounds):
            chance.shuffle(order)
            for contender in order:
                times[contender].append(seconds(folder, there[contender], tests) or math.nan)
    versions = f"Python {sys.version.split()[0]}, pytest {metadata.version('pytest')}"
    print(f"{tests} empty tests with {heavy} imported, {os.cpu_count()} cores, {versions}")
    alone = statistics.median(times["one process"])
    for contender in CONTENDERS:
        if contender not in there:
            print(f"{contender:16} not installed")
        elif contender not in runs:
            print(f"{contender:16} does not run with this pytest")
        else:
            median = statistics.median(times[contender])
            more = (median - alone) / tests * 1e3
            print(f"{contender:16} {median:6.2f} s, {more:5.1f} ms a test more than in one process")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
