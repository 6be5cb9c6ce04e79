"""Run conformance rows in a limited time, and go on after failures: for a short visit to a GPU.

    ATOMR_TEST_BACKEND=cuda python -m tests.libraries.dnn.run_rows --seconds 90

Runs the first case of every row, then random ones until the time is over. Prints each kind of
failure once, with its count and the seed that repeats it, and the number of checks.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import trio

from atomr_accel import DeviceLost, Unsupported, open_device

from ... import seeds
from ..conformance import TALLIES, Operation, check


def visits(
    rows: list[Operation], seed: int, part: tuple[int, int]
) -> Iterator[tuple[Operation, str, Any]]:
    """The first case of each row and dtype, and then all others in random order.

    Of both, every ``part[1]``-th one: as many processes, each with a number of its own, visit all.
    """
    number, of = part
    first = [(row, dtype, row.cases[0]) for row in rows for dtype in row.dtypes]
    yield from first[number::of]
    rest = [(row, dtype, case) for row in rows for dtype in row.dtypes for case in row.cases[1:]]
    random.Random(seed).shuffle(rest)
    yield from rest[number::of]


def fraction(text: str) -> tuple[int, int]:
    number, of = map(int, text.split("/"))
    return number, of


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="ops", help="modules of rows/, with commas")
    parser.add_argument("--only", default="", help="operations whose name contains this")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=fraction, default=(0, 1), help="0/3, 1/3 and 2/3 are all")
    parser.add_argument("--isolation", default="process", choices=("process", "thread"))
    parser.add_argument("--most", type=int, default=40, help="kinds of failures to print")
    options = parser.parse_args()
    seeds.choose_run_seed(options.seed, explore=False)
    rows = [
        row
        for name in options.rows.split(",")
        for row in importlib.import_module(f".rows.{name}", __package__).OPERATIONS
        if options.only in row.name
    ]
    backend: Any = os.environ.get("ATOMR_TEST_BACKEND", "auto")
    failures: Counter[str] = Counter()
    examples: dict[str, str] = {}
    begin = time.monotonic()
    slowest: list[tuple[float, str]] = []
    async with open_device(0, backend=backend, isolation=options.isolation) as device:
        for row, dtype, case in visits(rows, options.seed, options.part):
            started = time.monotonic()
            if started - begin > options.seconds:
                break
            try:
                with trio.fail_after(60):
                    await check(device, row, dtype, case, row.library)
            except DeviceLost:
                raise
            except Exception as error:
                words = "refused" if isinstance(error, Unsupported) else type(error).__name__
                text = " ".join(str(error).split())
                digest = re.sub(r"(?<!result )\d", "#", text[:60])
                key = f"{row.name} {dtype} {words}: {digest}"
                failures[key] += 1
                if key not in examples:
                    frame = traceback.extract_tb(error.__traceback__)[-1]
                    where = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
                    notes = getattr(error, "__notes__", [str(dict(case))])  # with the seed
                    examples[key] = f"{text[:300]} [{where}] {'; '.join(notes)}"
            slowest.append((time.monotonic() - started, f"{row.name} {dtype}"))
        print(device.dnn.statistics())
    for key, count in failures.most_common(options.most):
        print(f"{count:4d} {key}\n     {examples[key]}")
    for library, tally in sorted(TALLIES.items()):
        print(f"{library}: {tally.cases} cases of {len(tally.operations)} operations are right")
    print(f"{sum(failures.values())} failures of {len(failures)} kinds")
    for seconds, what in sorted(slowest, reverse=True)[:5]:
        print(f"{seconds:7.2f} s {what}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    trio.run(main)
