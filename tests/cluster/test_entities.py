"""Entities on several nodes of one program, without faults of the network."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from atomr_accel.cluster import Cluster, ClusterSettings, MemoryStore, open_cluster

from .simulated import Add, Fail, Log, Network, Read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SETTINGS = ClusterSettings(lease=4.0, shards=8, heartbeat=0.5, silence=1.5)


def simulated(function: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))

    test.__name__ = function.__name__
    return test


class World:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.store = MemoryStore()
        self.network = Network(nursery)

    def node(self, name: str, **options: Any) -> Any:
        return open_cluster(
            "test",
            node=name,
            store=self.store,
            messages=[Add, Read, Fail],
            transport=self.network.transport(name),
            **{"settings": SETTINGS, "entities": [Log], **options},
        )


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(nursery)
        nursery.cancel_scope.cancel()


@simulated
async def test_one_node_has_all_entities() -> None:
    async with world() as here, here.node("a") as a:
        assert [await a.entity(Log, "x").ask(Add(number)) for number in (5, 6)] == [1, 2]
        assert await a.entity(Log, "y").ask(Add(7)) == 1
        assert await a.entity(Log, "x").ask(Read()) == [5, 6]
        assert a.statistics().shards == 8
        with pytest.raises(ValueError, match="failed as asked"):
            await a.entity(Log, "x").ask(Fail())
        assert await a.entity(Log, "x").ask(Read()) == [5, 6]


@simulated
async def test_entities_are_reached_from_all_nodes_and_move_on_leaving() -> None:
    async with world() as here, here.node("a") as a:
        for number in range(20):
            await a.entity(Log, str(number)).ask(Add(number))
        async with here.node("b") as b:
            await a.wait_for(2)
            await b.wait_for(2)
            for number in range(20):
                assert await b.entity(Log, str(number)).ask(Add(-number)) == 2
                assert await a.entity(Log, str(number)).ask(Read()) == [number, -number]
            counts = [each.statistics().shards for each in (a, b)]
            assert sum(counts) == 8
            assert max(counts) <= 5
        assert a.statistics().nodes == ("a",)
        for number in range(20):
            assert await a.entity(Log, str(number)).ask(Read()) == [number, -number]
        assert a.statistics().dropped == 0


@simulated
async def test_a_killed_node_is_replaced_when_its_leases_expire() -> None:
    async with world() as here, here.node("a") as a, trio.open_nursery() as nursery:
        b: list[Cluster] = []
        gone = trio.CancelScope()

        async def live() -> None:
            with gone:
                async with here.node("b") as cluster:
                    b.append(cluster)
                    await trio.sleep_forever()

        nursery.start_soon(live)
        await a.wait_for(2)
        for number in range(20):
            assert await a.entity(Log, str(number)).ask(Add(number)) == 1
        began = trio.current_time()
        gone.cancel()
        for number in range(20):
            assert await a.entity(Log, str(number)).ask(Add(-number)) == 2
        assert trio.current_time() - began < SETTINGS.lease * 1.3


@simulated
async def test_a_failure_of_one_message_is_not_that_of_the_next() -> None:
    """A conflict ends the instance while others wait for it."""
    async with world() as here, here.node("a") as a:
        assert await a.entity(Log, "x").ask(Add(1)) == 1
        (record,) = (key for key in here.store._rows if "/entity/" in key)
        row = here.store._rows[record]
        here.store.put(replace(row, version=row.version + 1))  # an effect that arrives late
        places = []

        async def add(number: int) -> None:
            places.append(await a.entity(Log, "x").ask(Add(number)))

        async with trio.open_nursery() as nursery:
            for number in range(2, 6):
                nursery.start_soon(add, number)
        assert sorted(places) == [2, 3, 4, 5]
