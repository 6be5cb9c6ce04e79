"""Stages of an awaited op, as the benchmark prints them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_stages_of_both_processes_add_up() -> None:
    script = Path(__file__).parent / "benchmarks/bench_awaited.py"
    command = [sys.executable, str(script), "--backend", "cpu", "--size", "8", "--ops", "200"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert re.search(r"(\d+) ops\n", told)[1] == "200"  # type: ignore[index]
    rows = [
        [float(number) for number in re.findall(r"([\d.]+) us", line)]
        for line in told.splitlines()
        if len(re.findall(r" us", line)) == 3
    ]
    *stages, whole = rows
    assert len(stages) == 12
    assert sum(row[2] for row in stages) == pytest.approx(whole[2], abs=0.05 * 13)
    processes = [line.split()[0] for line in told.splitlines()[3 : 3 + len(stages)]]
    assert {*processes} == {"program", "both", "host", "device"}
    # Each process has stages that take time; otherwise its readings were lost.
    for name in ("program", "both", "host"):
        assert all(
            row[0] > 0 for row, process in zip(stages, processes, strict=True) if process == name
        )
