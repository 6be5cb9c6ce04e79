"""Running a user's program in this process as `python` would, with a companion for its systems."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..actors.system import beside_systems
from ._errors import ExitCode, Refusal
from ._output import path_text, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ..actors.system import Companion


def run_beside(companion: Companion, args: argparse.Namespace, *, as_json: bool) -> int:
    """Run a program, with a companion for each system that it opens.

    Args:
        companion: the context manager to open around each system.
        args: ``program``, ``module`` and ``arguments``.
        as_json: send the program's output to standard error, because standard output is one JSON
            object.

    Raises:
        KeyboardInterrupt: the program was interrupted, and did not handle that.
    """
    if not args.module and not Path(args.program).exists():
        raise Refusal(f"there is no {path_text(args.program)}")
    with beside_systems(companion), _as_main(args):
        if not as_json:
            return _ended(args)
        with _output_aside(), redirect_stdout(sys.stderr):
            return _ended(args)


@contextmanager
def _output_aside() -> Iterator[None]:
    """Redirect standard output to standard error, also for hosts and child processes."""
    output = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        os.dup2(output, _STDOUT)
        os.close(output)


def _require_module(name: str) -> None:
    """Refuse a module that is not there, or a package that cannot be run."""
    looked = name
    try:
        spec = find_spec(looked)
        if spec is not None and spec.submodule_search_locations is not None:
            looked = f"{name}.__main__"
            spec = find_spec(looked)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a package that it is in lacks something
        spec = None
    if spec is None:
        raise Refusal(f"there is no module {printable(looked)}")


@contextmanager
def _as_main(args: argparse.Namespace) -> Iterator[None]:
    """Set the arguments and the module path, as `python` does before it runs a program."""
    argv, path, main = sys.argv, sys.path[:], sys.modules["__main__"]
    sys.argv = [args.program, *args.arguments]
    first = str(Path.cwd() if args.module else Path(args.program).resolve().parent)
    sys.path.insert(0, first)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        sys.modules["__main__"] = main


def _ended(args: argparse.Namespace) -> int:
    """Run the program to its end; return the exit code that `python` would return."""
    try:
        if args.module:
            _require_module(args.program)
            runpy.run_module(args.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(args.program, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return int(end.code or 0) & _LARGEST_CODE
        sys.stderr.write(f"{end.code}\n")
        return 1
    except (KeyboardInterrupt, Refusal):
        raise
    except BaseException as error:  # noqa: BLE001 (told, as Python does)
        # Without the frames of this module and of runpy, which do not concern the program.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return ExitCode.WRONG
    return ExitCode.OK


_STDOUT: Final = 1
_STDERR: Final = 2

_LARGEST_CODE: Final = 0xFF
"""Mask for an exit code, because the system keeps its last eight bits."""

_OURS: Final = frozenset({__file__, runpy.__file__, "<frozen runpy>"})
