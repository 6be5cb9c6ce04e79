"""Real faults of a GPU in a suite of 1,000 tests of torch and CuPy, 50 of them bad.

    python tests/soak/isolated.py                      # --tests 1000 --jobs 8 --seconds 600
    python tests/soak/isolated.py --compare FILES      # others' tests, with --isolate and without

Needs torch, CuPy and pytest; of this package, only what pytest's plugin imports. Several sessions
run parts of the suite at the same time. Prints how many tests passed, failed by the cause that
was planted, and ended otherwise; then how the suite ends in one session without ``--isolate``. The
exit status says whether exactly the bad tests failed, each with its cause. Sessions that are not
over in time are interrupted, and tests that did not run are counted as that.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PLUGIN: Final = "atomr_accel.testing.pytest_plugin"
SUITE_SETTINGS: Final = "[pytest]\n"  # or settings of a folder above would count

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
    "launch('spin', cupy.zeros(1, cupy.int32))": "took longer than",
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
    (folder / "pytest.ini").write_text(SUITE_SETTINGS, encoding="utf-8")
    return causes


def session(tests: Path, report: Path, *options: str, until: float) -> str:
    """Run pytest on a file or folder; return how it ended.

    Args:
        tests: what to run.
        report: where the report goes.
        *options: pytest's.
        until: the time, as ``time.monotonic``, at which it is interrupted.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    begin = time.monotonic()
    with subprocess.Popen(
        [*command, str(tests), f"--junitxml={report}", "-ojunit_logging=all", *options],
        cwd=tests if tests.is_dir() else tests.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        late = ""
        for last_call in signal.SIGINT, signal.SIGKILL:  # by the first one it writes its report
            try:
                output, _ = process.communicate(timeout=max(0.0, until - time.monotonic()))
                break
            except subprocess.TimeoutExpired:
                process.send_signal(last_call)
                late, until = ", interrupted", time.monotonic() + 15
        else:
            output, _ = process.communicate()
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if "--isolate: a device was used" in line:
            print(line)
    last = lines[-1] if lines else "no output"
    return f"status {process.returncode}{late}, {time.monotonic() - begin:.0f} s: {last}"


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


def run_suite(tests: int, jobs: int, limit: float, seconds: float) -> bool:
    """Run the suite, print the counts, and return whether all is as it should be."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        causes = write_suite(folder, tests, jobs)
        files = sorted(folder.glob("test_part_*.py"))
        options = ("--isolate", f"--isolate-timeout={limit:g}", "--tb=short")

        def run(file: Path) -> str:
            return session(file, file.with_suffix(".xml"), *options, until=begin + seconds)

        with ThreadPoolExecutor(jobs) as pool:
            ends = [*pool.map(run, files)]
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
            if outcome == "missing":
                counts["tests that did not run"] += 1
            elif cause is None and outcome == "passed":
                counts["good tests that passed"] += 1
            elif cause and outcome in {"failure", "error"} and re.search(cause, said):
                counts[f"bad tests with {cause}"] += 1
            else:
                counts["others"] += 1
                print(f"{test}: {outcome}, planted {cause}: {said[-600:]}")
        print(*ends, sep="\n")
        print(f"--isolate: {tests} tests, {len(causes)} bad, {jobs} sessions, {took:.0f} s")
        for what, count in sorted(counts.items()):
            print(f"  {count:5} {what}")
        sys.stdout.flush()
        until = time.monotonic() + max(10.0, seconds - took)
        print("without:", session(folder, folder / "without.xml", "--tb=no", until=until))
        return not (counts["others"] or counts["tests that did not run"])


def compare(files: list[Path], jobs: int, seconds: float) -> bool:
    """Run others' tests with ``--isolate`` and without; print and return whether all are equal.

    A session runs a file. Those without come first, and compile kernels for those with.
    """
    until = time.monotonic() + seconds
    found: list[dict[str, tuple[str, str]]] = []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        for options in (), ("--isolate",):
            begin = time.monotonic()
            reports = [Path(name, f"{len(found)}-{number}.xml") for number in range(len(files))]
            run = partial(_with_options, options, until)
            for file, end in zip(files, pool.map(run, files, reports), strict=True):
                print(f"{file.name} {' '.join(options)}: {end}", flush=True)
            found.append({})
            for file, report in zip(files, reports, strict=True):
                for test, outcome in outcomes(report).items():
                    found[-1][f"{file.name}::{test}"] = outcome
            print(
                f"{' '.join(options) or 'without'}: {time.monotonic() - begin:.0f} s, "
                f"{dict(Counter(outcome for outcome, _ in found[-1].values()))}",
                flush=True,
            )
    every = sorted(found[0].keys() | found[1].keys())
    missing = [test for test in every if not all(test in each for each in found)]
    apart = 0
    for test in every:
        (plain, _), (isolated, said) = (each.get(test, ("missing", "")) for each in found)
        if test not in missing and plain != isolated:
            apart += 1
            print(f"  {test}: {plain}, isolated {isolated}: {said[-600:]}")
    equal = len(every) - len(missing) - apart
    print(f"{equal} tests are equal, {apart} are not, {len(missing)} did not run in both")
    return bool(equal) and not (apart or missing)


def _with_options(options: tuple[str, ...], until: float, file: Path, report: Path) -> str:
    return session(file.resolve(), report, *options, until=until)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=8)
    # Many contexts begin at the same time.
    parser.add_argument("--limit", type=float, default=30.0, help="seconds that a test may take")
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds for all of them")
    parser.add_argument("--compare", nargs="+", type=Path)
    told = parser.parse_args()
    if told.compare:
        sys.exit(not compare(told.compare, told.jobs, told.seconds))
    sys.exit(not run_suite(told.tests, told.jobs, told.limit, told.seconds))


if __name__ == "__main__":
    main()
