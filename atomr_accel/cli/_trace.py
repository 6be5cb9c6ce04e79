"""``atomr-accel trace``: a program, and a timeline of each of its systems with devices."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
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
    from ._output import Output


def run(args: argparse.Namespace, out: Output) -> int:
    """Run the program.

    Returns:
        What it exits with.

    Raises:
        Refusal: there is no place for the timeline.
    """
    first = Path(args.output)
    if first.is_dir() or not os.access(first.parent, os.W_OK | os.X_OK):
        raise Refusal(f"{path_text(first)} cannot be written; say where with -o")
    files: list[Path] = []

    @asynccontextmanager
    async def timeline(system: ActorSystem) -> AsyncIterator[None]:
        if not isinstance(system, System):  # one without devices
            yield
            return
        file = numbered(first, len(files))
        files.append(file)
        async with trace(system, file):
            yield

    try:
        code = run_beside(timeline, args, as_json=out.as_json)
    finally:  # a program that was interrupted has a timeline, too
        names = [path_text(file) for file in files]
        sys.stderr.write(
            f"wrote {', '.join(names)}: open at https://ui.perfetto.dev\n"
            if names
            else "nothing was written: the program has opened no system that may have devices\n"
        )
    out.document(TraceDocument(program=path_text(args.program), files=names, exit_code=code))
    return code


def numbered(file: Path, number: int) -> Path:
    """The name of another file: ``run-2.pftrace`` is the second."""
    return file if number == 0 else file.with_stem(f"{file.stem}-{number + 1}")
