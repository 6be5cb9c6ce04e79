"""How a command ends: its exit code, and what it says if it could not do what it was asked."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExitCode(IntEnum):
    """What ``atomr-accel`` exits with. ``trace`` and ``dashboard`` exit as their program does."""

    OK = 0
    """It was done, and what was looked at is well."""
    WRONG = 1
    """It was done, and something is wrong: a check that failed, a damaged file, a bad verdict."""
    USAGE = 2
    """The words were not understood."""
    UNAVAILABLE = 3
    """It could not be done: no such device, no such program, something is not installed."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE = 141
    """Whoever read the output has gone."""


class Refusal(Exception):
    """A command cannot be done; the message says why, and what to do.

    Args:
        message: that.
        code: what to exit with.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.UNAVAILABLE) -> None:
        super().__init__(message)
        self.code = code


class Misunderstood(Refusal):
    """The words of a command line were not understood.

    Args:
        message: what is wrong with them.
        usage: how the command is used, for people.
    """

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message, ExitCode.USAGE)
        self.usage = usage


class CannotWrite(Exception):
    """Standard output does not take what is written: the disk is full, say."""


def standard_output() -> TextIO:
    """Where results go.

    Raises:
        CannotWrite: it was closed before the command began.
    """
    if sys.stdout is None:
        raise CannotWrite("cannot write the output: standard output is closed")
    return sys.stdout


def print_text(text: str) -> None:
    """Print text as it is.

    Raises:
        CannotWrite: it was not written.
        BrokenPipeError: nobody reads it any more.
    """
    output = standard_output()
    with writing():
        output.write(text)
        output.flush()


@contextmanager
def writing() -> Iterator[None]:
    """Tell errors of writing the output from all others.

    Raises:
        CannotWrite: it was not written.
        BrokenPipeError: nobody reads it any more.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CannotWrite(f"cannot write the output: {error.strerror}") from error
