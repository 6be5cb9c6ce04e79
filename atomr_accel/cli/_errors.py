"""Ends of a command: its exit code, and its message on failure, of which it raises a `Refusal`."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExitCode(IntEnum):
    """Exit codes of ``atomr-accel``. ``trace`` and ``dashboard`` return their program's code."""

    OK = 0
    """Success: the command ran and found no problem."""
    WRONG = 1
    """The command ran and found a problem: a failed check, a damaged file, a bad verdict."""
    USAGE = 2
    """The command line is invalid."""
    UNAVAILABLE = 3
    """The command could not run: the device or program is missing, or a package is not
    installed."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE = 141
    """The reader of the output is gone."""


class Refusal(Exception):
    """A command cannot be done; the message says why, and what to do."""

    def __init__(self, message: str, code: ExitCode = ExitCode.UNAVAILABLE) -> None:
        super().__init__(message)
        self.code = code


class Misunderstood(Refusal):
    """A command line is invalid."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message, ExitCode.USAGE)
        self.usage = usage


class CannotWrite(Exception):
    """Standard output cannot be written, for example because the disk is full."""


def standard_output() -> TextIO:
    """Return standard output, which gets the results."""
    if sys.stdout is None:
        raise CannotWrite("cannot write the output: standard output is closed")
    return sys.stdout


def print_text(text: str) -> None:
    """Print text without changes."""
    output = standard_output()
    with writing():
        output.write(text)
        output.flush()


@contextmanager
def writing() -> Iterator[None]:
    """Turn errors of the block, which writes output, into ``CannotWrite``."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CannotWrite(f"cannot write the output: {error.strerror}") from error
