"""Measure everything that has a goal which is hard to meet, one line each.

Runs the benchmarks of single ops, small work and kernels one after the other, each with a time
limit, and picks the figures out of their output. A line has a name, the figure, its goal, a verdict
and the benchmark. It is printed as soon as the figure exists. ``cost`` is our time over the
rival's, so less is better. ``ratio`` is our speed over the rival's.

    python tests/benchmarks/bench_gaps.py                  # one GPU, at most six minutes
    python tests/benchmarks/bench_gaps.py --two            # two GPUs
    python tests/benchmarks/bench_gaps.py --only eigh      # lines with this beginning

Without a GPU it prints the lines that cannot run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from side_by_side import parser_of_lines, wanted

from atomr_accel.backends import cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE: Final = Path(__file__).resolve().parent
SECONDS: Final = 360.0
"""Time after which no benchmark is started, and the running one is ended."""

BANDWIDTH: Final = 4.8e12
"""Bytes in a second of an H200's memory."""

US: Final = r"([\d.]+) us"
ON_CPU: Final = re.compile(r"\bbackend cpu\b")
"""A line of a benchmark that has found too few GPUs."""


@dataclass(frozen=True)
class Gap:
    """A line: a figure with a goal.

    Attributes:
        what: the name of the line.
        rival: the other side of the comparison.
        goal: the goal.
        kind: the meaning of the figure: our time over the rival's (``cost``), our speed over the
            rival's or the hardware's (``ratio``), the microseconds that we take longer (``more``),
            or seconds (``s``).
        pattern: finds the figures in a line of the benchmark's output.
        options: the options with which the benchmark measures this.
        figure: computes the figure from what the pattern has found.
    """

    what: str
    rival: str
    goal: float
    kind: Literal["cost", "ratio", "more", "s"]
    pattern: str
    options: str = ""
    figure: Callable[..., float] = lambda found: found

    def read(self, line: str) -> str | None:
        """Return the figure's text if this line of a benchmark's output has it."""
        found = re.search(self.pattern, line)
        if found is None:
            return None
        value = self.figure(*map(float, found.groups()))
        least = self.kind == "ratio"
        met = value >= self.goal if least else value <= self.goal
        told = f"{self.kind} {value:.2f}"
        if self.kind == "more":
            told = f"more {value:.1f} us"
        elif self.kind == "s":
            told = f"{value:.2f} s"
        goal = f"goal at {'least' if least else 'most'} {self.goal:g}"
        beside = f" beside {self.rival}" if self.rival else ""
        return f"{told} ({goal}: {'met' if met else 'missed'}){beside}"


@dataclass(frozen=True)
class Source:
    """A benchmark that measures some lines.

    Attributes:
        name: the name of its file.
        limit: seconds after which it is ended.
        gaps: the lines.
    """

    name: str
    limit: float
    gaps: tuple[Gap, ...]


def _over(ours: float, theirs: float) -> float:
    return ours / theirs


def _under(ours: float, theirs: float) -> float:
    return theirs / ours


def _inverse(times: float) -> float:
    return 1 / times


def _share(us: float) -> float:
    """The share of the memory's bandwidth, for 2^28 numbers that are read and written."""
    return 2 * 4 * 2**28 / (us * 1e-6) / BANDWIDTH


def _chains() -> Iterator[Gap]:
    names = ("gemm", "relu", "layer_norm", "blaslt.matmul", "blaslt.matmul with bias")
    for name in (*names, "gemm, blaslt", "layer_norm, blaslt"):
        pattern = rf"^{re.escape(name)} +[\d.]+ +[\d.]+ +([\d.]+) +([\d.]+) +[\d.]+$"
        yield Gap(f"chain of {name}", "torch", 1.0, "cost", pattern, figure=_over)


def _alone() -> Iterator[Gap]:
    goals = {"sgemm 256": 30.0, "layer_norm 256": 30.0}
    for name, goal in (goals | {"bf16 8192, blaslt": 40.0, "bf16 8192, blas": 40.0}).items():
        pattern = rf"^ +{name} +[\d.]+ +[\d.]+ +(-?[\d.]+)$"
        yield Gap(f"awaited alone, {name}", "torch", goal, "more", pattern, "--only alone")


def _watching() -> Iterator[Gap]:
    for what, name, goal in (
        ("op", "metrics", 1.03),
        ("op", "timeline", 1.06),
        ("ask", "timeline", 1.10),
    ):
        pattern = rf"^ *{what} +{name} +[\d.]+ *\(([\d.]+)\)"
        given = f"--only {name}"
        yield Gap(f"{what} with {name}", f"an {what} without", goal, "cost", pattern, given)


def _arrays() -> Iterator[Gap]:
    for name in ("unique", "cumsum", "histogram"):
        for power in (20, 24):
            pattern = rf"^{name} 2\^{power} .*\| torch +[\d.]+ us, ratio +([\d.]+)"
            yield Gap(f"{name} 2^{power}", "torch", 1.0, "ratio", pattern, f"--only {name}")
    for name in ("transposed float16", "transposed float32", "inner axes exchanged float32"):
        pattern = rf"^{name} .* ([\d.]+) of [\d.]+ TB/s"
        yield Gap(name, "memory bandwidth", 0.85, "ratio", pattern, f"--only '{name}'")


def _reductions() -> Iterator[Gap]:
    for power in (20, 24, 28):
        name = f"argmax 2^{power}"
        pattern = rf"^argmax 2\^{power} .*\| torch +[\d.]+ us +ratio +([\d.]+)"
        yield Gap(name, "torch", 1.0, "ratio", pattern, f"--only '{name}'")
    name, pattern = "scan 2^28", rf"^scan 2\^28 +{US}"
    yield Gap(name, "memory bandwidth", 0.85, "ratio", pattern, f"--only '{name}'", _share)


def _factorizations() -> Iterator[Gap]:
    for op, n in (("eigh", 512), ("eigh", 1024), ("eigh", 2048), ("qr", 2048), ("cholesky", 4096)):
        name = f"{op} {n} x {n}"
        for rival in ("cupy", "torch"):
            pattern = rf"^{name} .*\| {rival} +[\d.]+ us +ratio +([\d.]+)"
            what = f"{name} of {rival}"
            yield Gap(what, rival, 1.0, "ratio", pattern, f"--only '{name}'")


def _attention() -> Iterator[Gap]:
    for name, goal in (("forward", 0.9), ("backward", 0.8)):
        for shape in ("2048 x 64", "2048 x 64 causal", "2048 x 128", "2048 x 128 causal"):
            pattern = rf"^{name} {shape} +([\d.]+) times cuDNN's time"
            what, given = f"attention {name} {shape}", "--only '2048 x'"
            yield Gap(what, "cuDNN", goal, "ratio", pattern, given, _inverse)


def _filters() -> Iterator[Gap]:
    for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        case = f"weight_grad_{size}"
        pattern = rf"^{case} .*\| cudnn +[\d.]+ us +ratio +([\d.]+)"
        what = f"CUTLASS filter gradient {size} x {size} x {channels}"
        yield Gap(what, "cuDNN", 0.8, "ratio", pattern, case)


LAUNCH: Final = Gap(
    "a launch in flight", "cuda.core", 1.2, "cost", r"^cuda\.core .*here ([\d.]+) times"
)
ASK: Final = Gap(
    *("ask, gemm 256", "the same by hand", 0.5, "cost"),
    *(rf"^ask latency.* {US} +by hand {US}", "--only ask", _over),
)

ONE: Final = (
    Source("bench_chains.py", 45, (*_chains(),)),
    Source("bench_model.py", 45, (*_alone(),)),
    Source("bench_launches.py", 45, (LAUNCH,)),
    Source("bench_device.py", 45, (ASK,)),
    Source("bench_watching.py", 60, (*_watching(),)),
    Source("bench_array.py", 60, (*_arrays(),)),
    Source("bench_cub.py", 60, (*_reductions(),)),
    Source("bench_linalg.py", 60, (*_factorizations(),)),
    Source("bench_flash.py", 60, (*_attention(),)),
    Source("bench_cutlass.py", 120, (*_filters(),)),
)


def _collectives() -> Iterator[Gap]:
    for name, power, goal in (
        ("8 bytes", 3, 0.7),
        ("64 KiB", 16, 0.8),
        ("1 MiB", 20, 0.8),
        ("16 MiB", 24, 0.9),
        ("64 MiB", 26, 0.98),
    ):
        size = 1 << power
        pattern = rf"^all_reduce +{size} +([\d.]+) +[\d.]+ +([\d.]+) "
        what, given = f"all_reduce of {name}", f"--only 'all_reduce {size}'"
        yield Gap(what, "torch's NCCL", goal, "ratio", pattern, given, _under)
        pattern = rf"^all_reduce +{size} +(?:[\d.]+ +){{7}}([\d.]+)$"
        yield Gap(f"{what}, replayed", "torch's NCCL", goal, "ratio", pattern, given)
    what, pattern = "a world is back after a kill", r"the world is back after ([\d.]+) s"
    yield Gap(what, "", 0.3, "s", pattern, "--only 'a rank is killed'")


def _peers() -> Iterator[Gap]:
    for name, goal in (("1 MiB", 0.9), ("64 MiB", 0.98), ("1 GiB", 0.98)):
        what, pattern = f"peer copy of {name}", rf"^{name} .* ratio ([\d.]+)"
        yield Gap(what, "cuMemcpyPeerAsync", goal, "ratio", pattern, f"--only '{name}'")


TWO: Final = (
    Source("bench_nccl.py", 150, (*_collectives(),)),
    Source("bench_peers.py", 120, (*_peers(),)),
)


def run(source: Source, gaps: list[Gap], limit: float) -> Iterator[tuple[Gap, str]]:
    """Run a benchmark and yield lines with their figures as text, as soon as each exists.

    Args:
        source: the benchmark.
        gaps: the lines that are wanted.
        limit: seconds after which it is ended. Lines that are missing then have failed.
    """
    options = " ".join(dict.fromkeys(gap.options for gap in gaps))
    command = [sys.executable, "-u", str(HERE / source.name), *shlex.split(options)]
    missing, last, why = list(gaps), "no output", ""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:

        def end(because: str) -> None:
            nonlocal why
            why = why or because
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, signal.SIGKILL)  # hosts keep the pipe open

        timer = threading.Timer(limit, end, [f"it was ended after {limit:.0f} s"])
        timer.start()
        try:
            for line in process.stdout or ():
                last = line.strip() or last
                if ON_CPU.search(line):
                    end("it found too few GPUs")
                    break
                for gap in list(missing):
                    told = gap.read(line.rstrip("\n"))
                    if told is not None:
                        missing.remove(gap)
                        yield gap, told
            process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                end("")
    if process.returncode == 0 and not why:
        why = "its output has no such figure; the rival may be missing"
    for gap in missing:
        yield gap, f"failed: {why or last:.160}"


def tell(source: Source, gap: Gap, told: str) -> None:
    """Print a line."""
    command = f"{source.name} {gap.options}".strip()
    print(f"{gap.what:40}  {told}; {command}", flush=True)


def main() -> None:
    """Run the benchmarks of the chosen lines, and print."""
    parser = parser_of_lines((__doc__ or "").splitlines()[0])
    parser.add_argument("--two", action="store_true", help="lines for two GPUs")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    absent = cuda.why_absent()
    if absent is not None:
        print(absent)
    for source in TWO if given.two else ONE:
        gaps = [gap for gap in source.gaps if wanted(gap.what, given.only)]
        left = end - time.monotonic()
        if absent is not None or left <= 0:
            why = "cannot run without a GPU" if absent else "left out, as the time is over"
            for gap in gaps:
                tell(source, gap, why)
        elif gaps:
            for gap, told in run(source, gaps, min(source.limit, left)):
                tell(source, gap, told)


if __name__ == "__main__":
    main()
