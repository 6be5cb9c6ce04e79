"""``atomr-accel explain``: reports of faults in a file, or the fault of a journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from .._errors import Unsupported
from .._reports import FaultReport
from ..replay import JournalError, explain
from ._documents import ExplainDocument, JournalPart
from ._errors import ExitCode, Refusal
from ._output import path_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ._output import CommandOutput

_FIRST: Final = 1 << 16
"""Bytes of a file that show whether it is text of JSON."""


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Print the reports in a file of JSON, or look for the op behind the fault of a journal.

    Returns:
        ``WRONG`` if there is a fault.
    """
    file = Path(args.file)
    try:
        with file.open("rb") as opened:
            first = opened.read(_FIRST)
        journal = _found(file, args.output) if not _is_text(first) else None
        reports = [] if journal is not None else [*_reports(file)]
    except OSError as error:
        raise Refusal(f"{path_text(file)} cannot be read: {error.strerror}") from error
    if journal is None and not reports:
        raise Refusal(f"{path_text(file)} has no report of a fault, and is no journal")
    for at, report in enumerate(reports):
        if at:
            out.line()
        out.line(str(report))
    if journal is not None:
        out.line(journal.text)
    out.document(ExplainDocument(file=path_text(file), reports=reports, journal=journal))
    return ExitCode.WRONG


def _is_text(first: bytes) -> bool:
    return b"\0" not in first and first.lstrip()[:1] == b"{"


def _reports(file: Path) -> Iterator[FaultReport]:
    """Yield the reports in a file: one of its own, or those in the lines of a log."""
    with file.open("rb") as lines:
        for line in lines:
            if b"status_name" not in line:
                continue
            try:
                told: Any = json.loads(line)
                yield FaultReport.from_json(told.get("report", line))
            except (ValueError, AttributeError, TypeError):  # another record, or not JSON
                continue


def _found(file: Path, output: str | None) -> JournalPart:
    async def search() -> JournalPart:
        found = await explain(file, out=output)
        return JournalPart(
            fault=found.fault,
            call=found.call,
            last=list(found.last),
            minimal=list(found.minimal),
            program=found.program,
            trials=found.trials,
            text=str(found),
        )

    try:
        return trio.run(search)
    except (JournalError, Unsupported) as error:
        raise Refusal(f"{path_text(file)}: {error}") from error
