"""What ports do between two turns of trio's loop: ops go out, and answers come in.

Tasks that submit and tasks that wait run in turns of the loop. If ops were sent and answers
handed out by tasks, too, each of that would take a turn of its own; and beside a task of the
program that computes for a millisecond at a time, each turn takes a millisecond. So ports
send right before the loop waits, all that the turn has brought together, and receive right
after it has waited, so that whoever awaits an answer runs in the turn that begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import trio

if TYPE_CHECKING:
    from ._port import Port

_of_run: Final[trio.lowlevel.RunVar[Turns | None]] = trio.lowlevel.RunVar("turns", default=None)


@final
class Turns(trio.abc.Instrument):
    """The ports of one ``trio.run``; an instrument of it while there are any."""

    def __init__(self) -> None:
        self._ports: list[Port] = []
        self._unsent: list[Port] = []
        self._token = trio.lowlevel.current_trio_token()

    @staticmethod
    def join(port: Port) -> Turns:
        """Take a port in, until it leaves."""
        turns = _of_run.get()
        if turns is None:
            turns = Turns()
            _of_run.set(turns)
            trio.lowlevel.add_instrument(turns)
        turns._ports.append(port)
        return turns

    def leave(self, port: Port) -> None:
        """The port does nothing any more."""
        self._ports.remove(port)
        if port in self._unsent:
            self._unsent.remove(port)
        if not self._ports:
            _of_run.set(None)
            trio.lowlevel.remove_instrument(self)

    def send_soon(self, port: Port) -> None:
        """Have a port send what it has at the end of this turn; once is enough."""
        self._unsent.append(port)

    def before_io_wait(self, timeout: float) -> None:
        """Send what this turn has brought."""
        del timeout
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            for port in unsent:
                if not port.flush():
                    # A task has to wait for the socket. The loop sleeps before it sees one
                    # that is scheduled here, unless something wakes it.
                    self._token.run_sync_soon(port.wake_writer)

    def after_io_wait(self, timeout: float) -> None:
        """Hand out what has come."""
        del timeout
        for port in self._ports:
            if port.load:
                port.look()
