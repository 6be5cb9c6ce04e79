"""Starting hosts, and the program's end of their control sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, Literal, final

import msgspec
import trio

from .._errors import AccelError
from ..host import (
    ControlReply,
    ControlRequest,
    Failure,
    Fault,
    StickyFault,
    encoder,
    unpack_exception,
)
from ..host._host import CONTROL_BYTES, Host

if TYPE_CHECKING:
    from collections.abc import Sequence

_DYING_SECONDS: Final = 2.0

Isolation = Literal["process", "thread"]

# The program's sys.path, because the host must find what the program finds; not "-m",
# which would put the current directory first.
_BOOT: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from atomr_accel.host._host import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class HostDied(AccelError):
    """The host ended by itself, or was killed; internal, becomes ContextPoisoned."""


@final
class HostHandle:
    """The program's hold on one host. ``close`` leaves nothing of it behind."""

    def __init__(
        self,
        control: socket.socket,
        *,
        process: subprocess.Popen[bytes] | None,
        lifeline: int,
        thread: threading.Thread | None,
    ) -> None:
        self._control = control
        self._process = process
        self._lifeline = lifeline
        self._thread = thread
        self._lock = trio.Lock()
        self._decode = msgspec.msgpack.Decoder(ControlReply).decode

    @property
    def pid(self) -> int | None:
        """The host's process id; None under thread isolation."""
        return self._process.pid if self._process else None

    async def request(self, request: ControlRequest, fd: int = -1) -> tuple[ControlReply, int]:
        """Ask the host for something; its reply, and the descriptor that came along or -1.

        Once sent, a request is followed to its reply even if the caller is cancelled:
        what it makes must not be lost. That is bounded: the reply or the host's end.

        Raises:
            HostDied: the host is gone.
            StickyFault: its context is.
            AccelError: what the host raised.
        """
        async with self._lock:
            with trio.CancelScope(shield=True):
                try:
                    socket.send_fds(
                        self._control, [encoder.encode(request)], [fd] if fd >= 0 else []
                    )
                    await trio.lowlevel.wait_readable(self._control)
                    data, fds, _, _ = socket.recv_fds(self._control, CONTROL_BYTES, 1)
                except (OSError, trio.ClosedResourceError) as error:
                    raise HostDied("the host closed its control socket") from error
        if not data:
            raise HostDied("the host closed its control socket")
        reply = self._decode(data)
        match reply:
            case Failure():
                raise unpack_exception(reply)
            case Fault():
                raise StickyFault(reply.message, status=reply.status, status_name=reply.status_name)
        return reply, fds[0] if fds else -1

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process is None or self._process.poll() is None

    def kill(self) -> None:
        """Kill the host process at once. Threads cannot be killed; they end with ``close``."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def close(self, *, dying: bool = False) -> int | None:
        """End the host and wait until it has; its exit code, if it is a process.

        Args:
            dying: it seems to be ending by itself: let it, so that the exit code tells why.
        """
        if self._control.fileno() >= 0:
            trio.lowlevel.notify_closing(self._control)
            self._control.close()
        with trio.CancelScope(shield=True):
            if self._process is not None:
                if dying:
                    with trio.move_on_after(_DYING_SECONDS):
                        await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
                self.kill()
                await trio.to_thread.run_sync(self._process.wait)
            if self._thread is not None:
                await trio.to_thread.run_sync(self._thread.join)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return self._process.returncode if self._process else None


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "its lane ended"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:  # most real-time signals have no name
            return f"killed by signal {-code}"
    return f"ended with exit code {code}"


async def start_host(isolation: Isolation) -> HostHandle:
    """Start a host; it answers on its control socket as soon as it is up."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    if isolation == "thread":
        host = Host(theirs, spin=False)

        def serve() -> None:
            host.serve()
            host.join()

        thread = threading.Thread(target=serve, name="accelerator host", daemon=True)
        thread.start()
        return HostHandle(ours, process=None, lifeline=-1, thread=thread)
    lifeline_reader, lifeline_writer = os.pipe()
    fds = (theirs.fileno(), lifeline_reader)
    command: Sequence[str] = (
        sys.executable,
        *("-c", _BOOT, json.dumps(sys.path), *map(str, fds)),
    )

    def spawn() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds)

    try:
        # Shielded by default: once begun, the process is either ours or was not made.
        process = await trio.to_thread.run_sync(spawn)
    except BaseException:
        ours.close()
        os.close(lifeline_writer)
        raise
    finally:
        theirs.close()
        os.close(lifeline_reader)
    return HostHandle(ours, process=process, lifeline=lifeline_writer, thread=None)
