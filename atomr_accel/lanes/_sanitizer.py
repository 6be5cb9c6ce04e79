"""Hosts under NVIDIA's compute-sanitizer, which names the faulty kernel and its line.

The sanitizer starts the host as its child, and writes its report to the host's standard error
(``_host_output``). The report arrives a moment after the driver has reported the fault, so a
context then waits for the host's end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from .._errors import LibraryMissing
from ..wire.toolkit import find_tool

SanitizerTool = Literal["memcheck", "racecheck", "synccheck"]

_NAME: Final = "compute-sanitizer"

_PREFIX: Final = "========="

_ERRORS: Final = 5
"""Number of errors that a report shows; each takes some lines."""


class Sanitizer(NamedTuple):
    """A compute-sanitizer to run hosts under.

    Attributes:
        path: the program.
        tool: the tool of that program.
    """

    path: str
    tool: SanitizerTool

    def command(self, err: int) -> tuple[str, ...]:
        """Return the words that precede a host's command.

        Args:
            err: the pipe to which the report goes.
        """
        return (
            self.path,
            *("--tool", self.tool),
            *("--log-file", f"/proc/self/fd/{err}"),
            *("--print-limit", str(_ERRORS)),
            *("--show-backtrace", "device"),
            # Libraries ask for what there may not be; only what kernels do is of interest.
            *("--report-api-errors", "no"),
            *("--target-processes", "all"),
        )


def find_sanitizer(tool: SanitizerTool) -> Sanitizer:
    """Find the program in the toolkit or in a package.

    Args:
        tool: the tool of that program.

    Raises:
        LibraryMissing: it is not installed.
    """
    path = find_tool(_NAME)
    if path is None:
        raise LibraryMissing(
            f"sanitizer={tool!r} needs {_NAME}, which is neither on the PATH nor in "
            "/usr/local/cuda: it comes with the CUDA toolkit, and with "
            "pip install nvidia-cuda-sanitizer-api (CUDA 13)",
            library=_NAME,
        )
    return Sanitizer(path, tool)


def first_error(lines: Iterable[str]) -> str | None:
    """Return the first error of a report in one line, with its kernel, line and thread.

    Args:
        lines: the report, perhaps among others.
    """
    texts = [line[len(_PREFIX) :] for line in lines if line.startswith(_PREFIX)]
    for at, text in enumerate(texts[1:], start=1):
        if re.match(r"\s+at\b", text):
            more = texts[at + 1 : at + 2]
            by = [each for each in more if re.match(r"\s+by\b", each)]
            return " ".join(each.strip() for each in (texts[at - 1], text, *by))
    return None
