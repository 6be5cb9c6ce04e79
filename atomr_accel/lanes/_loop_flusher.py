"""Work of ports between two turns of trio's loop: they send ops and receive answers.

Tasks that submit and tasks that wait run in turns of the loop. If tasks sent ops and handed out
answers too, each step would take another turn. A turn takes a millisecond next to a program task
that computes for a millisecond at a time. Ports therefore send right before the loop waits, with
all ops of the turn together. They receive right after it has waited, so a task runs in the turn
after its answer arrived.

Answers arrive by the thousand, and each lets a task run. A turn wakes only some of these tasks, in
the order of their answers, so that the program's other tasks get their turns.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

import trio

from ._interrupts import uninterrupted

if TYPE_CHECKING:
    from ._op import Op
    from ._port import Port

_MOST_WOKEN: Final = 64
"""Tasks that go on in a turn because of answers: a millisecond, if each takes some ten us."""

_of_run: Final[trio.lowlevel.RunVar[LoopFlusher | None]] = trio.lowlevel.RunVar(
    "flusher", default=None
)


@final
@uninterrupted
class LoopFlusher(trio.abc.Instrument):
    """The ports of one ``trio.run``; an instrument of it while there is anything to do."""

    def __init__(self) -> None:
        self._ports: list[Port] = []
        self._unsent: list[Port] = []
        self._woken = 0
        self._waiting: deque[Op] = deque()
        self._installed = False
        self._token = trio.lowlevel.current_trio_token()

    @staticmethod
    def join(port: Port) -> LoopFlusher:
        """Take a port in, until it leaves."""
        flusher = _of_run.get()
        if flusher is None:
            flusher = LoopFlusher()
            _of_run.set(flusher)
        flusher._ports.append(port)
        flusher._install()
        return flusher

    def _install(self) -> None:
        if not self._installed:
            self._installed = True
            trio.lowlevel.add_instrument(self)

    def _remove_if_idle(self) -> None:
        if self._installed and not self._ports and not self._waiting:
            self._installed = False
            trio.lowlevel.remove_instrument(self)
            if _of_run.get() is self:
                _of_run.set(None)

    def leave(self, port: Port) -> None:
        """Remove a port that has no more work."""
        self._ports.remove(port)
        if port in self._unsent:
            self._unsent.remove(port)
        self._remove_if_idle()

    def wake(self, op: Op) -> None:
        """Let the caller of an op that is answered go on, in this turn or a later one."""
        if self._woken < _MOST_WOKEN:
            self._woken += 1
            op.wake()
            return
        if not self._waiting:
            self._install()
        self._waiting.append(op)

    def send_soon(self, port: Port) -> None:
        """Have a port send its queued ops at the end of this turn. Call this once per turn."""
        self._unsent.append(port)

    def before_io_wait(self, timeout: float) -> None:
        """Send the ops of this turn."""
        del timeout
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            for port in unsent:
                if not port.flush():
                    # A task has to wait for the socket. The loop sleeps before it sees one
                    # that is scheduled here, unless something wakes it.
                    self._token.run_sync_soon(port.wake_writer)
        if self._waiting:
            self._token.run_sync_soon(_nothing, idempotent=True)

    def after_io_wait(self, timeout: float) -> None:
        """Receive answers on all ports, and wake some of the tasks that wait for them."""
        del timeout
        self._woken = 0
        waiting = self._waiting
        while waiting and self._woken < _MOST_WOKEN:
            self.wake(waiting.popleft())
        for port in self._ports:
            if port.load:
                port.poll_replies()
        if not self._ports:
            self._remove_if_idle()


@final
@uninterrupted
class StaggeredEvent:
    """An event that may release thousands of tasks: a turn of the loop wakes only some of them.

    A task that continues checks its condition again, because it may have changed meanwhile.
    """

    def __init__(self) -> None:
        self._open = False
        self._lot = trio.lowlevel.ParkingLot()

    def open(self) -> None:
        """Release all tasks that wait, and those that wait later."""
        self._open = True
        self._let_some_go_on()

    async def wait(self) -> None:
        """Wait until it is open."""
        if self._open:
            await trio.lowlevel.checkpoint()
        else:
            await self._lot.park()

    def _let_some_go_on(self) -> None:
        self._lot.unpark(count=_MOST_WOKEN)
        if self._lot:
            trio.lowlevel.current_trio_token().run_sync_soon(self._let_some_go_on)


def _nothing() -> None:
    """Keeps the loop from sleeping: there are tasks to wake in its next turn."""
