"""Networks and stores without sockets and files, which fail as a seed says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from atomr_accel.actors import Message, handler
from atomr_accel.cluster import (
    ClusterProgram,
    ClusterSettings,
    Entity,
    MemoryStore,
    StoreEntry,
    StoreLease,
    StoreUnavailable,
)


class Add(Message[int]):
    """Add a number once; the answer is the position of this addition in the log."""

    number: int


class Read(Message[list[int]]):
    """Return all numbers that were added."""


class Fail(Message[None]):
    """Raise an error."""


class Added(msgspec.Struct, frozen=True):
    numbers: list[int] = []


class Log(Entity[Added]):
    """An entity with a log of numbers."""

    @handler
    async def add(self, message: Add) -> int:
        await self.save(Added([*self.state.numbers, message.number]))
        return len(self.state.numbers)

    @handler
    async def read(self, message: Read) -> list[int]:
        await trio.lowlevel.checkpoint()
        return list(self.state.numbers)

    @handler
    async def fail(self, message: Fail) -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("failed as asked")


class _End(trio.abc.Stream):
    """One end of a connection: writes are delayed, lost and reordered as the network says."""

    def __init__(self, network: Network, here: str, there: str) -> None:
        self.network = network
        self.here, self.there = here, there
        self.other: _End
        self.send_channel, self.receive_channel = trio.open_memory_channel[bytes](10_000)
        self.arrives = 0.0
        self.closed = False

    async def send_all(self, data: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self.closed or self.other.closed:
            raise trio.BrokenResourceError
        network = self.network
        if not data or network.cut(self.here, self.there) or network.loses():
            return
        delay = network.delay()
        if network.reorders():
            delay *= 3
        else:
            now = trio.current_time()
            self.arrives = max(self.arrives, now + delay)
            delay = self.arrives - now
        if delay:
            network.nursery.start_soon(self._later, delay, bytes(data))
        else:
            self._arrive(bytes(data))

    async def _later(self, delay: float, data: bytes) -> None:
        await trio.sleep(delay)
        self._arrive(data)

    def _arrive(self, data: bytes) -> None:
        if not self.other.closed and not self.network.cut(self.here, self.there):
            self.other.send_channel.send_nowait(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.closed:
            raise trio.ClosedResourceError
        try:
            return await self.receive_channel.receive()
        except trio.EndOfChannel:
            return b""

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            self.receive_channel.close()
            if not self.other.closed:
                self.other.send_channel.close()
        await trio.lowlevel.checkpoint()


class Network:
    """All links of a cluster.

    Attributes:
        cuts: pairs of nodes between which nothing passes.
        loss: chance that a write is lost.
        mixing: chance that a write arrives later than the next.
        slow: longest delay in seconds.
    """

    def __init__(self, nursery: trio.Nursery, seed: int = 0) -> None:
        self.nursery = nursery
        self.random = random.Random(seed)
        self.listeners: dict[str, Any] = {}
        self.cuts: set[frozenset[str]] = set()
        self.loss = self.mixing = self.slow = 0.0
        self.ends: list[_End] = []

    def cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cuts

    def loses(self) -> bool:
        return self.random.random() < self.loss

    def reorders(self) -> bool:
        return self.random.random() < self.mixing

    def delay(self) -> float:
        return self.random.random() * self.slow

    def transport(self, node: str) -> Link:
        return Link(self, node)


class Link:
    """A node's access to the network."""

    def __init__(self, network: Network, node: str) -> None:
        self.network = network
        self.node = node

    async def listen(self, handle: Any, *, task_status: trio.TaskStatus[str]) -> None:
        async with trio.open_nursery() as nursery:
            self.network.listeners[self.node] = (nursery, handle)
            task_status.started(self.node)
            try:
                await trio.sleep_forever()
            finally:
                if self.network.listeners.get(self.node) == (nursery, handle):
                    del self.network.listeners[self.node]

    async def connect(self, node: str, address: str) -> trio.abc.Stream:
        await trio.sleep(self.network.delay())
        if self.network.cut(self.node, node):
            await trio.sleep_forever()
        if address not in self.network.listeners:
            raise OSError(f"nothing listens at {address}")
        nursery, handle = self.network.listeners[address]
        ours = _End(self.network, self.node, node)
        theirs = _End(self.network, node, self.node)
        ours.other, theirs.other = theirs, ours
        self.network.ends += [ours, theirs]
        nursery.start_soon(handle, theirs, frozenset([self.node]))
        return ours


class NodeStore:
    """A node's access to the store, which is slow, and fails before or after a call.

    Attributes:
        away: whether nothing passes.
        deaf: whether nothing passes that is about nodes and leases; entities are read and written.
        failing: chance that a call, or its answer, is lost.
        slow: longest delay in seconds, in each direction.
        lag: seconds until the next answer of ``lease`` arrives.
    """

    def __init__(self, store: MemoryStore, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.away = False
        self.deaf = False
        self.failing = 0.0
        self.slow = 0.0
        self.lag = 0.0

    async def _pass(self, *, done: bool, entity: bool = False) -> None:
        await trio.sleep(self.random.random() * self.slow)
        if self.away or (self.deaf and not entity) or self.random.random() < self.failing:
            raise StoreUnavailable("the store is away", maybe_done=done)

    async def lease(self, keys: Sequence[str], holder: str, seconds: float) -> list[StoreLease]:
        await self._pass(done=False)
        result = await self.store.lease(keys, holder, seconds)
        lag, self.lag = self.lag, 0.0
        await trio.sleep(lag)
        await self._pass(done=True)
        return result

    async def renew(self, leases: Sequence[StoreLease], seconds: float) -> list[bool]:
        await self._pass(done=False)
        result = await self.store.renew(leases, seconds)
        await self._pass(done=True)
        return result

    async def compare_and_set(
        self, key: str, value: bytes | None, *, version: int, fence: StoreLease | None = None
    ) -> int:
        entity = "/entity/" in key
        await self._pass(done=False, entity=entity)
        result = await self.store.compare_and_set(key, value, version=version, fence=fence)
        await self._pass(done=True, entity=entity)
        return result

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[tuple[StoreEntry, ...]]]:
        async with self.store.watch(prefix) as snapshots:
            yield _Delayed(self, snapshots, entity="/entity/" in prefix)


class _Delayed:
    def __init__(
        self, store: NodeStore, snapshots: AsyncIterator[tuple[StoreEntry, ...]], *, entity: bool
    ) -> None:
        self.store = store
        self.snapshots = snapshots
        self.entity = entity

    def __aiter__(self) -> _Delayed:
        return self

    async def __anext__(self) -> tuple[StoreEntry, ...]:
        result = await anext(self.snapshots)
        await self.store._pass(done=False, entity=self.entity)
        return result


PROGRAM = ClusterProgram(
    name="real",
    messages=[Add, Read, Fail],
    entities=[Log],
    settings=ClusterSettings(lease=1.2, shards=16, heartbeat=0.2, silence=0.8),
)
