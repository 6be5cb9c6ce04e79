"""Answers of a child, on a copy of its standard output that libraries cannot print to."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


def answer(function: Callable[[bytes], object]) -> None:
    """Answer the question on standard input, as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the command
    output = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(output, "wb") as stream:
        stream.write(msgspec.json.encode(function(sys.stdin.buffer.read())))
