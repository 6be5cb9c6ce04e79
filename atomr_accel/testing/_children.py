"""Processes that do one piece of work, answer with plain values, and may end in any way."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import posix
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ABORT_SECONDS: Final = 2.0
"""Time for a late process to write down its stacks."""

_DEATH_SECONDS: Final = 30.0
"""Time for a killed process to end: a driver frees its contexts first."""

_TICK_SECONDS: Final = 0.1
"""Time between two looks for processes that a test has left and that have ended."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
_libc: Final = ctypes.CDLL(None)


class ValueBox:
    """Plain values that a process leaves for its parent, also if it dies next."""

    def __init__(self, fd: int) -> None:
        self.fd: Final = fd

    def send(self, kind: str, value: object = None) -> None:
        """Add a value."""
        data = json.dumps([kind, _packed(value)]).encode() + b"\n"
        while data:
            data = data[os.write(self.fd, data) :]

    def received(self) -> list[tuple[str, Any]]:
        """Return all values that came whole."""
        *lines, _ = _content(self.fd).split(b"\n")
        return [tuple(json.loads(line, object_hook=_unpacked)) for line in lines]


_TUPLE: Final = "()"


def _packed(value: object) -> object:
    # JSON makes lists of tuples, and pytest tells the two apart.
    if isinstance(value, tuple):
        return {_TUPLE: [_packed(each) for each in value]}
    if isinstance(value, list):
        return [_packed(each) for each in value]
    if isinstance(value, dict):
        return {key: _packed(each) for key, each in value.items()}
    return value


def _unpacked(value: dict[str, Any]) -> object:
    return tuple(value[_TUPLE]) if value.keys() == {_TUPLE} else value


@dataclass
class EndedChild:
    """The remains of a process.

    Attributes:
        values: all values that it sent, each with its kind.
        status: its exit status; negative: the signal that ended it; None: the process did not end.
        late: whether its time was up.
        stacks: Python's stacks at its death, if Python could write these.
        output: captured output and errors that a program had not yet read; empty for forks, whose
            capture this process can read.
        short_of_memory: whether the kernel has killed processes of this control group meanwhile.
        seconds: how long it ran.
    """

    values: list[tuple[str, Any]]
    status: int | None
    late: bool
    stacks: str
    output: tuple[str, str]
    short_of_memory: bool
    seconds: float


def run_forked(work: Callable[[ValueBox], None], seconds: float) -> EndedChild:
    """Run a function in a fork of this process."""
    with _followed() as child:
        for stream in sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__:
            if stream is not None:
                stream.flush()  # or both processes would write what is in the buffer
        # The thread of pytest's faulthandler_timeout is not in the fork, which would wait for its
        # end for ever. The time of the isolated test takes its place.
        faulthandler.cancel_dump_traceback_later()
        parent, chance = os.getpid(), random.getstate()
        with warnings.catch_warnings():
            # Python warns of forks of a process with threads, as xdist's workers are.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            status = 1
            try:
                begin_child(parent, child.stacks)
                random.setstate(chance)  # Python draws a new seed in each fork
                work(child.box)
                status = 0
            except BaseException:  # noqa: BLE001
                os.write(child.stacks, traceback.format_exc().encode())
            finally:
                posix._exit(status)  # os._exit may have been replaced by a test
        return child.end(pid, seconds)


def run_spawned(command: list[str], data: bytes, seconds: float, *, shown: bool) -> EndedChild:
    """Run a program. Its last argument names the descriptors ``box,stacks,output,errors``.

    With ``shown`` it writes where this process writes, and not among the stacks.
    """
    import subprocess

    with _followed() as child, tempfile.TemporaryFile() as stdin:
        stdin.write(data)
        stdin.seek(0)
        fds = child.box.fd, child.stacks, *child.output
        stream = None if shown else child.stacks
        process = subprocess.Popen(
            [*command, ",".join(map(str, fds))],
            stdin=stdin,
            stdout=stream,
            stderr=stream,
            pass_fds=fds,
            start_new_session=True,
        )
        ended = child.end(process.pid, seconds)
        process.returncode = ended.status or 0  # it was waited for here
        return ended


def begin_child(parent: int, stacks: int) -> None:
    """Make this process end with its parent, and write its stacks when it dies."""
    with suppress(PermissionError):  # it leads a session already
        os.setsid()  # a group of its own, which ends with it
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        posix._exit(1)
    with suppress(OSError):  # if memory runs out, the kernel shall take this process
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    faulthandler.enable(stacks)


class _FollowedChild:
    """A process, and the descriptors of files in memory that it writes."""

    def __init__(self, box: int, stacks: int, *output: int) -> None:
        self.box = ValueBox(box)
        self.stacks = stacks
        self.output = output
        self._kills = _kernel_kills()
        self._others = _children()
        self._began = time.monotonic()

    def end(self, pid: int, seconds: float) -> EndedChild:
        """Wait for a process, end it and its group after some seconds, and say how it went."""
        ended = False
        try:
            ended = self._wait(pid, seconds)
        finally:
            late = not ended
            ended = ended or _abort(pid)
            _kill_group(pid)  # also those that a test has left behind
            ended = ended or _wait(pid, _DEATH_SECONDS)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if ended else None
            self._end_orphans(pid)
        return EndedChild(
            values=self.box.received(),
            status=status,
            late=late,
            stacks=_text(self.stacks),
            output=(_text(self.output[0]), _text(self.output[1])),
            short_of_memory=_kernel_kills() > self._kills,
            seconds=time.monotonic() - self._began,
        )

    def _wait(self, pid: int, seconds: float) -> bool:
        """Wait for a process, and meanwhile for those that it has left, as init would."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if _wait(pid, min(left, _TICK_SECONDS)):
                return True
            for orphan in self._orphans(pid):
                with suppress(ChildProcessError):  # a thread of ours was first
                    os.waitpid(orphan, os.WNOHANG)
        return False

    def _orphans(self, pid: int) -> set[int]:
        """Return the processes that came to this one because their parent, below ``pid``, ended."""
        here = os.getsid(0)
        found = set()
        for each in _children() - self._others - {pid}:
            with suppress(ProcessLookupError):
                if os.getsid(each) != here:  # one of this session was started by a thread of ours
                    found.add(each)
        return found

    def _end_orphans(self, pid: int) -> None:
        """Kill processes that left the group, and their descendants, until none is adopted here."""
        while orphans := self._orphans(pid):
            for orphan in orphans:
                with suppress(ProcessLookupError, PermissionError, ChildProcessError):
                    os.kill(orphan, signal.SIGKILL)
                    if _wait(orphan, _DEATH_SECONDS):
                        os.waitpid(orphan, 0)
                        continue
                self._others |= {orphan}  # another user's, or a driver holds it


@contextmanager
def _followed() -> Iterator[_FollowedChild]:
    fds: list[int] = []
    try:
        fds.extend(os.memfd_create(name) for name in ("values", "stacks", "output", "errors"))
        with _orphans_come_here():
            yield _FollowedChild(*fds)
    finally:
        for fd in fds:
            os.close(fd)


@contextmanager
def _orphans_come_here() -> Iterator[None]:
    before = ctypes.c_int()
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _children() -> frozenset[int]:
    """Return the children of this process, also those that have ended."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended; a kernel without these files
            found.update(map(int, (task / "children").read_text(encoding="ascii").split()))
    return frozenset(found)


def _wait(pid: int, seconds: float) -> bool:
    """Wait for a process and leave it to be waited for; return whether it ended in time."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:  # a kernel that has none
        until = time.monotonic() + seconds
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(min(seconds * 1000, 2**31 - 1)))
    finally:
        os.close(fd)


def _abort(pid: int) -> bool:
    """Have a process write down its stacks and end; return whether it ended."""
    with suppress(OSError):
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGABRT)
    return _wait(pid, _ABORT_SECONDS)


def _kill_group(pid: int) -> None:
    for kill in os.killpg, os.kill:  # before it has begun its group, it is alone
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _text(fd: int) -> str:
    return _content(fd).decode(errors="replace")


def _kernel_kills() -> int:
    """Return the number of this control group's processes killed for want of memory, if known."""
    with suppress(OSError, ValueError, IndexError):
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").split("::", 1)[1].strip()
        events = Path(f"/sys/fs/cgroup{group}/memory.events").read_text(encoding="utf-8")
        counts = dict(line.split() for line in events.splitlines())
        return int(counts["oom_kill"])
    return 0
