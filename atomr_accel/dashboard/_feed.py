"""States of a system for its pages: a complete state first, then changes as they happen."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from ._history import DashboardHistory
from ._patch import Json, encode, merge_patch
from ._state import SystemObserver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..actors import ActorSystem
    from ..telemetry import HasStatistics, NvmlMonitor

_log: Final = logging.getLogger("atomr_accel.dashboard")

INTERVAL: Final = 0.25
"""Seconds between two states, at least."""

_SHARE: Final = 24
"""Looking at all actors takes at most 1/25 of the time of trio's thread: the more there are, the
less often it is done. Devices and events are quickly looked at, so they are never late."""

MOST_LOOKERS: Final = 16

State = Mapping[str, Json]


class Feed:
    """States and changes for any number of pages.

    Pages have no queues. A slow page gets the difference between the state that it has and the
    present one.

    Attributes:
        history: events and curves, kept with or without pages.
    """

    def __init__(
        self,
        system: ActorSystem,
        nvml: NvmlMonitor | None = None,
        patterns: Mapping[str, HasStatistics] | None = None,
    ) -> None:
        self._observer = SystemObserver(system, nvml, patterns)
        self._nvml = nvml
        self.history: Final = DashboardHistory()
        self._actors: dict[str, Json] = {}
        self._actors_due = 0.0
        self._state: State = {}
        self._before: State = {}
        self._change = ""
        self._changed = trio.Event()
        self._lookers = 0
        self._wanted = trio.Event()
        self._over = False

    async def run(self) -> None:
        """Make states while pages are open, and the points of curves always.

        Errors are logged, so that the dashboard cannot end the program.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_again_and_again, self._beat)
            nursery.start_soon(_again_and_again, self._look_on)
            if self._nvml is not None:
                nursery.start_soon(self._note_xids, self._nvml)

    async def _note_xids(self, nvml: NvmlMonitor) -> None:
        async with nvml.watch_xids() as xids:
            async for xid in xids:
                self.history.note_xid(self._observer.path_of(xid.uuid), xid)

    async def _beat(self) -> None:
        await trio.sleep(1)
        self.history.beat(self._observer.devices)

    async def _look_on(self) -> None:
        if not self._lookers:
            self._wanted = trio.Event()
            await self._wanted.wait()
        await trio.sleep(INTERVAL)
        await self.look(thoroughly=trio.current_time() >= self._actors_due)

    async def look(self, *, thoroughly: bool = True) -> State:
        """Return the present state.

        Args:
            thoroughly: look at all actors, too.
        """
        if thoroughly:
            self._actors, seconds = await self._observer.actors()
            self._actors_due = trio.current_time() + _SHARE * seconds
        state: State = {
            "at": int(time.time()),
            "program": self._observer.program,
            "system": self._observer.system(len(self._actors)),
            "actors": self._actors,
            "devices": self._observer.states_of_devices(),
            "patterns": self._observer.patterns(),
            "curves": self.history.curves,
            "past": self.history.past,
            "events": self.history.events,
        }
        if patch := merge_patch(self._state, state):
            self._before, self._state = self._state, state
            self._change = encode(patch)
            self._changed.set()
            self._changed = trio.Event()
        return self._state

    @property
    def full(self) -> bool:
        """True if the number of pages is at its limit."""
        return self._lookers >= MOST_LOOKERS

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events for one page: ``state``, then ``change`` again and again, ``end``."""
        with self._looking():
            seen = await self.look()
            yield _event("state", encode(seen))
            while not self._over:
                if self._state is seen:
                    await self._changed.wait()
                    continue
                late = self._before is not seen
                change = encode(merge_patch(seen, self._state)) if late else self._change
                seen = self._state
                yield _event("change", change)
            yield _event("end", "{}")

    def close(self) -> None:
        """Send all pages the end of the feed."""
        self._over = True
        self._changed.set()

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self._lookers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._lookers -= 1


async def _again_and_again(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await step()
        except Exception:  # noqa: BLE001 (logged)
            _log.exception("a dashboard has failed, and goes on")
            await trio.sleep(1)


def _event(kind: str, data: str) -> bytes:
    # `data` is one line: see `encode`.
    return f"event: {kind}\ndata: {data}\n\n".encode("ascii")
