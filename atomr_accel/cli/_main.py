"""``atomr-accel``: finds the command, runs it, and makes an exit code of how it ended."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from ._arguments import COMMANDS, parsed
from ._errors import CannotWrite, ExitCode, Misunderstood, Refusal, writing
from ._output import CommandOutput

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


class _CommandModule(Protocol):
    def run(self, args: argparse.Namespace, out: CommandOutput) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the words after ``atomr-accel``; by default, those of this process.

    Returns:
        What to exit with; see ``ExitCode``.
    """
    _fill_standard_descriptors()
    for stream in (sys.stdout, sys.stderr):
        # A locale that cannot say something must not end a command.
        with contextlib.suppress(AttributeError, ValueError):  # not everything can be reconfigured
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _run(argv)
        if sys.stdout is not None:
            with writing():
                sys.stdout.flush()  # here, where a missing reader can still be reported
    except BrokenPipeError:
        _discard_output()
        return ExitCode.PIPE
    except CannotWrite as error:
        if sys.stdout is not None:
            _discard_output()
        if sys.stderr is not None:
            sys.stderr.write(f"atomr-accel: {error}\n")
        return ExitCode.WRONG
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        return ExitCode.INTERRUPTED
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = parsed(sys.argv[1:] if argv is None else argv)
    except SystemExit:  # help, a version or a schema was printed
        return ExitCode.OK
    except Misunderstood as error:
        words = sys.argv[1:] if argv is None else argv
        names = {command.name for command in COMMANDS}
        out = CommandOutput(as_json="--json" in words)
        if not out.as_json and sys.stderr is not None:
            sys.stderr.write(error.usage)
        out.refuse(next((w for w in words if w in names), ""), str(error), error.code)
        return error.code
    out = CommandOutput(as_json=args.json)
    try:
        command = cast("_CommandModule", import_module(f"._{args.command}", __package__))
        return command.run(args, out)
    except Refusal as refusal:
        out.refuse(args.command, str(refusal), refusal.code)
        return refusal.code
    except BaseException as error:
        if out.as_json and not out.printed and _is_interrupt(error):
            out.refuse(args.command, "it was interrupted", ExitCode.INTERRUPTED)
        raise


def _is_interrupt(error: BaseException) -> bool:
    """Return True for Ctrl-C alone; inside tasks, trio wraps it in a group."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(KeyboardInterrupt)[1] is None
    return isinstance(error, KeyboardInterrupt)


def _fill_standard_descriptors() -> None:
    """Open the null device in place of missing standard input, output and errors.

    Otherwise the next socket would get one of these numbers, and receive the printed text.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free


def _discard_output() -> None:
    """Send buffered output to the null device, or Python would complain as it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # a stand-in for the output has no descriptor
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
