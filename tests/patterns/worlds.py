"""Shared by tests of patterns: a clock that jumps, and a device that faults on request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from atomr_accel import ContextPoisoned
from atomr_accel.patterns import Batcher, Observer, open_batcher

from .. import harness

on_mock_clock, run = harness.on_mock_clock, harness.run_on_mock_clock  # for tests/worlds


def poisoned() -> ContextPoisoned:
    """Return the error that every call on a device raises after a fault."""
    return ContextPoisoned(
        "a fault of the test", generation=1, status=700, status_name="FAULT", op="test"
    )


class FaultyDevice:
    """A device for functions of tests. A fault takes down all that runs on it at that moment."""

    def __init__(self) -> None:
        self.running: set[trio.CancelScope] = set()
        self.faults = 0

    async def work(self, seconds: float) -> None:
        """Compute for a while."""
        with trio.CancelScope() as scope:
            self.running.add(scope)
            try:
                await trio.sleep(seconds)
            finally:
                self.running.discard(scope)
        if scope.cancelled_caught:
            raise poisoned()

    def fault(self) -> None:
        """Make this call and all running ones fault."""
        self.faults += 1
        for scope in self.running:
            scope.cancel()
        raise poisoned()


class Log(Observer):
    """Notes the events that it receives."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def submitted(self, item: object) -> None:
        self.lines.append(("submitted", item))

    def started(self, items: Sequence[object]) -> None:
        self.lines.append(("started", *items))

    def retried(self, items: Sequence[object], error: Exception) -> None:
        self.lines.append(("retried", *items))

    def answered(self, item: object, seconds: float) -> None:
        self.lines.append(("answered", item))

    def failed(self, item: object, error: BaseException, seconds: float) -> None:
        self.lines.append(("failed", item))

    def withdrawn(self, item: object, seconds: float) -> None:
        self.lines.append(("withdrawn", item))

    def ends(self) -> dict[object, int]:
        """Return how many ends each request has had."""
        ends = dict.fromkeys((line[1] for line in self.lines if line[0] == "submitted"), 0)
        for what, *items in self.lines:
            if what in {"answered", "failed", "withdrawn"}:
                ends[items[0]] += 1
        return ends


class Doubler:
    """Doubles the items of a list, which takes a second, and notes each list with its time."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.batches: list[list[int]] = []
        self.times: list[float] = []
        self.running = self.most = 0

    async def __call__(self, items: list[int]) -> list[int | Exception]:
        self.batches.append(list(items))
        self.times.append(trio.current_time())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.running -= 1
        return [2 * item for item in items]


class Clients:
    """Tasks that each ask for one item, and their results."""

    def __init__(self, nursery: trio.Nursery, batcher: Batcher[Any, Any]) -> None:
        self.nursery = nursery
        self.batcher = batcher
        self.got: dict[Any, Any] = {}
        self.scopes: dict[Any, trio.CancelScope] = {}

    async def ask(self, item: Any, *, priority: float = 0, within: float = float("inf")) -> None:
        """Start a client, and wait until it has asked."""
        self.nursery.start_soon(self._client, item, priority, within)
        await trio.testing.wait_all_tasks_blocked()

    async def _client(self, item: Any, priority: float, within: float) -> None:
        with trio.move_on_after(within) as self.scopes[item]:
            try:
                self.got[item] = await self.batcher.ask(item, priority=priority)
            except Exception as error:  # noqa: BLE001
                self.got[item] = error
        if self.scopes[item].cancelled_caught:
            self.got[item] = "cancelled"


@asynccontextmanager
async def open_clients(compute: Any, **options: Any) -> AsyncIterator[Clients]:
    """Open a batcher with these options, and a nursery for its clients."""
    async with open_batcher(compute, **options) as batcher, trio.open_nursery() as nursery:
        yield Clients(nursery, batcher)
