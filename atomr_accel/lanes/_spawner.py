"""The thread that starts host processes.

One for the whole program, because the kernel ends a host when the *thread* that started it
ends: this one lasts as long as the program does. It has SIGINT blocked, and so has a host from
its first instruction on, until it has said that it wants none (``host.host.main``): a
terminal's Ctrl-C is for the program. Hosts stay in the program's process group and session,
because Ctrl-Z is for both, and ``fg`` as well.
"""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, final

import outcome
import trio

from ..wire.threads import start
from ._reserve import NO_RESERVE, Reserve
from .threads import with_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Spawned = tuple[subprocess.Popen[bytes], int]
"""A process, and a descriptor that becomes readable when it ends; -1 if the system has none."""


@final
class Spawner:
    """Starts processes, one after the other."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again, also in a forked child, which does not have the program's other threads."""
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @trio.lowlevel.enable_ki_protection
    async def spawn(
        self,
        command: Sequence[str],
        fds: tuple[int, ...],
        *,
        group: bool = False,
        reserve: Reserve = NO_RESERVE,
    ) -> Spawned:
        """Start a process that inherits ``fds``.

        The call is shielded and quick: afterwards the caller has the process, or none was started.

        Args:
            command: the words of the command.
            fds: descriptors to inherit.
            group: whether the process leads a process group of its own, with its children.
            reserve: descriptors to use when the process has no others.

        Raises:
            OSError: no process, thread or descriptor is available.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        token = trio.lowlevel.current_trio_token()
        task = trio.lowlevel.current_task()

        def job() -> None:
            make = partial(_spawn, command, fds, 0 if group else None)
            result = outcome.capture(reserve.make, make)
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)

        self._start()
        self._jobs.put(job)
        # A worker thread of trio's would need a place in a limiter, and not last long enough.
        spawned: Spawned = await trio.lowlevel.wait_task_rescheduled(_not_now)
        return spawned

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="host spawner", daemon=True)
                start(thread)
                self._thread = thread

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        while True:
            self._jobs.get()()


spawner: Final = Spawner()
os.register_at_fork(after_in_child=spawner.reset)


def _not_now(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def _spawn(command: Sequence[str], fds: tuple[int, ...], group: int | None) -> Spawned:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        process_group=group,
        env=with_threads(os.environ),
    )
    if not hasattr(os, "pidfd_open"):
        return process, -1
    try:
        return process, os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a sandbox
            return process, -1
        process.kill()
        process.wait()
        raise
