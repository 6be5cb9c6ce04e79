"""``atomr-accel trace``: a program, and a timeline of each of its systems with devices."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ..device import System
from ..telemetry import trace
from ._documents import TraceDocument
from ._errors import Refusal
from ._output import path_text
from ._programs import run_beside

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from ..actors import ActorSystem
    from ._output import CommandOutput


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Run the program."""
    first = Path(args.output)
    _require_writable(first)
    numbers = count()
    files: list[Path] = []
    problems: list[str] = []

    def told(file: Path, error: OSError) -> str:
        return f"{path_text(file)} cannot be written: {error.strerror}"

    @asynccontextmanager
    async def timeline(system: ActorSystem) -> AsyncIterator[None]:
        if not isinstance(system, System):  # one without devices
            yield
            return
        file = numbered(first, next(numbers))
        ended = False
        try:
            async with trace(system, file):
                files.append(file)
                yield
                ended = True
        except OSError as error:
            if file not in files:
                raise Refusal(told(file, error)) from error
            if not ended:  # it is the program's
                raise
            files.remove(file)
            problems.append(told(file, error))

    try:
        code = run_beside(timeline, args, as_json=out.as_json)
    except Refusal:
        raise
    except BaseException:  # an interrupted program has a timeline too
        _tell(files, problems)
        raise
    document = TraceDocument(
        program=path_text(args.program),
        files=_tell(files, problems),
        exit_code=code,
        problem="; ".join(problems) or None,
    )
    out.document(document)
    return code


def _require_writable(file: Path) -> None:
    """Refuse a file that cannot be opened, before the program runs; none is left behind."""
    there = file.exists()
    try:
        file.open("ab").close()
    except OSError as error:
        reason = f"{path_text(file)} cannot be written: {error.strerror}"
        raise Refusal(f"{reason}; say where with -o") from error
    if not there:
        file.unlink()


def _tell(files: list[Path], problems: list[str]) -> list[str]:
    """Report on standard error which files were written.

    Returns:
        The names of the files with content. If the program itself failed too, only this report
        shows that its timeline failed.
    """
    names = [path_text(file) for file in files if file.exists() and file.stat().st_size]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if names:
        sys.stderr.write(f"wrote {', '.join(names)}: open at https://ui.perfetto.dev\n")
    elif not (files or problems):
        sys.stderr.write(
            "nothing was written: the program has opened no system that may have devices\n"
        )
    elif not problems:
        sys.stderr.write(f"nothing was written to {', '.join(map(path_text, files))}\n")
    return names


def numbered(file: Path, number: int) -> Path:
    """Return the name of a further file: ``run-2.pftrace`` is the second."""
    return file if number == 0 else file.with_stem(f"{file.stem}-{number + 1}")
