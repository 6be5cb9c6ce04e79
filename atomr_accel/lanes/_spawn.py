"""Starting hosts, and the program's end of their control sockets."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, final

import msgspec
import trio

from .._errors import AccelError, OutOfMemory
from ..host.host import Host
from ..wire import (
    FETCH_DESCRIPTOR,
    ControlReply,
    ControlRequest,
    Failure,
    Fault,
    ProtocolViolation,
    StickyFault,
    encoder,
    map_file,
    shared_fd,
    unpack_exception,
)
from ..wire.blackbox import BOX_BYTES, BlackBox
from ..wire.channel import Incoming, Outgoing, ProtocolError, close_all
from ..wire.threads import start
from ._host_output import HostOutput, output_pipes
from ._reserve import NO_RESERVE, Reserve
from ._spawner import spawner

if TYPE_CHECKING:
    import mmap
    import subprocess
    from collections.abc import AsyncIterator

    from ._sanitizer import Sanitizer

_log = logging.getLogger("atomr_accel.hosts")

ANSWER_SECONDS: Final = 300.0
"""A host that has not answered a control request after this long is killed.

It is generous: the first lane of a library loads it, which from a cold network drive takes
its time, and so does a driver that wakes a device.
"""

GRACE_SECONDS: Final = 2.0
"""Wait for the answer after the caller was cancelled, before the host is killed.

The result of a request must not be lost, nor be taken for the answer to the next
request."""

_DYING_SECONDS: Final = 2.0

_REPORT_SECONDS: Final = 10.0
"""Limit of the wait for a sanitizer's report."""

END_SECONDS: Final = 30.0
"""Limit of the wait for the end of a killed host.

The kernel may need a while, because it frees all that a GPU has mapped. A host whose thread hangs
in a driver never ends, and the program goes on without
it."""

Isolation = Literal["process", "thread"]

# The program's sys.path, because the host must find what the program finds. Until it is set
# nothing is imported that could be found elsewhere, such as in the current directory.
_BOOT: Final = (
    "import sys; sys.path[:] = sys.argv[6:]; "
    "from atomr_accel.host.host import main; main(*map(int, sys.argv[1:6]))"
)


class HostDied(AccelError):
    """The host ended by itself, or was killed; internal, becomes ContextPoisoned."""


@final
class HostHandle:
    """The program's hold on one host. ``close`` releases all of it.

    Args:
        control: the program's end of its control socket, non-blocking.
        process: the host process, if it is one.
        pidfd: a descriptor that becomes readable when the process ends; -1 if the system has none.
        thread: the host's thread, if it is one.
        ended: set when the thread, or a process without ``pidfd``, has ended.
        output: the output of a process.
        sanitizer: the sanitizer around the host. ``process`` is then the sanitizer, in a process
            group of its own.
        box: the memory in which the host notes its ops.

    Attributes:
        box: the same, also after the host's end.
        reason: why the host was given up, if it was.
        reserve: descriptors for requests when the process has no others.
        output: the output of the process; None for a thread, which has the program's descriptors.
        sanitizer: the sanitizer around the host, if any.
    """

    def __init__(
        self,
        control: socket.socket,
        *,
        process: subprocess.Popen[bytes] | None = None,
        pidfd: int = -1,
        thread: threading.Thread | None = None,
        ended: trio.Event | None = None,
        output: HostOutput | None = None,
        sanitizer: Sanitizer | None = None,
        box: BlackBox | None = None,
    ) -> None:
        self.box: Final = box if box is not None else BlackBox(bytearray(BOX_BYTES))
        self.reason: str | None = None
        self.reserve: Reserve = NO_RESERVE
        self.sanitizer: Final = sanitizer
        self.output: Final = output
        self._control = control
        self._process = process
        self._pidfd = pidfd
        self._thread = thread
        self._ended = ended
        self._over = False
        self._lock = trio.Lock()
        self._reaping = trio.Lock()
        self._decode = msgspec.msgpack.Decoder(ControlReply).decode

    @property
    def pid(self) -> int | None:
        """Process id of the host; None under thread isolation."""
        return self._process.pid if self._process else None

    @trio.lowlevel.enable_ki_protection
    async def request(
        self, request: ControlRequest, *fds: int, required: bool = False
    ) -> tuple[ControlReply, int]:
        """Send a request to the host; return its reply, and the descriptor sent with it or -1.

        A descriptor that the host has sent and that did not arrive is an error, never -1.

        Once sent, a request is followed to its reply even if the caller is cancelled, because its
        result must not be lost. The wait is bounded. A host that has not answered after
        ``ANSWER_SECONDS``, or ``GRACE_SECONDS`` after the caller was cancelled, is killed.

        Args:
            request: the request.
            *fds: descriptors to send with it. They are duplicated before anything is awaited, so
                the caller may close them at any time.
            required: whether to send the request even if the caller is already cancelled.

        Raises:
            HostDied: the host is gone.
            StickyFault: the host's context has failed.
            AccelError: an error from the host.
            OSError: this process has no free descriptor for a duplicate, or for the descriptor that
                arrived; or the host raised it.
            ValueError: the request is too long to be sent.
        """
        name = type(request).__name__
        with contextlib.ExitStack() as duplicates:
            mine = []
            for fd in fds:
                mine.append(self.reserve.make(partial(os.dup, fd)))
                duplicates.callback(os.close, mine[-1])
            outgoing = Outgoing(encoder.encode(request), mine)
            await self._acquire(name, required=required)
            try:
                reply, brought = await self._ask(name, outgoing)
            finally:
                self._lock.release()
        self.reserve.fill()
        if len(brought) > isinstance(request, FETCH_DESCRIPTOR):
            close_all(brought)
            what = f"was killed, because it sent {len(brought)} descriptors uncalled for"
            raise self._give_up(what)
        if isinstance(reply, (Failure, Fault)):
            close_all(brought)
            raise self.unpacked(reply, name)
        return reply, brought[0] if brought else -1

    async def _acquire(self, name: str, *, required: bool) -> None:
        """Wait until no other task has a request to the host under way."""
        try:
            await self._lock.acquire()
        except trio.Cancelled:
            if not required:
                raise
            with trio.move_on_after(GRACE_SECONDS, shield=True) as scope:
                await self._lock.acquire()
            if scope.cancelled_caught:
                self._give_up(f"was killed, because it was too busy for {name}")
                raise

    def not_asked_for(self, name: str, what: str) -> HostDied:
        """Kill the host because of an invalid reply, and return the error for it.

        Args:
            name: the request that it answered.
            what: the invalid part of the reply.
        """
        return self._give_up(f"was killed, because at {name} it told {what}")

    def unpacked(self, reply: Failure | Fault, name: str) -> Exception:
        """Return the error that the host has sent.

        Args:
            reply: the reply with the error.
            name: the request that it answered.

        Raises:
            HostDied: the reply is invalid, and the host was killed.
        """
        if isinstance(reply, Fault):
            return StickyFault(reply.message, status=reply.status, status_name=reply.status_name)
        try:
            return unpack_exception(reply)
        except ProtocolViolation as nonsense:
            what = f"was killed, because at {name} it sent nonsense: {nonsense}"
            raise self._give_up(what) from nonsense

    async def _ask(self, name: str, outgoing: Outgoing) -> tuple[ControlReply, list[int]]:
        """Send a request and receive its reply, whatever happens to the caller meanwhile."""
        incoming = Incoming()
        interruption: BaseException | None = None
        try:
            try:
                with trio.move_on_after(ANSWER_SECONDS):
                    await self._converse(outgoing, incoming)
            except (trio.Cancelled, KeyboardInterrupt) as error:
                interruption = error
            if not incoming.complete:
                # Also where time is up: if the program was stopped, so was the host.
                try:
                    with trio.move_on_after(GRACE_SECONDS, shield=True):
                        await self._converse(outgoing, incoming)
                except KeyboardInterrupt as error:
                    interruption = error
            if not incoming.complete:
                silent = self._give_up(f"was killed, because it did not answer {name}")
                raise interruption or silent
            if isinstance(interruption, KeyboardInterrupt):
                # Raised again as soon as this task waits, when the result has its owner.
                signal.raise_signal(signal.SIGINT)
            body, fds = incoming.take()
            try:
                return self._decode(body), fds
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                close_all(fds)
                raise self._give_up(
                    f"was killed, because it answered {name} with {error}"
                ) from error
        except ProtocolError as error:
            raise self._give_up(
                f"was killed, because at {name} it sent nonsense: {error}"
            ) from error
        except (ConnectionError, trio.ClosedResourceError) as error:
            self._hang_up()
            raise self._died() from error
        except OSError:
            if outgoing.begun and not incoming.complete:  # in the middle of a message
                self._give_up(f"was killed, because {name} could not be sent")
            raise
        finally:
            incoming.drop()
            del interruption  # its traceback has this frame in it

    async def _converse(self, outgoing: Outgoing, incoming: Incoming) -> None:
        """Go on with a request until its reply is complete; may be broken off, and resumed."""
        while not incoming.complete:
            if self._control.fileno() < 0:  # hung up by a task that saw its end
                raise self._died()
            try:
                if outgoing.complete:
                    incoming.receive(self._control)
                else:
                    outgoing.send(self._control)
            except BlockingIOError:
                wait = (
                    trio.lowlevel.wait_readable
                    if outgoing.complete
                    else trio.lowlevel.wait_writable
                )
                await wait(self._control)

    @contextlib.asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Hold off all requests: wait for the current one, and make later ones wait."""
        async with self._lock:
            yield

    @property
    def alive(self) -> bool:
        """True if the process has not ended."""
        return self._process is None or self._process.poll() is None

    @property
    def ended(self) -> bool:
        """True if the end of the host is confirmed."""
        return self._over

    def kill(self) -> None:
        """Kill the host process at once. A thread ends by itself once its lanes have."""
        if self._process is None:
            self._hang_up()
            return
        if self._process.returncode is not None:
            return
        if self.sanitizer is None:
            self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def wait_ended(self) -> int | None:
        """Wait for the end of the host; return its exit code if it is a process.

        The end is known from the process itself. Its sockets do not show it, because a process that
        it has forked may hold them.
        """
        async with self._reaping:  # a descriptor has one waiter at a time
            if not self._over:
                if self._pidfd >= 0:
                    await trio.lowlevel.wait_readable(self._pidfd)
                else:
                    assert self._ended is not None
                    await self._ended.wait()
                self._reap()
        return self._process.returncode if self._process else None

    @trio.lowlevel.enable_ki_protection
    async def close(self, *, terminating: bool = False) -> int | None:
        """End the host and wait for its end; return its exit code, if it is a process.

        A killed process that does not end, because a driver prevents it, is abandoned after
        ``END_SECONDS``. A thread is always waited for, because it cannot be killed.

        Args:
            terminating: whether the host seems to end by itself; wait for that, so that the exit
                code shows why.
        """
        with trio.CancelScope(shield=True):
            if terminating and self._process is not None:
                with trio.move_on_after(_DYING_SECONDS):
                    await self.wait_ended()
            self._hang_up()
            self.kill()
            with trio.move_on_after(math.inf if self._process is None else END_SECONDS):
                return await self.wait_ended()
        _log.warning(
            "host process %s was killed and has not ended after %g s: it is left to itself",
            self.pid,
            END_SECONDS,
        )
        return None

    async def finish(self) -> None:
        """Let a failed host end by itself, so that its sanitizer can finish its report."""
        self._hang_up()
        with trio.CancelScope(shield=True), trio.move_on_after(_REPORT_SECONDS):
            await self.wait_ended()

    def abandon(self) -> None:
        """Give up a host that has not ended, without waiting for its end."""
        self._hang_up()
        self._release()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()  # it has ended: this only fetches its exit code
        if self._thread is not None:
            self._thread.join()  # its work is done
        self._over = True
        self.abandon()

    def _died(self) -> HostDied:
        return HostDied(f"the host {self.reason or 'closed its control socket'}")

    def _give_up(self, reason: str) -> HostDied:
        """Nothing good comes from this host any more: end it."""
        self.reason = self.reason or reason
        self.kill()
        self._hang_up()
        return self._died()

    def _hang_up(self) -> None:
        if self._control.fileno() >= 0:
            trio.lowlevel.notify_closing(self._control)
            self._control.close()
            self.reserve.returned(1)

    def _release(self) -> None:
        if self.box.shared:
            self.box.close()
            self.reserve.returned(1)
        if self.output is not None and not self.output.closed:
            self.output.close()
            self.reserve.returned(2)
        if self._pidfd >= 0:
            trio.lowlevel.notify_closing(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
            self.reserve.returned(1)


def describe_exit(code: int | None) -> str:
    """Return an exit code in words."""
    if code is None:
        return "its lane ended"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:  # most real-time signals have no name
            return f"killed by signal {-code}"
    return f"ended with exit code {code}"


@trio.lowlevel.enable_ki_protection
async def start_host(
    isolation: Isolation, sanitizer: Sanitizer | None = None, reserve: Reserve = NO_RESERVE
) -> HostHandle:
    """Start a host; it answers on its control socket once it is up.

    Args:
        isolation: whether the host is a process or a thread.
        sanitizer: the sanitizer to run a process under.
        reserve: descriptors to use when the process has no others.

    Raises:
        OSError: no process, thread or descriptor is available.
    """
    ours, theirs = reserve.make(socket.socketpair)
    ours.setblocking(False)
    output: HostOutput | None = None
    box: BlackBox | None = None
    try:
        if isolation == "thread":
            return _start_thread(ours, theirs)
        with theirs:
            output, writers = reserve.make(output_pipes)
            theirs_only: tuple[int, ...] = writers
            try:
                box_fd = reserve.make(partial(shared_fd, BOX_BYTES, "host"))
                theirs_only = (*writers, box_fd)
                box = BlackBox(reserve.make(partial(_mapped, box_fd)))
                fds = (theirs.fileno(), *theirs_only)
                command = _command(theirs.fileno(), *writers, box_fd, sanitizer)
                process, pidfd = await spawner.spawn(
                    command, fds, group=sanitizer is not None, reserve=reserve
                )
            finally:
                close_all(theirs_only)
        reserve.fill()
        try:
            ended = _watched(process.pid) if pidfd < 0 else None
        except BaseException:
            process.kill()
            process.wait()  # which is soon over: it was killed
            raise
    except BaseException:
        ours.close()
        if output is not None:
            output.close()
        if box is not None:
            box.close()
        raise
    return HostHandle(
        ours,
        process=process,
        pidfd=pidfd,
        ended=ended,
        output=output,
        sanitizer=sanitizer,
        box=box,
    )


def _mapped(fd: int) -> mmap.mmap:
    try:
        return map_file(fd, BOX_BYTES)
    except OutOfMemory as short:
        raise short.__cause__ or short from None


def _command(
    control: int, out: int, err: int, box: int, sanitizer: Sanitizer | None = None
) -> tuple[str, ...]:
    flags = ["-P"]  # not the current directory
    if sys.flags.isolated:
        flags = ["-I"]
    else:
        flags += ["-E"] * sys.flags.ignore_environment + ["-s"] * sys.flags.no_user_site
    # Python ignores entries that are not strings, such as a Path.
    entries: list[Any] = sys.path
    path = [entry for entry in entries if isinstance(entry, str) and "\0" not in entry]
    program = os.getpid() if sanitizer is None else 0  # under a sanitizer it is not a child
    numbers = map(str, (control, program, out, err, box))
    before = () if sanitizer is None else sanitizer.command(err)
    return (*before, sys.executable, *flags, "-c", _BOOT, *numbers, *path)


def _start_thread(ours: socket.socket, theirs: socket.socket) -> HostHandle:
    token, ended = trio.lowlevel.current_trio_token(), trio.Event()
    box = BlackBox(bytearray(BOX_BYTES))
    host = Host(theirs, spin=False, box=box)

    def serve() -> None:
        try:
            host.serve()
            host.join()
        finally:
            _tell(token, ended)

    thread = threading.Thread(target=serve, name="accelerator host", daemon=True)
    try:
        start(thread)
    except OSError:
        theirs.close()
        raise
    return HostHandle(ours, thread=thread, ended=ended, box=box)


def _watched(pid: int) -> trio.Event:
    """Set when the process has ended, which a thread waits for; it is not reaped."""
    token, ended = trio.lowlevel.current_trio_token(), trio.Event()

    def watch() -> None:
        # Another, such as a handler of SIGCHLD, may have reaped it.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        _tell(token, ended)

    start(threading.Thread(target=watch, name=f"end of host {pid}", daemon=True))
    return ended


def _tell(token: trio.lowlevel.TrioToken, event: trio.Event) -> None:
    with contextlib.suppress(trio.RunFinishedError):  # no task waited for it
        token.run_sync_soon(event.set)
