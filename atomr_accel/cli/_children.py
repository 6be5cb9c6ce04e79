"""Child processes that load the vendor's libraries, so that a crash there spares the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

# The same path as here, set before any import, as for hosts.
_BOOT: Final = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from importlib import import_module; import_module(sys.argv[1]).main()"
)


class ChildFailed(Exception):
    """A child has not answered; the message says how it ended."""


def ask_child(
    module: str, question: bytes, seconds: float, variables: Mapping[str, str] | None = None
) -> bytes:
    """Have a module answer a question in its own process.

    Args:
        module: a module of ``cli/host``; its ``main`` reads standard input and writes standard
            output.
        question: the standard input.
        seconds: the time after which it is killed.
        variables: variables of its environment, beside those of this process.

    Raises:
        ChildFailed: it was killed, crashed or failed.
    """
    name = f"{__package__}.host.{module}"
    # Absolute entries, because "" stands for the current folder.
    command = [sys.executable, "-P", "-c", _BOOT, name, *(os.path.abspath(p) for p in sys.path)]  # noqa: PTH100
    try:
        done = subprocess.run(
            command,
            input=question,
            capture_output=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **(variables or {})},
        )
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"it did not answer within {seconds:.0f} s") from None
    except OSError as error:
        raise ChildFailed(f"no process could be started: {error}") from error
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="backslashreplace").strip().splitlines()
    if done.returncode < 0:
        raise ChildFailed(f"it was ended by {_signal(-done.returncode)}")
    raise ChildFailed(said[-1] if said else f"it exited with {done.returncode}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
