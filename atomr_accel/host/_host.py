"""A host: the process, or the threads, in which a device's lanes live.

The same code serves both isolations. A host obeys one control socket and ends with it:
when the program closes its end, however the program ended, nothing of the host remains.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Final, final

import msgspec

from ._load import load
from ._protocol import StickyFault
from ._wire import (
    ControlRequest,
    CreateManaged,
    CreateSlab,
    Done,
    Fault,
    MapPinned,
    MapPointer,
    MapSlab,
    Open,
    Opened,
    OpenLane,
    Preload,
    StreamPlan,
    UnmapSlabs,
    encoder,
    pack_exception,
)
from ._worker import Lane, Way

if TYPE_CHECKING:
    from ._protocol import HostContext

CONTROL_BYTES: Final = 1 << 16
"""Largest control message; they are small."""

_SWITCH_SECONDS: Final = 50e-6

_PR_SET_TIMERSLACK: Final = 29
_IOLBF: Final = 1


@final
class Host:
    """Obeys one control socket.

    Args:
        control: a connected stream socket; closed at the end.
        spin: whether idle lanes may linger (see ``Lane``).
    """

    def __init__(self, control: socket.socket, *, spin: bool) -> None:
        self._control = control
        self._spin = spin
        self._context: HostContext
        self._plan = StreamPlan()
        self._lanes: dict[int, Lane] = {}
        self._threads: list[threading.Thread] = []
        self._decode = msgspec.msgpack.Decoder(ControlRequest).decode

    def serve(self) -> None:
        """Answer requests until the other end closes."""
        try:
            while True:
                data, fds, _, _ = socket.recv_fds(self._control, CONTROL_BYTES, 1)
                if not data:
                    return
                self._answer(self._decode(data), fds[0] if fds else -1)
        except ConnectionError:
            return
        finally:
            self._control.close()

    def join(self) -> None:
        """Wait for the lanes to end and release the device (threads in the user's process).

        A process does without: ending releases everything, and faster.
        """
        for thread in self._threads:
            thread.join()
        if hasattr(self, "_context"):
            with contextlib.suppress(StickyFault):  # nothing of a broken context can be released
                self._context.close()

    def _answer(self, request: ControlRequest, fd: int) -> None:
        reply: object
        fds: list[int] = []
        try:
            reply = self._obey(request, fd, fds)
        except StickyFault as fault:
            reply = Fault(0, fault.status, fault.status_name, str(fault))
        except Exception as error:  # noqa: BLE001 - it is the reply
            reply = pack_exception(0, error)
        socket.send_fds(self._control, [encoder.encode(reply)], fds)
        for sent in fds:
            os.close(sent)

    def _obey(self, request: ControlRequest, fd: int, fds: list[int]) -> object:
        match request:
            case Open():
                self._plan = request.plan
                self._context = load(request.backend)(request.index, request.plan)
                try:
                    self._context.map_pinned(0, fd, request.staging_bytes)
                finally:
                    os.close(fd)
                return Opened(self._context.info)
            case Preload():
                for reference in request.references:
                    preload = getattr(load(reference), "preload", None)
                    if preload is not None:
                        preload()
            case OpenLane():
                self._open_lane(request, socket.socket(fileno=fd))
            case CreateSlab():
                slab = self._context.create_slab(request.id, request.nbytes, sealed=request.sealed)
                if slab >= 0:  # else the platform exports no memory
                    fds.append(slab)
            case MapSlab():
                try:
                    self._context.map_slab(request.id, fd, request.nbytes, sealed=request.sealed)
                finally:
                    os.close(fd)
            case MapPinned():
                try:
                    self._context.map_pinned(request.id, fd, request.nbytes)
                finally:
                    os.close(fd)
            case MapPointer():
                self._context.map_pointer(request.id, request.pointer, request.nbytes)
            case CreateManaged():
                self._context.create_managed(request.id, request.nbytes)
            case UnmapSlabs():
                for slab in request.ids:
                    self._context.unmap_slab(slab)
        return Done()

    def _open_lane(self, request: OpenLane, sock: socket.socket) -> None:
        completion = self._plan.completion
        started = threading.Event()
        failed: list[BaseException] = []

        def new_way() -> Way:
            stream = self._context.open_lane(request.name)
            executor = load(request.executor)(self._context, stream)
            return Way(self._context, stream, executor)

        def run() -> None:
            try:
                first = new_way()
                lane = Lane(
                    request.index,
                    sock,
                    self._lanes,
                    completion=completion,
                    linger=self._spin,
                    group=self._plan.group,
                    stepwise=self._plan.stepwise,
                )
                self._lanes[request.index] = lane
            except BaseException as error:  # noqa: BLE001 - raised where the lane was asked for
                failed.append(error)
                sock.close()
                return
            finally:
                started.set()
            lane.run(self._context, new_way, first, request.ways)

        thread = threading.Thread(target=run, name=f"lane {request.name}", daemon=True)
        thread.start()
        started.wait()
        if failed:
            raise failed[0]
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]


def _buffer_lines() -> None:
    """Write what functions and kernels print line by line, also where that is no terminal.

    A host is killed, or ends without a word: what is buffered then is lost.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # there may be none
            stream.reconfigure(line_buffering=True)
    if sys.platform == "linux":  # what kernels print goes through C's buffer
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, ctypes.c_size_t(0))


def main(control_fd: int, lifeline_fd: int) -> None:
    """Be a host process.

    Args:
        control_fd: the control socket.
        lifeline_fd: a pipe whose other end only the program holds.
    """
    # The host must not outlive the program even while a vendor's library holds the GIL
    # for seconds, so ending must not need Python: have the kernel send SIGIO, whose
    # default is to terminate, when the other end of the pipe closes. (PR_SET_PDEATHSIG
    # follows the thread that started us, and programs start hosts from worker threads.)
    if hasattr(fcntl, "F_SETOWN"):
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(lifeline_fd, fcntl.F_GETFL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    _buffer_lines()
    # Ctrl-C goes to the whole process group; ending the host is the program's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Lanes poll. Between polls another lane must get the GIL sooner than after 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # They nap for some ten microseconds, which Linux would stretch by fifty. Threads inherit it.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    Host(socket.socket(fileno=control_fd), spin=True).serve()
    # Not sys.exit: it would join lanes and run vendors' atexit hooks on a context that
    # may be broken. The kernel releases everything, at once.
    os._exit(0)
