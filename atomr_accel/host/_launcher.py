"""The thread that runs lanes: it waits for requests and for the end of ops.

Lanes that only launch kernels share one such thread in a host. An op that comes after one of
another lane is then launched right after it, in the program's order, without a change of threads.
Lanes whose ops keep their thread busy have one of their own.

The thread polls for the end of queued work for a moment, then naps between polls or waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
from collections import deque
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, final

from ..wire import ProtocolViolation, StickyFault
from ..wire.blackbox import LAUNCHED, SEQ, note_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..wire.interface import CompletionStrategy, Stream
    from ._lane import Lane, Request
    from ._slots import StreamSlot

_SELECTED: Final = 1024
"""``FD_SETSIZE``: ``select`` takes no larger descriptors, and ``poll`` no microseconds."""

_MILLISECOND: Final = 1e-3

_LINGER_SECONDS: Final = 250e-6
"""Time for which an idle thread polls for the next request before it sleeps.

Waking the thread costs 50 us. A program that slept during a long op takes 150 us to send the next.
"""

_LONG_SECONDS: Final = 1e-3
"""Time of a launch after which finished ops are answered before more launches, which may also be
long."""

_MOST_PLANNED: Final = 8
"""Calls that are made one right after the other. Until the last is planned the device has none."""

Planned = tuple["Lane", "StreamSlot", int, "Callable[[Any], Any]", "Sequence[int]"]
"""A planned call: its lane, its slot, its sequence number, its function, and its addresses."""

# Functions of C, because comprehensions and lambdas cost calls.
_by_sequence: Final = itemgetter(0)
_descriptor: Final = itemgetter(0)
_launches: Final = attrgetter("launches")
_aside: Final = attrgetter("aside")


@final
class Launcher:
    """Runs lanes in one thread.

    Args:
        completion: how to wait for finished ops.
        idle_spin: whether an idle thread may poll for requests for a moment before it sleeps.
        record: the words in which the thread notes its ops, see ``wire.blackbox``.

    Attributes:
        process: the process in which it was made.
        polls: whether it polls the device, rather than sleep until an op ends.
        planned: the calls to be made together.
        signals: the descriptors that the driver closes, by token; None unless ``completion`` wants
            them.
        quiet: seconds since an op has finished, or since there are any.
    """

    def __init__(
        self,
        completion: CompletionStrategy,
        *,
        idle_spin: bool,
        record: memoryview,
    ) -> None:
        self.record: Final = record
        self.process: Final = os.getpid()
        self.polls: Final = not completion.sleeps
        self.quiet: float = 0.0
        self._completion = completion
        self._idle_spin = idle_spin
        self._lanes: dict[int, Lane] = {}  # by descriptor
        self._opening: deque[Callable[[], Lane | None]] = deque()
        self.signals: Final[dict[Any, int] | None] = {} if completion.signals else None
        self.planned: list[Planned] = []
        self._late = 0.0  # when finished ops have waited for their answers for long
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
        """Have the thread make and run a lane; return False if the thread has ended.

        Args:
            make: a function, called in the thread, that returns the lane, or None if it fails.
        """
        with self._lock:
            if self._ended:
                return False
            self._opening.append(make)
        self.wake()
        return True

    def wake(self) -> None:
        """Have the thread check for changes."""
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b"w")

    # --- the thread -------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the program has closed all lanes, or the context fails."""
        note_thread(self.record)
        try:
            while (self._lanes and not self._opening) or self._open_lanes():
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
            while self._opening:  # callers get the context error
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
        for fd in (writer, self._wake_reader, *(self.signals or {}).values()):
            os.close(fd)

    def _open_lanes(self) -> bool:
        """Make the requested lanes. Without lanes the thread ends."""
        while self._opening:
            lane = self._opening.popleft()()
            if lane is not None:
                self._lanes[lane.sock.fileno()] = lane
                self._polled.register(lane.sock, select.POLLIN)
        with self._lock:
            self._ended = not self._lanes and not self._opening
        return not self._ended

    def _serve(self, ready: list[int]) -> None:
        """Take requests, launch them in the program's order, and answer finished ops.

        If several ops have come, and more meanwhile, those are launched first, once. The answers of
        both go together.
        """
        self._late = time.perf_counter() + _LONG_SECONDS
        several = self._pass(ready)
        if several and time.perf_counter() < self._late and (more := self._poll(0)):
            self._pass([fd for fd, _ in more])
        self._answer()

    def _pass(self, ready: list[int]) -> bool:
        """Take and launch the requests that have come; return True if there were several."""
        came: list[tuple[Lane, list[Request]]] = []
        self._receive(ready, came)
        several = len(came) > 1 or (bool(came) and len(came[0][1]) > 1)
        if several and len(self._lanes) > 1:
            # A batch's ops for another lane come right after these. Otherwise they would wait.
            self._receive([fd for fd, _ in self._poll(0)], came)
        if len(came) > 1:
            came = _in_order(came)
        for lane, requests in came:
            alone = len(requests) == 1
            for request in requests:
                lane.accept(request, alone=alone)
                if time.perf_counter() > self._late:
                    lane.end_pass()
                    self._answer()
            lane.end_pass()
        if self.planned:
            self.launch_planned()
        if waiting := [*filter(_aside, self._lanes.values())]:
            self._retry(waiting)
        return several

    def _receive(self, ready: list[int], came: list[tuple[Lane, list[Request]]]) -> None:
        """Read the requests that have come."""
        for fd in ready:
            lane = self._lanes.get(fd)
            if lane is None:
                if fd == self._wake_reader:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                continue
            requests = lane.receive()
            if requests is None:
                self._end(fd)
            elif requests:
                came.append((lane, requests))

    def _answer(self) -> None:
        """Answer finished ops."""
        self.record[LAUNCHED] = self.record[SEQ]
        for lane in self._lanes.values():  # most of which have nothing to do
            if lane.launches:
                lane.reap()
                lane.mark()
            if lane.answers:
                lane.flush()
        self._late = time.perf_counter() + _LONG_SECONDS

    def _retry(self, waiting: list[Lane]) -> None:
        """Launch the ops that were set aside and are ready, in the program's order."""
        aside = [(seq, lane) for lane in waiting for seq in lane.aside]
        if len(waiting) > 1:
            aside.sort(key=_by_sequence)
        for seq, lane in aside:
            lane.retry(seq)

    def _end(self, fd: int) -> None:
        lane = self._lanes.pop(fd)
        self._polled.unregister(fd)
        lane.close()

    # --- planned calls ----------------------------------------------------------------

    def plan(self, call: Planned) -> None:
        """Plan a call, to be made together with a few more, before the next launch."""
        self.planned.append(call)
        if len(self.planned) >= _MOST_PLANNED:
            self.launch_planned()

    def launch_planned(self) -> None:
        """Make the planned calls.

        They are made one right after the other, because each call evicts other data from the
        processor's caches.
        """
        if not self.planned:
            return
        planned, self.planned = self.planned, []
        for lane, slot, seq, call, addresses in planned:
            lane.launch_planned(slot, seq, call, addresses)
            if time.perf_counter() > self._late:
                self._answer()

    # --- waiting ----------------------------------------------------------------------

    def _wait(self) -> list[int]:
        """Wait for descriptors to read, and return them. Answer finished ops meanwhile."""
        poll, now = self._poll, time.perf_counter
        news = 0.0
        while busy := [*filter(_launches, self._lanes.values())]:
            if ready := poll(0):
                return [*map(_descriptor, ready)]
            if self._reap(busy):
                news = 0.0
                continue
            news = news or now()
            self.quiet = now() - news
            try:
                self._completion.wait(self)
            except StickyFault:
                raise
            except Exception as error:
                raise StickyFault(
                    f"the completion strategy {type(self._completion).__qualname__} has failed: "
                    f"{type(error).__name__}: {error}",
                    status=errno.EPROTO,
                    status_name="completion strategy",
                ) from error
        if self._idle_spin:
            until = time.perf_counter() + _LINGER_SECONDS
            while time.perf_counter() < until:
                if ready := poll(0):
                    return [*map(_descriptor, ready)]
        return [*map(_descriptor, poll())]

    def _reap(self, lanes: list[Lane]) -> bool:
        """Answer finished ops; return True if there were any."""
        news = False
        for lane in lanes:
            if lane.reap():
                lane.flush()
                news = True
        return news

    # --- for completion strategies ----------------------------------------------------

    def nap(self, seconds: float) -> None:
        """Sleep so long, or until a request or a signal of the driver comes."""
        if seconds >= _MILLISECOND:
            self._poll(int(seconds / _MILLISECOND))
            return
        fds = [self._wake_reader, *self._lanes, *(self.signals or {}).values()]
        if max(fds) < _SELECTED:
            select.select(fds, [], [], seconds)
        else:
            time.sleep(seconds)

    def wait_for_oldest(self) -> None:
        """Sleep in the driver until the oldest op is done."""
        slots = [slot for lane in self._lanes.values() for slot in lane.slots if slot.in_flight]
        slot = min(slots, key=lambda slot: slot.in_flight[0].ops[0][0])
        group = slot.in_flight[0]
        slot.stream.wait(group.steps[0][1] if group.steps else group.token)

    # --- completion by the driver -----------------------------------------------------

    def expect(self, stream: Stream, token: Any) -> None:
        """Watch for the end of queued work, marked by ``token``, with ``signals``."""
        assert self.signals is not None
        self.signals[token] = fd = stream.signal()
        self._polled.register(fd, select.POLLIN)

    def seen(self, token: Any) -> None:
        """Stop watching for the end of ``token``, which has been seen."""
        assert self.signals is not None
        fd = self.signals.pop(token, None)
        if fd is not None:
            self._polled.unregister(fd)
            os.close(fd)

    # --- the end ----------------------------------------------------------------------

    def _report(self, fault: StickyFault) -> None:
        """Report the end of the context on all lanes, with the ops that may have caused it."""
        suspects: tuple[int, ...] = (fault.seq,) if fault.seq else ()
        for lane in [*self._lanes.values()][:1]:
            lane.flush_prints()
            suspects = suspects or lane.suspects()
        for lane in self._lanes.values():
            lane.report(fault, suspects)

    def launching(self) -> int:
        """Return the op that the thread is launching; 0 without one."""
        seq = self.record[SEQ]
        return 0 if seq == self.record[LAUNCHED] else seq


def _in_order(came: list[tuple[Lane, list[Request]]]) -> list[tuple[Lane, list[Request]]]:
    """Return the requests that have come for several lanes, in the program's order."""
    every = [(request[0], lane, request) for lane, requests in came for request in requests]
    every.sort(key=_by_sequence)
    runs: list[tuple[Lane, list[Request]]] = []
    last: Lane | None = None
    for _, lane, request in every:
        if lane is not last:
            runs.append((lane, []))
            last = lane
        runs[-1][1].append(request)
    return runs
