"""Figures that the benchmark of hard goals picks out of the output of others."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomr_accel.backends import cuda

from .benchmarks.recorded import compared

HERE = Path(__file__).parent / "benchmarks"


@pytest.fixture
def gaps(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("bench_gaps")


def line_of(what: str) -> str:
    """A line of a benchmark, as it prints it beside rivals."""
    side_by_side = importlib.import_module("side_by_side")
    pace = side_by_side.Pace
    name, _, rival = what.partition(" | ")
    row = side_by_side.Row(
        name, 1 << 28, "GB/s", pace(4e-6, 5e-6), {rival: pace(3e-6, 2e-6)}, {rival: 1.0}
    )
    [line] = row.lines()
    return str(line)


LINES = {
    "chain of gemm": "gemm                             7.6    12.6    18.0    12.0   1.50",
    "chain of gemm, blaslt": "gemm, blaslt      7.6    12.6    18.0    12.0   1.50",
    "awaited alone, bf16 8192, blas": "  bf16 8192, blas               1400.0   1300.0   100.0",
    "a launch in flight": "cuda.core    4.2   9.9  here 1.50 times that in a queue (goal 1.2)",
    "ask, gemm 256": "ask latency, gemm 256  90.0 us   by hand 60.0 us   1.50 (goal <= 0.6)",
    "op with timeline": "  op             timeline    46.48 (1.500)    20.91 (1.123)",
    "unique 2^24": "unique 2^24     9.1 us, alone 9 us | cupy  2 us, ratio 0.20, alone 9 us, ratio"
    "  0.1 | torch      4.6 us, ratio  0.75, alone   9.0 us, ratio  0.90 | took 0.1 s",
    "transposed float32": "transposed float32  9.1 us, alone   9.0 us  0.75 of 4.8 TB/s | took 1 s",
    "attention backward 2048 x 64": "backward 2048 x 64              1.33 times cuDNN's time",
    "all_reduce of 8 bytes": "all_reduce                8      40.0      0.00      30.0   0.75",
    "a world is back after a kill": "a rank is killed: told after 0.090 s, the world is back"
    " after 0.710 s",
    "peer copy of 64 MiB": "64 MiB   here 300.0 GB/s, cuMemcpyPeerAsync 400.0 GB/s, ratio 0.75 (",
    "argmax 2^20": "argmax 2^20 | torch",
    "eigh 512 x 512 of cupy": "eigh 512 x 512 | cupy",
    "CUTLASS filter gradient 7 x 7 x 512": "weight_grad_7 8192 | cudnn",
}
"""For some lines of the table a line of a benchmark, or what ``line_of`` makes one of."""


@pytest.mark.parametrize("what", LINES)
def test_figures_are_found_in_the_lines_of_benchmarks(gaps: Any, what: str) -> None:
    line = LINES[what]
    if "  " not in line:
        line = line_of(line)
    every = [gap for source in (*gaps.ONE, *gaps.TWO) for gap in source.gaps]
    found = {gap.what: told for gap in every if (told := gap.read(line)) is not None}
    assert [*found] == [what]
    words = {
        "cost": "cost 1.50 (goal at most",
        "ratio": "ratio 0.75 (goal at least",
        "more": "more 100.0 us (goal at most",
        "s": "0.71 s (goal at most",
    }
    [gap] = [gap for gap in every if gap.what == what]
    assert found[what].startswith(words[gap.kind])
    assert ": missed)" in replace(gap, goal=0.9 if gap.kind == "ratio" else 0.5).read(line)
    met = replace(gap, goal=0.1 if gap.kind == "ratio" else 1000.0).read(line)
    assert ": met)" in met


@pytest.mark.parametrize(
    ("now", "lost"),
    [("cost 1.20", False), ("cost 1.30", True), ("cost 0.90", False)],
)
def test_a_goal_that_is_met_now_is_still_compared(now: str, lost: bool) -> None:
    was = "chain of gemm   cost 1.20 (goal at most 1: missed) beside torch; bench_chains.py\n"
    line = was.replace("cost 1.20", now)
    if now == "cost 0.90":
        line = line.replace("missed", "met")
    changes = compared(was, line)
    assert all(change.was is not None for change in changes)
    assert any(change.lost for change in changes) == lost


def ran(gaps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> dict[str, str]:
    """Run a benchmark of this code, for a second, for two lines."""
    (tmp_path / "bench_fake.py").write_text(textwrap.dedent(code))
    monkeypatch.setattr(gaps, "HERE", tmp_path)
    wanted = [
        gaps.Gap(name, "", 1.0, "cost", rf"^{name} ([\d.]+)$", f"--only {name}")
        for name in ("one", "two")
    ]
    source = gaps.Source("bench_fake.py", 1.0, tuple(wanted))
    return {gap.what: told for gap, told in gaps.run(source, wanted, 1.0)}


def test_a_line_that_fails_leaves_the_others(
    gaps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        import sys
        assert sys.argv[1:] == ["--only", "one", "--only", "two"]
        print("one 0.5")
        raise ValueError("no room")
    """
    assert ran(gaps, tmp_path, monkeypatch, code) == {
        "one": "cost 0.50 (goal at most 1: met)",
        "two": "failed: ValueError: no room",
    }


def test_a_figure_that_is_not_printed_is_told(
    gaps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ran(gaps, tmp_path, monkeypatch, 'print("one 0.5")')
    assert told["two"] == "failed: its output has no such figure; the rival may be missing"


def test_a_benchmark_that_hangs_is_ended_with_its_children(
    gaps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        import subprocess, sys
        print("two 2.0", flush=True)
        subprocess.run([sys.executable, "-c", "import signal; signal.pause()"])
    """
    assert ran(gaps, tmp_path, monkeypatch, code) == {
        "two": "cost 2.00 (goal at most 1: missed)",
        "one": "failed: it was ended after 1 s",
    }


def test_figures_of_the_cpu_backend_do_not_count(
    gaps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 'print("x86_64, backend cpu, Python 3"); print("one 0.5")'
    told = ran(gaps, tmp_path, monkeypatch, code)
    assert told == dict.fromkeys(("one", "two"), "failed: it found too few GPUs")


@pytest.mark.skipif(cuda.why_absent() is None, reason="it would measure for minutes")
@pytest.mark.parametrize("two", [False, True])
def test_without_a_gpu_it_tells_what_cannot_run(gaps: Any, two: bool) -> None:
    command = [sys.executable, str(HERE / "bench_gaps.py"), *(["--two"] if two else [])]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [line for line in told.splitlines() if "cannot run without a GPU" in line]
    every = [gap.what for source in (gaps.TWO if two else gaps.ONE) for gap in source.gaps]
    assert [re.split(r"\s{2,}", line)[0] for line in lines] == every
    assert all((HERE / line.split("; ")[1].split()[0]).exists() for line in lines)
