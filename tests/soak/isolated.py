"""Real faults of a GPU in a suite of 1,000 tests of torch and CuPy, 50 of them bad.

    python tests/soak/isolated.py                      # --tests 1000 --jobs 8
    python tests/soak/isolated.py --compare FILES      # others' tests, with --isolate and without

Needs torch, CuPy and pytest; of this package, only what pytest's plugin imports. Several sessions
run parts of the suite at the same time. Prints how many tests passed, failed by the cause that
was planted, and ended otherwise; then how a part of the suite ends without ``--isolate``. The exit
status says whether exactly the bad tests failed, each with its cause.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PLUGIN: Final = "atomr_accel.testing.pytest_plugin"
LIMIT: Final = 30  # seconds: many contexts begin at the same time
WITHOUT_LIMIT: Final = 60

HEAD: Final = '''
import ctypes, os
import cupy, torch

SOURCE = r"""
extern "C" __global__ void illegal() { *(volatile int*)16 = 1; }
extern "C" __global__ void misaligned(char* x) { *(volatile int*)(x + 1) = 1; }
extern "C" __global__ void trap() { asm("trap;"); }
extern "C" __global__ void spin(volatile int* x) { while (!*x) { } }
"""

def launch(name, *args):
    cupy.RawKernel(SOURCE, name)((1,), (1,), args)

def out_of_bounds():
    return torch.zeros(3, device="cuda")[torch.tensor([5], device="cuda")]
'''

GOOD: Final = (
    "x = torch.arange(1000.0, device='cuda'); assert (x * 2).sum().item() == 999000.0",
    "x = cupy.arange(1000); assert int((x * 2).sum()) == 999000",
)

BAD: Final = {
    "launch('illegal')": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "launch('illegal'); cupy.cuda.Device().synchronize()": "cudaErrorIllegalAddress",
    "torch.zeros(1, device='cuda'); launch('illegal'); torch.cuda.synchronize()": "illegal memory",
    "launch('misaligned', cupy.zeros(8, cupy.int8))": "CUDA_ERROR_MISALIGNED_ADDRESS",
    "launch('trap')": "CUDA_ERROR_(ILLEGAL_INSTRUCTION|LAUNCH_FAILED)",
    "out_of_bounds()": "CUDA_ERROR_ASSERT",
    "out_of_bounds().tolist()": "device-side assert",
    "launch('spin', cupy.zeros(1, cupy.int32))": f"took longer than {LIMIT} s",
    "torch.zeros(1, device='cuda'); os._exit(3)": "exited with status 3",
    "cupy.zeros(1); os.abort()": "SIGABRT",
    "cupy.zeros(1); ctypes.string_at(0)": "SIGSEGV",
}
"""Statements, and what the report of a test with one has to say."""


def write_suite(folder: Path, tests: int, files: int) -> dict[str, str]:
    """Write the tests; return the bad ones' names and causes."""
    causes: dict[str, str] = {}
    texts = [[HEAD] for _ in range(files)]
    for i in range(tests):
        statement = GOOD[i % len(GOOD)]
        if i % 20 == 7:
            statement, causes[f"test_{i}"] = [*BAD.items()][i // 20 % len(BAD)]
        texts[i * files // tests].append(f"def test_{i}():\n    {statement}\n")
    for number, text in enumerate(texts):
        (folder / f"test_part_{number}.py").write_text("\n".join(text), encoding="utf-8")
    return causes


def session(file: Path, report: Path, *options: str, limit: float | None = None) -> str:
    """Run pytest on a file; return how it ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, str(file), f"--junitxml={report}", "-ojunit_logging=all", *options],
            cwd=file.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return f"not over after {limit:g} s"
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "no output")
    for line in done.stdout.splitlines():
        if "--isolate: a device was used" in line:
            print(line.strip())
    return f"status {done.returncode}: {last}"


def outcomes(report: Path) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test of a report, and all that was said of it."""
    if not report.exists():
        return {}
    found = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
        name = f"{case.get('classname')}::{case.get('name')}"
        said = "".join(case.itertext()) + "".join(child.get("message", "") for child in case)
        found[name] = (min(kinds, default="passed"), said)
    return found


def run_suite(tests: int, jobs: int) -> bool:
    """Run the suite, print the counts, and return whether all is as it should be."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        causes = write_suite(folder, tests, jobs)
        files = sorted(folder.glob("test_part_*.py"))
        options = ("--isolate", f"--isolate-timeout={LIMIT}")
        begin = time.monotonic()
        with ThreadPoolExecutor(jobs) as pool:
            ends = [
                *pool.map(lambda file: session(file, file.with_suffix(".xml"), *options), files)
            ]
        took = time.monotonic() - begin
        found = {
            case.rpartition("::")[2]: outcome
            for file in files
            for case, outcome in outcomes(file.with_suffix(".xml")).items()
        }
        counts: Counter[str] = Counter()
        for test in (f"test_{i}" for i in range(tests)):
            outcome, said = found.get(test, ("missing", ""))
            cause = causes.get(test)
            if cause is None:
                wrong = outcome != "passed"
                counts["good tests that passed"] += not wrong
            else:
                wrong = outcome not in {"failure", "error"} or not re.search(cause, said)
                counts[f"bad tests with {cause}"] += not wrong
            if wrong:
                counts["others"] += 1
                print(f"{test}: {outcome}, planted {cause}: {said[-600:]}")
        print(*ends, sep="\n")
        print(f"--isolate: {tests} tests, {len(causes)} bad, {jobs} sessions, {took:.0f} s")
        for what, count in sorted(counts.items()):
            print(f"  {count:5} {what}")
        print("without:", session(files[0], folder / "without.xml", limit=WITHOUT_LIMIT))
        return not counts["others"]


def compare(files: list[Path]) -> bool:
    """Run others' tests with ``--isolate`` and without; print and return whether all are equal."""
    same = True
    with tempfile.TemporaryDirectory() as name:
        for file in files:
            plain, isolated = Path(name, "plain.xml"), Path(name, "isolated.xml")
            for report, options in (plain, ()), (isolated, ("--isolate", "-q")):
                report.unlink(missing_ok=True)
                begin = time.monotonic()
                end = session(file.resolve(), report, *options)
                print(f"{file} {' '.join(options)}: {end} ({time.monotonic() - begin:.0f} s)")
            one, other = outcomes(plain), outcomes(isolated)
            for test in sorted(one.keys() | other.keys()):
                pair = [each.get(test, ("missing", "")) for each in (one, other)]
                if pair[0][0] != pair[1][0]:
                    same = False
                    print(f"  {test}: {pair[0][0]}, isolated {pair[1][0]}: {pair[1][1][-600:]}")
    print("equal" if same else "not equal")
    return same


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--compare", nargs="+", type=Path)
    told = parser.parse_args()
    sys.exit(not (compare(told.compare) if told.compare else run_suite(told.tests, told.jobs)))


if __name__ == "__main__":
    main()
