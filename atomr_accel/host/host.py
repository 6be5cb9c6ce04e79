"""A host: the process, or the threads, in which a device's lanes live.

The same code serves both isolations. A host obeys one control socket and ends with it. When the
program closes the socket or ends in any way, the host ends completely.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import importlib
import io
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import msgspec

from .._errors import AccelError, LibraryMissing, Unsupported
from ..wire import (
    AskFree,
    AskPeers,
    ControlRequest,
    CreateManaged,
    CreateSlab,
    Failure,
    Fault,
    Free,
    HoldSlabs,
    Import,
    Imported,
    LanesOpened,
    MapPinned,
    MapPointer,
    MapSlab,
    Message,
    Modules,
    MoveProcess,
    Open,
    Opened,
    OpenLane,
    OpenLanes,
    Peer,
    Peers,
    Preload,
    StickyFault,
    StreamPlan,
    UnmapSlabs,
    encoder,
    map_file,
)
from ..wire.blackbox import BOX_BYTES, CURRENT, FUNCTION, SEQ, TEXT, BlackBox
from ..wire.channel import ProtocolError, close_all, receive, send
from ..wire.control import MODULE_NAME, MOST_MODULES, Done, brings, find_class
from ..wire.failures import pack_exception
from ..wire.threads import require_room, start
from ._lane import Lane
from ._launcher import Launcher
from ._slots import StreamSlot

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from ..wire import Affinity, HostClass
    from ..wire.interface import CompletionStrategy, Executor, HostContext, Parker, StreamAllocator

_log = logging.getLogger("atomr_accel.hosts")

_SWITCH_SECONDS: Final = 50e-6

_ORDERLY_SECONDS: Final = 5.0
"""Time to wait for the device, since a kernel may hang."""

_LANES_SECONDS: Final = 1.0
"""Time to wait for lanes before that."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_IONBF: Final = 2


@final
class Host:
    """Obeys one control socket.

    Args:
        control: a connected stream socket; closed at the end.
        spin: whether idle lanes may poll for a moment before they sleep (see ``Launcher``).
        box: the memory in which its threads note their ops; by default, its own.
    """

    def __init__(self, control: socket.socket, *, spin: bool, box: BlackBox | None = None) -> None:
        self._control = control
        self._spin = spin
        self._box = BlackBox(bytearray(BOX_BYTES)) if box is None else box
        self._threads_begun = itertools.count(1)
        self._context: HostContext
        self._plan = StreamPlan()
        self._allocator: StreamAllocator
        self._lanes: dict[int, Lane] = {}
        self._launchers: dict[str, Launcher] = {}
        self._staging: _ThreadedWork | None = None
        self._parker: Parker | None = None
        self._threads: list[threading.Thread] = []
        self._decode = msgspec.msgpack.Decoder(ControlRequest).decode

    def serve(self) -> None:
        """Answer requests until the other end closes."""
        try:
            while True:
                self._answer()
        except ConnectionError:
            return
        finally:
            self._control.close()

    def join(self) -> None:
        """Wait for the lanes to end and release the device (for threads in the user's process).

        A host process skips this, because its end releases everything, and faster.
        """
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(Exception):  # the result is not needed any more
            self._wait_staging()
        if hasattr(self, "_context"):
            with contextlib.suppress(StickyFault):  # objects of a broken context cannot be released
                self._context.close()

    def wind_up(self) -> None:
        """Wait for the device, so that a sanitizer has reported on all work.

        Lanes have ended before, so this thread alone calls the driver, unless functions of the
        program still run there. A kernel that hangs ends this process by an alarm, because the
        program may be gone.
        """
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, _ORDERLY_SECONDS)
        with contextlib.suppress(Exception):  # the context may be missing
            self._context.make_current()
            self._context.check()  # the sanitizer reports no more on a failed one
            until = time.monotonic() + _LANES_SECONDS
            for thread in self._threads:
                thread.join(max(0.0, until - time.monotonic()))
            self._context.synchronize()

    def _answer(self) -> None:
        """Receive a request, and answer it."""
        message = receive(self._control)
        reply: object
        fds: list[int] = []
        try:
            body, brought = message.take()
            try:
                request = self._decode(body)
                if len(brought) != brings(request):
                    raise ProtocolError(f"{len(brought)} descriptors came along with {request}")
                reply = self._obey(request, brought, fds)
            finally:
                close_all(brought)
        except ProtocolError:
            raise
        except BaseException as error:  # noqa: BLE001 - it is the reply
            reply = _packed(error)
        try:
            try:
                send(self._control, encoder.encode(reply), fds)
            except ConnectionError:
                raise
            except (OSError, ValueError) as error:
                # Too many descriptors were in flight, or the reply was too long, so no part of it
                # was sent. Its descriptors are closed below.
                send(self._control, encoder.encode(pack_exception(0, error)))
        finally:
            close_all(fds)

    def _obey(self, request: ControlRequest, brought: list[int], fds: list[int]) -> object:
        """Carry out a request of the control socket.

        Args:
            request: the request.
            brought: the descriptors that came along. The caller closes those that are left.
            fds: a list that gets the descriptors to send with the reply. They are closed
                afterwards.
        """
        if not isinstance(request, (MapSlab, OpenLanes)):  # these go on next to staging
            self._wait_staging()
        match request:
            case Open():
                self._plan = self._with_strategies(request.plan)
                context = find_class("the backend's context", request.backend)
                self._context = context(request.index, self._plan)
                self._bind(request.cores)
                self._map_staging(brought.pop(), request.staging_bytes)
                return Opened(self._context.info)
            case Preload():
                for reference in request.references:
                    _preload(find_class("an executor", reference))
                _read_types(Message)
            case Import():
                self._import(request.modules, brought[0])
                brought.clear()
            case AskFree():
                return Free(self._context.free_memory())
            case AskPeers():
                peer = getattr(self._context, "peer", None)
                return Peers([peer(index) if peer else Peer(False) for index in request.indices])
            case Imported():
                return Modules(_imported())
            case OpenLanes():
                socks = [socket.socket(fileno=fd) for fd in brought]
                brought.clear()
                failed = self._open_lanes(request.lanes, socks)
                self._wait_staging()
                return LanesOpened(failed)
            case CreateSlab():
                slab = self._context.create_slab(request.id, request.nbytes, sealed=request.sealed)
                if slab >= 0:  # else the platform exports no memory
                    fds.append(slab)
            case CreateManaged():
                slab = self._context.create_managed(request.id, request.nbytes)
                if slab >= 0:
                    fds.append(slab)
            case MapSlab():
                self._context.map_slab(
                    request.id, brought[0], request.nbytes, sealed=request.sealed
                )
            case MapPinned():
                self._context.map_pinned(request.id, brought[0], request.nbytes)
            case MapPointer():
                self._context.map_pointer(request.id, request.pointer, request.nbytes)
            case UnmapSlabs():
                for slab in request.ids:
                    self._context.unmap_slab(slab)
            case HoldSlabs():
                holding: Any = self._context  # only backends with a parker have it
                for slab in request.ids:
                    holding.hold_slab(slab)
            case MoveProcess():
                return Free(self._move(request))
        return Done()

    def _move(self, request: MoveProcess) -> int:
        """Park another host or restore it; return the bytes of device memory that this freed."""
        if self._parker is None:
            self._parker = find_class("the backend's parker", request.parker)()
        match request.step:
            case "check":
                self._parker.check()
            case "park":
                return self._parker.park(request.pid, request.uuid)
            case "restore":
                self._parker.restore(request.pid, request.uuid, request.nbytes)
        return 0

    def _with_strategies(self, plan: StreamPlan) -> StreamPlan:
        """Make the objects that a plan names, and return the plan with ``sleeps``.

        Raises:
            Unsupported: one cannot be made, or lacks something.
        """
        self._allocator = plan.streams.make("the stream allocator")
        _require_attributes(self._allocator, plan.streams, "stream_of")
        return msgspec.structs.replace(plan, sleeps=self._completion_of(plan).sleeps)

    @staticmethod
    def _completion_of(plan: StreamPlan) -> CompletionStrategy:
        strategy: CompletionStrategy = plan.completion.make("the completion strategy")
        _require_attributes(strategy, plan.completion, "sleeps", "signals", "wait")
        return strategy

    def _bind(self, cores: Affinity) -> None:
        """Have this process run on some cores, before lanes start: a thread inherits them."""
        node = self._context.info.numa_node
        if cores is None or (cores == "near" and node is None):
            return
        from .machine import bind  # starting a host waits for these imports

        bind(cores, node)

    @staticmethod
    def _import(modules: list[str], done: int) -> None:
        """Import modules in a thread, and close ``done`` then."""

        def run() -> None:
            try:
                for name in modules:
                    with IMPORTS.importing():
                        _import(name)
            finally:
                os.close(done)

        start(threading.Thread(target=run, name="imports", daemon=True))

    def _map_staging(self, fd: int, nbytes: int) -> None:
        """Map the staging memory in a thread: page-locking takes as long as making handles."""

        def run() -> None:
            try:
                self._context.make_current()
                self._context.map_pinned(0, fd, nbytes)
            finally:
                os.close(fd)

        try:
            self._staging = _ThreadedWork("staging", run)
        except OSError:
            os.close(fd)
            raise

    def _wait_staging(self) -> None:
        """Wait until staging memory is mapped. Every later request needs it."""
        if self._staging is not None:
            self._staging.wait()
            self._staging = None

    # --- lanes ----------------------------------------------------------------------------

    def _open_lanes(
        self, lanes: list[OpenLane], socks: list[socket.socket]
    ) -> dict[str, Failure | Fault]:
        """Start lanes side by side; which have failed, and why.

        Handles take their time. So an executor is made in the thread that runs its lane only if
        no other lane has that, and else in one for this.
        """
        failed: dict[str, Failure | Fault] = {}
        apart: list[
            tuple[
                OpenLane,
                socket.socket,
                Callable[[int], StreamSlot],
                list[Hashable],
                _ThreadedWork,
            ]
        ] = []
        opening: list[threading.Event] = []
        for lane, sock in zip(lanes, socks, strict=True):
            with self._failing(lane, sock, failed):
                # Here: of what two threads import at once, one may get a part only.
                kind = find_class(f"the executor of lane {lane.name}", lane.executor)
                streams = self._streams_of(lane)
                new_slot = self._slots_of(lane, kind, streams)
                if lane.thread == lane.name:
                    opening.append(self._open_lane(lane, sock, new_slot, streams, failed))
                else:
                    _preload(kind)  # here, for the same reason
                    work = _ThreadedWork(f"start {lane.name}", partial(new_slot, 0))
                    apart.append((lane, sock, new_slot, streams, work))
        for lane, sock, new_slot, streams, work in apart:
            with self._failing(lane, sock, failed):
                work.wait()
                opening.append(self._open_lane(lane, sock, new_slot, streams, failed))
        for opened in opening:
            opened.wait()
        return failed

    @contextlib.contextmanager
    def _failing(
        self, lane: OpenLane, sock: socket.socket, failed: dict[str, Failure | Fault]
    ) -> Iterator[None]:
        """Store an error as the reason why a lane does not start."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised where the lane was asked for
            failed[lane.name] = self._why(error)
            sock.close()

    def _why(self, error: BaseException) -> Failure | Fault:
        """Return the error of a lane that does not start.

        Libraries may translate a context's fault.
        """
        try:
            if not isinstance(error, StickyFault):
                self._context.make_current()
                self._context.check()
        except StickyFault as fault:
            return _packed(fault)
        except AccelError:  # it does not tell
            pass
        return _packed(error)

    def _streams_of(self, lane: OpenLane) -> list[Hashable]:
        """Return the names of a lane's streams, each but None once.

        Further slots on one stream would be of no use.
        """
        priority = self._plan.priorities.get(lane.name, 0)
        try:
            names: dict[Hashable, Hashable] = {}
            for slot in range(lane.max_streams):
                name = self._allocator.stream_of(lane, slot, priority)
                names.setdefault(object() if name is None else name, name)
        except Exception as error:
            raise Unsupported(
                f"the stream allocator, {self._plan.streams.reference!r}, must name streams by "
                f"hashable values, and failed for lane {lane.name}: {type(error).__name__}: {error}"
            ) from error
        return [*names.values()]

    def _slots_of(
        self, lane: OpenLane, kind: type[Executor], streams: Sequence[Hashable]
    ) -> Callable[[int], StreamSlot]:
        """Return a function that makes the slots of a lane, each once."""
        slots: dict[int, StreamSlot] = {}

        def slot(number: int) -> StreamSlot:
            if number in slots:  # it was made in another thread
                self._context.make_current()
                return slots[number]
            stream = self._context.open_lane(lane.name, streams[number])
            if slots and hasattr(slots[0].executor, "on"):
                executor = slots[0].executor.on(stream)
            else:
                executor = kind(self._context, stream)
            fuse = not self._plan.deterministic
            slots[number] = StreamSlot(self._context, stream, executor, fuse=fuse)
            return slots[number]

        return slot

    def _open_lane(
        self,
        request: OpenLane,
        sock: socket.socket,
        new_slot: Callable[[int], StreamSlot],
        streams: Sequence[Hashable],
        failed: dict[str, Failure | Fault],
    ) -> threading.Event:
        """Have a lane's thread start it; return an event that is set when it runs or has failed."""
        done = threading.Event()
        launcher = self._launchers.get(request.thread)

        def make() -> Lane | None:
            assert launcher is not None
            try:
                lane = Lane(
                    request.index,
                    sock,
                    self._lanes,
                    launcher,
                    group=self._plan.group,
                    track_each_op=self._plan.track_each_op,
                )
                lane.open(self._context, new_slot, streams)
            except BaseException as error:  # noqa: BLE001 - raised where the lane was asked for
                failed[request.name] = self._why(error)
                sock.close()
                return None
            else:
                self._lanes[request.index] = lane
                return lane
            finally:
                done.set()

        if launcher is None or not launcher.open(make):
            strategy = self._completion_of(self._plan)
            record = self._box.record(next(self._threads_begun))
            launcher = Launcher(strategy, idle_spin=self._spin, record=record)
            launcher.open(make)
            thread = threading.Thread(
                target=launcher.run, name=f"lanes {request.thread}", daemon=True
            )
            try:
                start(thread)
            except OSError:
                launcher.close()
                raise
            self._launchers[request.thread] = launcher
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        return done


@final
class _ThreadedWork:
    """A function that runs in a thread of its own."""

    def __init__(self, name: str, do: Callable[[], object]) -> None:
        self._do = do
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start(self._thread)

    def _run(self) -> None:
        try:
            self._do()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error

    def wait(self) -> None:
        """Wait until the function has ended, and raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error


def _require_attributes(made: object, chosen: HostClass, *names: str) -> None:
    for name in names:
        if not hasattr(made, name):
            raise Unsupported(f"{chosen.reference!r} must have the attribute {name!r}")


def _preload(kind: Any) -> None:
    """Load the parts of a class that touch no device. Its instances report missing libraries."""
    preload = getattr(kind, "preload", None)
    if preload is not None:
        with contextlib.suppress(LibraryMissing):
            preload()


def _read_types(kind: type[Message]) -> None:
    """Have msgspec inspect the types of messages, which takes 15 ms and more for all of them."""
    for each in kind.__subclasses__():
        with contextlib.suppress(Exception):  # the lane that has it tells
            msgspec.msgpack.Decoder(each)
        _read_types(each)


def _packed(error: BaseException) -> Failure | Fault:
    """An error as a reply."""
    if isinstance(error, StickyFault):
        return Fault((), error.status, error.status_name, str(error))
    return pack_exception(0, error)


_WITH_BLAS: Final = "scipy.linalg"

_ROOM_FOR_BLAS: Final = 160 << 20
"""Bytes of address space for the code and the buffers of BLAS."""


@final
class Imports:
    """Mutual exclusion of the program's functions and imports in advance.

    Functions are loaded and run, and an executor imports rarely used modules, only while no import
    in advance is in progress. Otherwise two threads could import the same modules from two ends. If
    those modules import each other, Python gives one of the threads a partially imported module, or
    raises.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._waiting = 0
        self._importing = False

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Import one module, while no function runs or waits to run."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._running or self._waiting))
            self._importing = True
        try:
            yield
        finally:
            with self._changed:
                self._importing = False
                self._changed.notify_all()

    @contextlib.contextmanager
    def late(self) -> Iterator[None]:
        """Import a part of SciPy that few programs need, after a check for memory.

        SciPy's BLAS requests memory when it is loaded, again and again until it gets some, and
        blocks all other threads of the process meanwhile.
        """
        if _WITH_BLAS not in sys.modules:
            require_room(_ROOM_FOR_BLAS, "the libraries of SciPy")
        with self._excluded():
            yield

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A function of the program is loaded or runs, as soon as no module is being imported.

        The thread's op is noted as one that runs a function.
        """
        with self._excluded():
            words = CURRENT.words
            words[FUNCTION] = words[SEQ]
            try:
                yield
            finally:
                words[FUNCTION] = 0

    @contextlib.contextmanager
    def _excluded(self) -> Iterator[None]:
        """Wait until no module is being imported, and exclude imports in advance."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._importing)
            self._waiting -= 1
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()


IMPORTS: Final = Imports()


def _import(name: str) -> None:
    """Import a module that the program's functions are going to import, if that is possible.

    If another thread is importing the module, this waits for it, so that modules are complete
    before they are used.
    """
    try:
        # A submodule's import does not wait for a package that another thread is importing. The
        # two would wait for each other, and Python would hand out half of a module.
        for end, letter in enumerate(name):
            if letter == ".":
                importlib.import_module(name[:end])
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 (a module may do anything)
        _log.debug("%s cannot be imported in advance: %r", name, error)


def _imported() -> list[str]:
    """Return the modules of this process that another one can import, in their order here."""
    names = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        known = spec is not None and spec.loader is not None and spec.name == name
        if known and name != "__main__" and len(name) <= MODULE_NAME:
            names.append(name)
    return names[-MOST_MODULES:]


def _redirect(out: int, err: int) -> None:
    """Send the output of descriptors 1 and 2 to the program.

    The driver writes the output of kernels there. Output of Python functions still goes to the
    former descriptors, line by line: a host may be killed or end at once, and buffered output would
    then be lost.
    """
    for number, name, pipe in ((1, "stdout", out), (2, "stderr", err)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # there may be none
            stream.flush()
            moved = os.fdopen(os.dup(number), "w", 1, stream.encoding, stream.errors)
            setattr(sys, name, moved)
            setattr(sys, f"__{name}__", moved)
        os.dup2(pipe, number)
        os.close(pipe)
    if sys.platform == "linux":  # what kernels print goes through C's buffer
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IONBF, ctypes.c_size_t(0))


def _above_standard(fd: int) -> int:
    """A descriptor above the first three, of which one may be if the program has closed that."""
    if fd > 2:
        return fd
    above: int = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    # Python has taken this descriptor for a standard stream, which must not be used any more.
    setattr(sys, ("stdin", "stdout", "stderr")[fd], None)
    os.close(fd)
    return above


def _watch_end(box: BlackBox, fd: int) -> None:
    """Note which thread ends this process."""
    os.lseek(fd, TEXT, os.SEEK_SET)
    faulthandler.enable(fd)  # of all threads, or it does not say which one has crashed
    process, leave = os.getpid(), os._exit

    def exit_noted(status: int) -> NoReturn:
        if os.getpid() == process:  # and not a child that a function has forked
            box.note_end(CURRENT.words[SEQ])
        leave(status)

    os._exit = exit_noted
    os.register_at_fork(after_in_child=faulthandler.disable)


def main(control_fd: int, program: int, out: int, err: int, box_fd: int) -> None:
    """Be a host process.

    ``program`` is a process id, 0 if another process stands between. ``out`` and ``err`` become the
    descriptors 1 and 2. Threads note their ops in the memory of ``box_fd``.
    """
    # The end of the control socket ends the host, but seeing it needs Python; and a child that
    # the program has forked may hold its other end. The host must not outlive the program
    # even then, nor while a vendor's library holds the GIL for seconds. So the kernel ends it:
    # by a signal that nothing can block or ignore. That signal follows the thread that has
    # started the host, which is why the program keeps one for that (lanes/_spawner.py).
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if program:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != program:
                os._exit(0)  # it ended before that took effect
        # Lanes nap for some ten microseconds, which Linux would stretch by fifty. Threads
        # inherit it.
        libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    # Ctrl-C goes to the whole process group; ending the host is the program's business. So
    # hosts are started with SIGINT blocked. From here on it is ignored, and not blocked in
    # the processes that functions of the program start.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    control_fd, out, err, box_fd = map(_above_standard, (control_fd, out, err, box_fd))
    _redirect(out, err)
    # Lanes poll. Between polls another lane must get the GIL sooner than after 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    box = BlackBox(map_file(box_fd, BOX_BYTES))
    _watch_end(box, box_fd)
    host = Host(socket.socket(fileno=control_fd), spin=True, box=box)
    host.serve()
    if not program:
        host.wind_up()
    # Not sys.exit: it would join lanes and run vendors' atexit hooks on a context that may be
    # broken. The kernel releases everything at once.
    os._exit(0)
