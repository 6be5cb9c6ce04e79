"""Random tests of every library against NumPy, SciPy and torch.

``python -m tests.differential array fft --cases 1000 --seed 7`` runs a thousand random cases of
each library, in one process per core. It prints the numbers of right, refused and wrong results.
``python -m tests.differential array --case 123`` repeats the single case with that seed. The exit
code is 1 if a result was wrong, a context ended, or a process died or hung.

All workers take chunks of cases from one queue, so that slow libraries get more of them. They share
compiled kernels in one folder, and the structures of a library's cases repeat, with other values.
``--log FILE`` appends each chunk's counts to a file. The same command continues from there after a
time-out: ``python -m tests.differential --backend cuda --cases 20000 --seconds 540 --log FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from atomr_accel.executors.disk_cache import FOLDER_VARIABLE

from .worker import seed_of

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]

CACHE: Final = Path(tempfile.gettempdir()) / f"atomr-differential-{os.geteuid()}"

CHUNK: Final = 250
"""Cases that a worker is given at a time, at most."""

SHOWN: Final = 6
"""Failures of a library that are printed; ``--report`` has all."""


def libraries() -> list[str]:
    """The modules of this folder that check something."""
    return sorted(
        path.stem
        for path in FOLDER.glob("*.py")
        if re.search(r"^async def check\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def calls_of(library: str) -> int:
    """Return the number of calls in one case of a library; the number of cases is divided by it."""
    text = (FOLDER / f"{library}.py").read_text(encoding="utf-8")
    found = re.search(r"^EACH: Final = (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 1


@dataclass
class Tally:
    """Counts of the cases of one library."""

    checked: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    absent: str = ""
    seconds: float = 0.0

    def count(self, kind: str, seed: int, reason: str) -> None:
        """Take note of a case."""
        if kind == "checked":
            self.checked += 1
        elif kind == "refused":
            self.refused[reason] += 1
            self.examples.setdefault(reason, seed)
        elif kind == "absent":
            self.absent = reason
        else:
            self.failures.append({"kind": kind, "seed": seed, "reason": reason})

    def add(self, other: Tally) -> None:
        """Add the counts of a part."""
        self.checked += other.checked
        self.refused.update(other.refused)
        self.examples = other.examples | self.examples
        self.failures += other.failures
        self.absent = self.absent or other.absent
        self.seconds += other.seconds

    @property
    def cases(self) -> int:
        """The number of cases."""
        return self.checked + self.refused.total() + len(self.failures)

    def number(self, kind: str) -> int:
        """Return the number of failures of one kind."""
        return sum(each["kind"] == kind for each in self.failures)


class Run:
    """A run of many workers."""

    def __init__(self, words: argparse.Namespace) -> None:
        self._words = words
        self._until = None if words.seconds is None else time.monotonic() + words.seconds
        self._lock = threading.Lock()
        self.tallies = {library: Tally() for library in words.libraries}
        self.backend = words.backend
        self._chunks: deque[tuple[str, list[int]]] = deque()
        self._log: Path | None = words.log
        if words.case is not None:
            self._chunks.append((words.libraries[0], [words.case]))
            return
        cases = {library: -(-words.cases // calls_of(library)) for library in words.libraries}
        size = max(1, min(CHUNK, words.cases // (2 * words.jobs)))
        for first in range(0, words.cases, size):
            for library, count in cases.items():
                indices = range(first, min(first + size, count))
                seeds = [seed_of(library, words.seed, index) for index in indices]
                if seeds:
                    self._chunks.append((library, seeds))
        self._continue()

    def _continue(self) -> None:
        """Leave out the chunks that the log has."""
        if self._log is None or not self._log.exists():
            return
        done: dict[tuple[str, int, int], dict[str, Any]] = {}
        for line in self._log.read_text(encoding="utf-8").splitlines():
            try:
                told = json.loads(line)
            except ValueError:  # the program was killed as it wrote this
                continue
            done[told["library"], told["first"], told["cases"]] = told["tally"]
        for library, seeds in list(self._chunks):
            tally = done.get((library, seeds[0], len(seeds)))
            if tally is not None:
                self._chunks.remove((library, seeds))
                self.tallies[library].add(Tally(**tally | {"refused": Counter(tally["refused"])}))

    def _note(self, library: str, seeds: list[int], part: Tally) -> None:
        """Count a chunk, and append it to the log if all of it was run."""
        with self._lock:
            self.tallies[library].add(part)
            if self._log is None or part.cases < len(seeds):
                return
            told = {"library": library, "first": seeds[0], "cases": len(seeds)}
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(told | {"tally": vars(part)}) + "\n")

    def run(self) -> None:
        """Run all of it."""
        jobs = min(self._words.jobs, len(self._chunks))
        threads = [threading.Thread(target=self._work, name=f"worker {at}") for at in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _next(self) -> tuple[str, list[int]] | None:
        with self._lock:
            while self._chunks:
                if self._until is not None and time.monotonic() > self._until:
                    return None
                library, seeds = self._chunks.popleft()
                if not self.tallies[library].absent:
                    return library, seeds
            return None

    def _work(self) -> None:
        worker: Worker | None = None
        left: list[int] = []
        library, seeds, part = "", left, Tally()
        while True:
            if not left:
                if seeds:
                    self._note(library, seeds, part)
                seeds = []
                if (chunk := self._next()) is None:
                    break
                library, left = chunk
                seeds, part = left, Tally()
            if worker is None:
                worker = Worker(self._words.backend, self._words.hang, self._words.cache)
            begun = time.monotonic()
            current: int | None = None
            dead = "died"
            try:
                worker.ask(library=library, seeds=left, until=self._until)
                while not (answer := worker.answer()).get("done"):
                    if "backend" in answer:
                        self.backend = answer["backend"]
                    elif "begin" in answer:
                        current = answer["begin"]
                    else:
                        part.count(answer["kind"], answer["end"], answer["reason"])
                        left = left[1:]
                        current = None
                left = []
            except TimeoutError:
                dead = "hung"
            except (OSError, EOFError):
                pass
            else:
                dead = ""
            part.seconds += time.monotonic() - begun
            if dead:
                words = worker.end(dead)
                worker = None
                part.count(dead, current or -1, words)
                left = left[1:]
        if worker is not None:
            worker.close()


class Worker:
    """A process that runs cases."""

    def __init__(self, backend: str, hang: float, cache: Path) -> None:
        self._hang = hang
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", backend],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **threads, FOLDER_VARIABLE: str(cache)},
        )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._buffer = b""

    def ask(self, **words: Any) -> None:
        """Send a chunk of cases."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next line; raises TimeoutError if none comes, EOFError if none ever will."""
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not self._selector.select(self._hang):
                raise TimeoutError
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self, how: str) -> str:
        """End it; the last that it said."""
        if how == "hung":
            self._process.send_signal(signal.SIGUSR1)  # it prints its stack
            time.sleep(1)
            self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-3000:]
        self._free()
        return f"the process {how} ({self._process.returncode})\n{said}"

    def close(self) -> None:
        """Have it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._free()

    def _free(self) -> None:
        self._selector.close()
        self._errors.close()
        assert self._process.stdout is not None
        self._process.stdout.close()


def show(run: Run, seconds: float) -> bool:
    """Print the findings, and return whether all of them are right."""
    good = True
    head = f"{'library':16}{'checked':>9}{'refused':>9}{'wrong':>7}{'faults':>8}{'died':>6}"
    print(f"backend {run.backend}, {seconds:.0f} s\n{head}{'hung':>6}{'cases/s':>9}")
    for library, tally in run.tallies.items():
        if tally.absent:
            print(f"{library:16} not here: {tally.absent.splitlines()[0][:90]}")
            continue
        counts = [tally.number(kind) for kind in ("wrong", "fault", "died", "hung")]
        refused = sum(tally.refused.values())
        rate = (tally.checked + refused + sum(counts)) / max(tally.seconds, 1e-9)
        good &= not any(counts)
        print(
            f"{library:16}{tally.checked:9}{refused:9}{counts[0]:7}{counts[1]:8}{counts[2]:6}"
            f"{counts[3]:6}{rate:9.1f}"
        )
    for library, tally in run.tallies.items():
        for reason, count in tally.refused.most_common():
            print(f"{library} refused {count}, as --case {tally.examples[reason]}: {reason}")
    for library, tally in run.tallies.items():
        alike = Counter(re.sub(r"\d+", "#", each["reason"])[:60] for each in tally.failures)
        shown: Counter[str] = Counter()
        for each in tally.failures:
            kind = re.sub(r"\d+", "#", each["reason"])[:60]
            shown[kind] += 1
            if shown[kind] > 2 or shown.total() > SHOWN:
                continue
            print(f"\n{library} --case {each['seed']}: {each['kind']} (1 of {alike[kind]} alike)")
            print("    " + "\n    ".join(each["reason"].splitlines()[:12]))
    return good


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    there = libraries()
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=", ".join(there))
    parser.add_argument(
        "--cases",
        type=int,
        default=1000,
        help="of each library; fewer where a case is several calls",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="the seed of a single case of one library")
    parser.add_argument("--backend", choices=["cpu", "cuda", "auto"], default="auto")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, help="begin no more cases after so long")
    parser.add_argument("--hang", type=float, default=300, help="seconds that a case may take")
    parser.add_argument("--log", type=Path, help="a file for each chunk's counts; continues it")
    parser.add_argument(
        "--cache", type=Path, default=CACHE, help="a folder for kernels that workers share"
    )
    parser.add_argument("--report", type=Path, help="a file for all that was found, as JSON")
    words = parser.parse_args()
    if unknown := set(words.libraries) - set(there):
        parser.error(f"no such library: {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    words.libraries = words.libraries or there
    if words.case is not None and len(words.libraries) != 1:
        parser.error("--case needs the name of its library")
    print(f"seed {words.seed}" if words.case is None else f"case {words.case}", flush=True)
    begun = time.monotonic()
    run = Run(words)
    run.run()
    seconds = time.monotonic() - begun
    if words.report is not None:
        found = {
            library: {**vars(tally), "refused": dict(tally.refused)}
            for library, tally in run.tallies.items()
        }
        words.report.write_text(json.dumps(found, indent=1), encoding="utf-8")
    good = show(run, seconds)
    sys.exit(not good)


if __name__ == "__main__":
    main()
