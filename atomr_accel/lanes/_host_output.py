"""Output of host processes on descriptors 1 and 2, above all the output of kernels.

The driver offers no other place for that output. Text that functions of ``device.run`` print with
Python's ``print`` goes to the program's own output instead (``host.host``).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

import trio

from ._interrupts import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("atomr_accel.kernels")

_PIECE: Final = 1 << 13
"""Bytes that are read in a turn of the loop, however fast they come."""

_ROOM: Final = 1 << 18
"""Bytes that a pipe has room for, so that a host need not wait for a program that is busy."""

_LONGEST: Final = 4096
"""Bytes of a line; a longer line is logged in several pieces."""

_MOST_LAST: Final = 50
"""Number of final lines of a host's standard error that its fault carries."""


@final
class _Pipe:
    """The reading end of one pipe.

    Attributes:
        fd: the descriptor; -1 when it is closed.
        level: the logging level of lines from this pipe.
        rest: the line that has not ended.
    """

    def __init__(self, fd: int, level: int) -> None:
        self.fd = fd
        self.level: Final = level
        self.rest = b""


@final
@uninterrupted
class HostOutput:
    """The program's ends of the pipes that a host has as its descriptors 1 and 2.

    Lines become log records of ``atomr_accel.kernels``: ``INFO`` for descriptor 1, ``WARNING`` for
    descriptor 2. While the logger ignores ``INFO``, the lines of descriptor 1 go to the program's
    standard output, as in any CUDA program.

    Args:
        out: the reading end of the pipe at the host's descriptor 1.
        err: the reading end of the pipe at the host's descriptor 2.

    Attributes:
        last: the last lines of descriptor 2.
    """

    def __init__(self, out: int, err: int) -> None:
        self._pipes: Final = _Pipe(out, logging.INFO), _Pipe(err, logging.WARNING)
        self._fields: Mapping[str, Any] = {}
        self._turn = trio.Lock()
        self.last: Final[deque[str]] = deque(maxlen=_MOST_LAST)

    async def run(self, fields: Mapping[str, Any]) -> None:
        """Log output until the host has ended. Another task's ``run`` may continue from here.

        Args:
            fields: the ``extra`` of log records from now on.
        """
        self._fields = fields
        async with self._turn, trio.open_nursery() as nursery:
            for pipe in self._pipes:
                nursery.start_soon(self._follow, pipe)

    async def _follow(self, pipe: _Pipe) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            while pipe.fd >= 0:
                await trio.lowlevel.wait_readable(pipe.fd)
                if self._read(pipe) == 0:
                    return

    def drain(self) -> None:
        """Log the output that the host has written by now."""
        self._drain(_ROOM)  # bounded, because it may write without pause

    def glance(self) -> None:
        """Log at most one piece of the output, which is quick; the rest follows as usual."""
        self._drain(_PIECE)

    def _drain(self, most: int) -> None:
        for pipe in self._pipes:
            left = most
            while left > 0 and (count := self._read(pipe)):
                left -= count

    @property
    def closed(self) -> bool:
        """True if both pipes are closed."""
        return all(pipe.fd < 0 for pipe in self._pipes)

    def close(self) -> None:
        """Log the remaining output and close the pipes. Later output is lost."""
        self.drain()
        for pipe in self._pipes:
            if pipe.rest:
                self._tell(pipe, pipe.rest)
                pipe.rest = b""
            if pipe.fd >= 0:
                trio.lowlevel.notify_closing(pipe.fd)
                os.close(pipe.fd)
                pipe.fd = -1

    def _read(self, pipe: _Pipe) -> int | None:
        """Log the lines that the next piece completes.

        Returns:
            The length of the piece: 0 when the host has ended; None without data at the moment, for
            example because another task has read it.
        """
        try:
            data = os.read(pipe.fd, _PIECE) if pipe.fd >= 0 else b""
        except BlockingIOError:
            return None
        *lines, rest = (pipe.rest + data).split(b"\n")
        while len(rest) > _LONGEST:
            lines.append(rest[:_LONGEST])
            rest = rest[_LONGEST:]
        pipe.rest = rest
        for line in lines:
            for start in range(0, len(line) or 1, _LONGEST):
                self._tell(pipe, line[start : start + _LONGEST])
        return len(data)

    def _tell(self, pipe: _Pipe, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        if pipe.level > logging.INFO:
            self.last.append(text)
        if _log.isEnabledFor(pipe.level):
            _log.log(pipe.level, "%s", text, extra=self._fields)
        elif pipe.level == logging.INFO:
            with contextlib.suppress(Exception):  # the program may have put anything there
                sys.stdout.write(f"{text}\n")
                sys.stdout.flush()  # functions print to the descriptor itself


def output_pipes() -> tuple[HostOutput, tuple[int, int]]:
    """Pipes for a host's descriptors 1 and 2; the writing ends are the caller's to close.

    Raises:
        OSError: the process has no free descriptor.
    """
    ends: list[int] = []
    try:
        for _ in range(2):
            ends += os.pipe()
    except OSError:
        for fd in ends:
            os.close(fd)
        raise
    out, to_out, err, to_err = ends
    for fd in (out, err):
        os.set_blocking(fd, False)
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # a user's pipes have a limit
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _ROOM)
    return HostOutput(out, err), (to_out, to_err)
