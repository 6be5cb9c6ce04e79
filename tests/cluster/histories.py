"""Simulated clusters under faults, and checks of their histories. A seed says it all."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing

from atomr_accel.actors import ActorStopped
from atomr_accel.cluster import (
    Cluster,
    ClusterSettings,
    ConnectionLost,
    MemoryStore,
    StoreUnavailable,
    open_cluster,
)

from .simulated import Add, Log, Network, NodeStore, Read

SETTINGS = ClusterSettings(lease=4.0, shards=8, heartbeat=0.5, silence=1.5)

KEYS = ("x", "y", "z")

UNKNOWN = (ConnectionLost, ActorStopped, StoreUnavailable)
"""Errors after which it is unknown whether a message was handled."""


@dataclass
class Event:
    """One call of a client.

    Attributes:
        number: the added number; None for a read.
        result: what came back; None if that is unknown.
    """

    key: str
    number: int | None
    began: float
    ended: float = float("inf")
    result: Any = None


@dataclass
class History:
    """Observations of clients, and the final content of the store."""

    events: list[Event] = field(default_factory=list)
    final: dict[str, list[int]] = field(default_factory=dict)
    writers: dict[str, list[int]] = field(default_factory=dict)
    recovered: float = 0.0

    def check(self) -> None:
        """Raise an AssertionError unless the history is linearizable.

        Additions have positions, so that the order of effects is the final log. Each acknowledged
        addition is in it once, at its position; each read saw a beginning of it. Calls that do not
        overlap saw what those before them did.
        """
        for key in KEYS:
            log = self.final[key]
            assert len(log) == len(set(log)), f"{key}: doubled: {log}"
            points: list[tuple[float, float, int]] = []
            tried = {event.number for event in self.events if event.key == key}
            assert set(log) <= tried, f"{key}: never sent"
            for event in self.events:
                if event.key != key or event.result is None:
                    continue
                if event.number is None:
                    assert log[: len(event.result)] == event.result, f"{key}: read {event.result}"
                    points.append((event.began, event.ended, len(event.result)))
                else:
                    place = event.result
                    assert log[place - 1 : place] == [event.number], f"{key}: lost {event.number}"
                    points.append((event.began, event.ended, place))
            for _, ended, before in points:
                late = [(began, seen) for began, _, seen in points if began > ended]
                assert all(seen >= before for _, seen in late), f"{key}: went back"
        for key, epochs in self.writers.items():
            assert epochs == sorted(epochs), f"{key}: two effective holders: {epochs}"


class Simulation:
    """A cluster under faults."""

    def __init__(self, seed: int, nodes: int, calls: int, nursery: trio.Nursery) -> None:
        self.random = random.Random(seed)
        self.names = [f"n{number}" for number in range(nodes)]
        self.calls = calls
        self.nursery = nursery
        self.history = History()
        self.store = MemoryStore()
        self.network = Network(nursery, seed)
        self.access = {name: NodeStore(self.store, seed + i) for i, name in enumerate(self.names)}
        self.rates = {name: self.random.uniform(0.92, 1.08) for name in self.names}
        self.up: dict[str, Cluster] = {}
        self.scopes: dict[str, trio.CancelScope] = {}
        self.numbers = 0
        self._witness()

    def _witness(self) -> None:
        accepted = self.store.compare_and_set

        async def noted(key: str, value: Any, *, version: int, fence: Any = None) -> int:
            result = await accepted(key, value, version=version, fence=fence)
            if "/entity/" in key:
                self.history.writers.setdefault(key, []).append(fence.epoch)
            return result

        self.store.compare_and_set = noted  # type: ignore[method-assign]

    async def live(self, name: str) -> None:
        """Run a node, again and again, each time until it is crashed or leaves."""
        offset = self.random.uniform(-1e6, 1e6)
        rate = self.rates[name]
        while True:
            with trio.CancelScope() as scope:
                self.scopes[name] = scope
                try:
                    async with open_cluster(
                        "sim",
                        node=name,
                        store=self.access[name],
                        messages=[Add, Read],
                        entities=[Log],
                        transport=self.network.transport(name),
                        settings=SETTINGS,
                        clock=lambda: trio.current_time() * rate + offset,
                    ) as cluster:
                        self.up[name] = cluster
                        try:
                            if self.random.random() < 0.2:  # a rolling restart
                                await trio.sleep(self.random.uniform(3.0, 20.0))
                            else:
                                await trio.sleep_forever()
                        finally:
                            self.up.pop(name, None)
                except* StoreUnavailable:
                    pass
            await trio.sleep(self.random.uniform(0.1, 3.0))

    async def trouble(self) -> None:
        """Do harm, some seconds at a time."""
        network = self.network
        while True:
            await trio.sleep(self.random.uniform(0.2, 4.0))
            what = self.random.choice(
                ("crash", "cut", "away", "loss", "mixing", "slow", "slow store", "failing", "none")
            )
            name = self.random.choice(self.names)
            access = self.access[name]
            if what == "crash":
                self.scopes[name].cancel()
            elif what == "cut":
                others = [each for each in self.names if self.random.random() < 0.5]
                network.cuts |= {frozenset((name, other)) for other in others if other != name}
            elif what == "away":
                access.away = True
            elif what == "loss":
                network.loss = self.random.uniform(0.0, 0.05)
            elif what == "mixing":
                network.mixing = self.random.uniform(0.0, 0.05)
            elif what == "slow":
                network.slow = self.random.choice((0.01, 0.3, 2.0))
            elif what == "slow store":
                access.slow = self.random.choice((0.01, 1.0, 9.0))
            elif what == "failing":
                access.failing = self.random.uniform(0.0, 0.2)
            if self.random.random() < 0.25:
                self.heal()

    async def deafen(self) -> None:
        """Have a node not hear for so long that others take its leases, again and again."""
        while True:
            await trio.sleep(self.random.uniform(0.5, 4.0))
            if not self.up:
                continue
            cluster = self.up[self.random.choice(sorted(self.up))]
            holder = cluster.place_of(Log, self.random.choice(KEYS))
            access = self.access[holder or self.random.choice(self.names)]
            access.deaf = True
            await trio.sleep(SETTINGS.lease * self.random.uniform(1.5, 4.0))
            access.deaf = False

    def heal(self) -> None:
        """End all harm."""
        network = self.network
        network.cuts.clear()
        network.loss = network.mixing = network.slow = 0.0
        for access in self.access.values():
            access.away, access.failing, access.slow = False, 0.0, 0.0

    async def client(self) -> None:
        """Call entities from random nodes."""
        for _ in range(self.calls):
            await trio.sleep(self.random.uniform(0.0, 2.0))
            if not self.up:
                continue
            # Whoever has lost its leases without hearing of it is asked as often as all others.
            deaf = [name for name in sorted(self.up) if self.access[name].deaf]
            ones = deaf if deaf and self.random.random() < 0.5 else sorted(self.up)
            cluster = self.up[self.random.choice(ones)]
            key = self.random.choice(KEYS)
            number = None
            if self.random.random() < 0.6:
                self.numbers += 1
                number = self.numbers
            event = Event(key, number, trio.current_time())
            self.history.events.append(event)
            message: Any = Read() if number is None else Add(number)
            with trio.move_on_after(20.0):
                try:
                    event.result = await cluster.entity(Log, key).ask(message)
                    event.ended = trio.current_time()
                except UNKNOWN:
                    pass

    async def run(self, clients: int) -> None:
        """Run clients under faults; heal; and read all logs."""
        for name in self.names:
            self.nursery.start_soon(self.live, name)
        while not self.up:  # noqa: ASYNC110 (on a clock that jumps)
            await trio.sleep(0.1)
        async with trio.open_nursery() as harm:
            harm.start_soon(self.trouble)
            harm.start_soon(self.deafen)
            async with trio.open_nursery() as nursery:
                for _ in range(clients):
                    nursery.start_soon(self.client)
            harm.cancel_scope.cancel()
        self.heal()
        for access in self.access.values():
            access.deaf = False
        began = trio.current_time()
        for key in KEYS:
            self.history.final[key] = await self._read(key)
        self.history.recovered = trio.current_time() - began

    async def _read(self, key: str) -> list[int]:
        while True:
            await trio.sleep(0.1)
            if self.up:
                cluster = self.up[min(self.up)]
                with trio.move_on_after(20.0):
                    try:
                        return await cluster.entity(Log, key).ask(Read())
                    except UNKNOWN:
                        pass


def simulate(seed: int, *, nodes: int = 5, clients: int = 4, calls: int = 16) -> History:
    """Return the history of a seed, which is always the same."""
    histories = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            simulation = Simulation(seed, nodes, calls, nursery)
            with trio.fail_after(3600):
                await simulation.run(clients)
            histories.append(simulation.history)
            nursery.cancel_scope.cancel()

    # The order in which trio runs tasks is by chance, too; these are what its own plugins set.
    run: Any = trio._core._run
    before, run._ALLOW_DETERMINISTIC_SCHEDULING = run._ALLOW_DETERMINISTIC_SCHEDULING, True
    run._r.seed(seed)
    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = before
    return histories[0]
