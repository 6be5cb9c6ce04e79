"""The thread that runs lanes: it waits for requests, and sees what has finished.

Where launching takes no time to speak of, the lanes of a host share one such thread: an op that
comes after one of another lane is launched right behind it, in the order of the program, and
nothing is handed from thread to thread. Lanes whose ops keep their thread have one of their own.

Work that is queued on the device is watched by polling while there is something to gain from
it, then with naps or by waiting.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, final

from ..wire import ProtocolViolation, StickyFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._lane import Lane, Request
    from ._protocol import Stream

_POLL_SECONDS: Final = 1e-3
"""How long to poll work in flight before napping between polls."""

_LONGEST_NAP: Final = 50e-6

_NAP_SHARE: Final = 1 / 64
"""How long a nap is, as a share of the time without news: an end is seen late by about that."""

_LOOK_MILLISECONDS: Final = 20

_LINGER_SECONDS: Final = 250e-6
"""How long an idle thread looks for the next request before it sleeps.

Waking it costs 50 us, and a program that has slept for a long op takes 150 us to ask for the next.
"""

_LONG_SECONDS: Final = 1e-3
"""What keeps the thread for so long is answered before what is behind it, which may, too."""

_by_sequence: Final = itemgetter(0)


@final
class Launcher:
    """Runs lanes in one thread.

    Args:
        completion: how to learn what is done: ``"polled"`` asks all the time,
            ``"hybrid"`` asks for a millisecond, then naps in between, ``"blocking"``
            sleeps until the oldest is done and takes new requests only then,
            ``"callback"`` has the driver close a descriptor. The first two take the GIL
            again and again: not for the user's process.
        idle_spin: whether it may look for requests for a moment, when idle, before it sleeps.

    Attributes:
        process: the process that it was made in.
        polls: whether it asks the device, rather than sleep until that tells.
    """

    def __init__(self, *, completion: str, idle_spin: bool) -> None:
        self.process: Final = os.getpid()
        self.polls: Final = completion != "blocking"
        self._completion = completion
        self._idle_spin = idle_spin
        self._lanes: dict[int, Lane] = {}  # by descriptor
        self._opening: deque[Callable[[], Lane | None]] = deque()
        self._signals: dict[Any, int] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake_reader, False)
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        self._polled = poll
        self._poll = poll.poll

    # --- for other threads ------------------------------------------------------------

    def open(self, make: Callable[[], Lane | None]) -> bool:
        """Have the thread make a lane, and run it; whether it does, or has ended.

        Args:
            make: called in the thread; it gives None where it fails.
        """
        with self._lock:
            if self._ended:
                return False
            self._opening.append(make)
        self.wake()
        return True

    def wake(self) -> None:
        """Have the thread look whether anything has changed."""
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b"w")

    # --- the thread -------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the program has closed all lanes, or the context fails."""
        try:
            while self._open_lanes():
                self._serve(self._wait())
        except StickyFault as fault:
            self._report(fault)
        except ProtocolViolation as violation:
            why = f"the program broke the protocol: {violation}"
            self._report(StickyFault(why, status=errno.EPROTO, status_name="protocol violation"))
        except ConnectionError:
            pass  # the program is gone, or has given this context up
        finally:
            with self._lock:
                self._ended = True
            while self._opening:  # whoever has asked is told what the context says to that
                lane = self._opening.popleft()()
                if lane is not None:
                    lane.close()
            for lane in self._lanes.values():
                lane.close()
            self.close()

    def close(self) -> None:
        """Close the descriptors, after the thread or without one."""
        # Other lanes may still want to wake this one; the number may soon be another file's.
        writer, self._wake_writer = self._wake_writer, -1
        for fd in (writer, self._wake_reader, *self._signals.values()):
            os.close(fd)

    def _open_lanes(self) -> bool:
        """Make the lanes that are asked for; without any it ends."""
        while self._opening:
            lane = self._opening.popleft()()
            if lane is not None:
                self._lanes[lane.sock.fileno()] = lane
                self._polled.register(lane.sock, select.POLLIN)
        with self._lock:
            self._ended = not self._lanes and not self._opening
        return not self._ended

    def _serve(self, ready: list[int]) -> None:
        """Take what has come, launch it in the program's order, and answer what is done."""
        requests: list[tuple[int, Lane, Request]] = []
        sources = self._receive(ready, requests)
        if len(requests) > 1 and len(self._lanes) > 1:
            # What a batch has for another lane is right behind: else it would be waited for.
            sources += self._receive([fd for fd, _ in self._poll(0)], requests)
        if sources > 1:
            requests.sort(key=_by_sequence)
        before: Lane | None = None
        begun = time.perf_counter()
        for _, lane, request in requests:
            if lane is not before and before is not None:
                before.end_pass()
            before = lane
            lane.accept(request)
            if time.perf_counter() - begun > _LONG_SECONDS:
                lane.end_pass()
                self._answer()
                begun = time.perf_counter()
        if before is not None:
            before.end_pass()
        self._retry()
        self._answer()

    def _receive(self, ready: list[int], requests: list[tuple[int, Lane, Request]]) -> int:
        """Take what has come; of how many lanes there is something."""
        sources = 0
        for fd in ready:
            lane = self._lanes.get(fd)
            if lane is None:
                if fd == self._wake_reader:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                continue
            received = lane.receive()
            if received is None:
                self._end(fd)
            elif received:
                sources += 1
                requests += [(request[0], lane, request) for request in received]
        return sources

    def _answer(self) -> None:
        """Answer what is done."""
        for lane in self._lanes.values():  # most of which have nothing to do
            if lane.busy:
                lane.mark()
                lane.reap()
            if lane.answers:
                lane.flush()

    def _retry(self) -> None:
        """Launch what was put aside and need not wait any more, in the program's order."""
        waiting = [lane for lane in self._lanes.values() if lane.aside]
        aside = [(seq, lane) for lane in waiting for seq in lane.aside]
        if len(waiting) > 1:
            aside.sort(key=_by_sequence)
        for seq, lane in aside:
            lane.retry(seq)

    def _end(self, fd: int) -> None:
        lane = self._lanes.pop(fd)
        self._polled.unregister(fd)
        lane.close()

    # --- waiting ----------------------------------------------------------------------

    def _wait(self) -> list[int]:
        """Return when there is something to read, and what; answer what finishes until then."""
        poll, completion = self._poll, self._completion
        news = time.perf_counter()
        while any(lane.busy for lane in self._lanes.values()):
            if ready := poll(0):
                return [fd for fd, _ in ready]
            if self._reap():
                news = time.perf_counter()
            elif completion == "blocking":
                self._sleep_until_the_oldest_is_done()
            elif completion == "callback":
                # The driver calls nothing after an error, so look now and then as well.
                if any(fd in self._signals.values() for fd, _ in poll(_LOOK_MILLISECONDS)):
                    self._reap()
            elif completion == "hybrid" and (quiet := time.perf_counter() - news) > _POLL_SECONDS:
                fds = [self._wake_reader, *self._lanes]
                select.select(fds, [], [], min(quiet * _NAP_SHARE, _LONGEST_NAP))
        if self._idle_spin:
            until = time.perf_counter() + _LINGER_SECONDS
            while time.perf_counter() < until:
                if ready := poll(0):
                    return [fd for fd, _ in ready]
        return [fd for fd, _ in poll()]

    def _reap(self) -> bool:
        """Answer what has finished; whether anything has."""
        news = False
        for lane in self._lanes.values():
            if lane.busy and lane.reap():
                lane.flush()
                news = True
        return news

    def _sleep_until_the_oldest_is_done(self) -> None:
        slots = [slot for lane in self._lanes.values() for slot in lane.slots if slot.in_flight]
        slot = min(slots, key=lambda slot: slot.in_flight[0].ops[0][0])
        group = slot.in_flight[0]
        slot.stream.wait(group.steps[0][1] if group.steps else group.token)

    # --- completion by the driver -----------------------------------------------------

    def expect(self, stream: Stream, token: Any) -> None:
        """Work was queued whose end ``token`` tells."""
        if self._completion == "callback":
            self._signals[token] = fd = stream.signal()
            self._polled.register(fd, select.POLLIN)

    def seen(self, token: Any) -> None:
        """That end was seen."""
        if token in self._signals:
            fd = self._signals.pop(token)
            self._polled.unregister(fd)
            os.close(fd)

    # --- the end ----------------------------------------------------------------------

    def _report(self, fault: StickyFault) -> None:
        """The context is gone: all lanes say so, and which op it was."""
        for lane in [*self._lanes.values()][:1]:
            lane.flush_prints()
        suspects = [suspect for lane in self._lanes.values() if (suspect := lane.suspect())]
        for lane in self._lanes.values():
            lane.report(fault, min(suspects, default=0))
