"""Outputs of benchmarks, kept by card, and changes since.

``python -m tests.benchmarks.recorded --record bench_ask`` runs a benchmark and keeps its output in
``tests/benchmarks/recorded``. With ``--compare`` each figure is printed beside the one
that was kept on the same card, and a loss of more than 3 % is marked and makes the exit status 1.
Both at once compare first.

A figure is a number in a line of output. It belongs to the same figure of an earlier run if the
line has the same text around such numbers. Whether more is better follows from the words around it:
``us`` and ``ms`` are times, ``GB/s`` and ``tokens/s`` are speeds, and so are ratios; less is better
after ``cost`` and ``more``. Of other figures only the change is shown.

A benchmark can have options: ``--record "bench_gaps --two"``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from atomr_accel import open_device

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE: Final = Path(__file__).resolve().parent
FOLDER: Final = HERE / "recorded"
TOLERANCE: Final = 0.03
"""Changes up to this part of a figure are noise."""

NUMBER: Final = re.compile(r"(?<![\w.^*])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.^*]*\w)")
COLUMN: Final = re.compile(r"\s{2,}|:\s")
TIME: Final = re.compile(r"\s*(?:ns|us|µs|ms|s|seconds|milliseconds|microseconds)\b(?!/)")
SPEED: Final = re.compile(r"\s*[\w ]{0,12}(?:/s\b|per second|a second)")
SPEED_BEFORE: Final = re.compile(r"(?:ratio|speed-up)\W*$")
COST_BEFORE: Final = re.compile(r"(?:more|cost)\W*$")
VERDICT: Final = re.compile(r"\b(?:met|missed)\b")


@dataclass(frozen=True)
class Figure:
    """A number that a benchmark printed.

    Attributes:
        name: the line's first column.
        form: the line without its figures and verdicts, which tells it from others of that name.
        position: which figure of the line it is.
        value: the number.
        sign: 1 if more is better, -1 if less is, 0 if that is not known.
    """

    name: str
    form: str
    position: int
    value: float
    sign: int


def figures(output: str) -> Iterator[Figure]:
    """Yield the figures in the output of a benchmark."""
    for line in output.splitlines():
        column = COLUMN.search(line.strip())
        name = line.strip()[: column.start()] if column else ""
        rest = line.strip()[len(name) :]
        form = " ".join(VERDICT.sub("", NUMBER.sub("#", rest)).split())
        for position, found in enumerate(NUMBER.finditer(rest)):
            before, after = rest[: found.start()], rest[found.end() :]
            sign = 0
            if SPEED_BEFORE.search(before) or SPEED.match(after):
                sign = 1
            elif COST_BEFORE.search(before) or TIME.match(after):
                sign = -1
            yield Figure(name, form, position, float(found.group().replace(",", "")), sign)


@dataclass(frozen=True)
class Change:
    """A figure of two runs.

    Attributes:
        now: the figure of this run.
        was: its value in the earlier one, or None if that did not have it.
    """

    now: Figure
    was: float | None

    @property
    def part(self) -> float:
        """The change as a part of the earlier value."""
        return (self.now.value - self.was) / abs(self.was) if self.was else 0.0

    @property
    def lost(self) -> bool:
        """True if the figure is worse by more than noise."""
        return self.part * self.now.sign < -TOLERANCE

    def __str__(self) -> str:
        """The line to print."""
        text = f"{self.now.name or self.now.form:.48}"
        was = "new" if self.was is None else f"{self.was:,.6g}"
        mark = "  LOSS" if self.lost else ""
        return f"  {text:48} {was:>14} {self.now.value:>14,.6g} {self.part:+8.1%}{mark}"


def compared(was: str, now: str) -> list[Change]:
    """Return the figures of a run beside those of an earlier one.

    Lines that differ only in their figures are compared in their order.
    """
    earlier: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for each in figures(was):
        earlier[each.name, each.form, each.position].append(each.value)
    changes = []
    for each in figures(now):
        values = earlier[each.name, each.form, each.position]
        changes.append(Change(each, values.pop(0) if values else None))
    return changes


def _card() -> str:
    async def named() -> str:
        async with open_device(0) as device:
            return device.info.name

    return re.sub(r"[^a-z0-9]+", "-", trio.run(named).lower()).strip("-")


def _run(benchmark: str) -> str:
    """Run a benchmark, and print and return its output."""
    lines = []
    stem, *options = benchmark.split()
    command = [sys.executable, "-u", str(HERE / f"{stem}.py"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        sys.exit(f"{benchmark} ended with status {process.returncode}; nothing of it was kept")
    return "".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "benchmarks", nargs="+", help="names, as in bench_ask; options can follow a name"
    )
    parser.add_argument("--compare", action="store_true", help="with what was kept on this card")
    parser.add_argument("--record", action="store_true", help="keep the outputs")
    words = parser.parse_args()
    folder, lost = FOLDER / _card(), 0
    for benchmark in words.benchmarks:
        print(f"{benchmark}, on {folder.name}", flush=True)
        kept = folder / f"{benchmark.replace(' ', '')}.txt"
        now = _run(benchmark)
        if words.compare and not kept.exists():
            print(f"  {benchmark} was never recorded on {folder.name}; do that with --record")
        elif words.compare:
            changes = compared(kept.read_text(), now)
            print(f"  {'':48} {'recorded':>14} {'now':>14}", *changes, sep="\n", flush=True)
            lost += sum(change.lost for change in changes)
        if words.record:
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_text(now)
    if lost:
        sys.exit(f"{lost} figures are worse by more than {TOLERANCE:.0%}")


if __name__ == "__main__":
    main()
