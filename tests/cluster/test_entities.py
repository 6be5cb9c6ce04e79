"""Entities on several nodes of one program, without faults of the network."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_accel.cluster import Cluster, ConnectionLost, Entity

from .simulated import Add, Fail, Log, Read
from .worlds import SETTINGS, world

pytestmark = pytest.mark.clock("mock")


async def test_one_node_has_all_entities() -> None:
    async with world() as here, here.node("a") as a:
        for call in (a.entity, a.place_of):
            with pytest.raises(ValueError, match="key must be text without lone surrogates, not"):
                call(Log, "\ud800")
        assert [await a.entity(Log, "x").ask(Add(number)) for number in (5, 6)] == [1, 2]
        assert await a.entity(Log, "y").ask(Add(7)) == 1
        assert await a.entity(Log, "x").ask(Read()) == [5, 6]
        assert a.statistics().shards == 8
        with pytest.raises(ValueError, match="failed as asked"):
            await a.entity(Log, "x").ask(Fail())
        assert await a.entity(Log, "x").ask(Read()) == [5, 6]


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
            with suppress(ConnectionLost):  # b may have gone with it
                await a.entity(Log, str(number)).ask(Read())
            assert await a.entity(Log, str(number)).ask(Add(-number)) == 2
        assert trio.current_time() - began < SETTINGS.lease * 1.3


async def test_a_failure_of_one_message_is_not_that_of_the_next() -> None:
    """A conflict ends the instance while others wait for it."""
    async with world() as here, here.node("a") as a:
        assert await a.entity(Log, "x").ask(Add(1)) == 1
        (record,) = (key for key in here.store._rows if "/entity/" in key)
        row = here.store._rows[record]
        here.store.put([replace(row, version=row.version + 1)])  # an effect that arrives late
        places = []

        async def add(number: int) -> None:
            places.append(await a.entity(Log, "x").ask(Add(number)))

        async with trio.open_nursery() as nursery:
            for number in range(2, 6):
                nursery.start_soon(add, number)
        assert sorted(places) == [2, 3, 4, 5]


async def test_a_lease_that_is_lost_while_an_instance_stops_is_not_acted_upon() -> None:
    async with world() as here, here.node("a") as a:
        assert await a.entity(Log, "x").ask(Add(1)) == 1
        region = a._region
        (shard,) = (each for each in region._shards.values() if each.places)
        place: Any
        (place,) = shard.places.values()
        place.seat.broken = True  # as when the store has not answered
        ref, stop = place.ref, place.ref.stop

        async def stopped() -> None:
            await stop()
            region.drop(shard.number, shard.lease)

        place.ref = SimpleNamespace(stop=stopped, stopped=False, path=ref.path)
        assert await a.entity(Log, "x").ask(Add(2)) == 2


class Ticker(Log):
    """A singleton."""


class Remembered(Log):
    """An entity that starts with its shard."""

    remembered = True


class Passing(Log):
    """An entity that is soon stopped."""

    passivate_after = 1.0


async def test_singletons_and_remembered_entities_run_without_being_asked() -> None:
    options = {"entities": [Remembered], "singletons": [Ticker]}
    async with world() as here:
        async with here.node("a", **options) as a:
            await a.entity(Remembered, "x/y z").ask(Add(1))
            await trio.sleep(1.0)
            assert a.statistics().entities == 2
        async with here.node("b", **options) as b:
            await trio.sleep(1.0)
            assert b.statistics().entities == 2
            assert await b.entity(Remembered, "x/y z").ask(Read()) == [1]
            assert await b.singleton(Ticker).ask(Add(4)) == 1


async def test_a_node_that_fails_is_started_again_and_hands_over() -> None:
    async def fail() -> None:
        raise RuntimeError("failed as asked")

    async with world() as here, here.node("a") as a:
        assert await a.entity(Log, "x").ask(Add(1)) == 1
        async with here.node("b") as b:
            while not b.statistics().shards:  # a hands over at this moment
                await trio.lowlevel.checkpoint()
            a._start(fail)
            await wait_all_tasks_blocked()
            await trio.sleep(2 * SETTINGS.lease)
            assert a.statistics().shards + b.statistics().shards == 8
            assert await b.entity(Log, "x").ask(Add(2)) == 2
        assert await a.entity(Log, "x").ask(Read()) == [1, 2]


async def test_a_shard_is_handed_over_once() -> None:
    async with world() as here, here.node("a") as a:
        region = a._region
        region.assign(())
        async with trio.open_nursery() as nursery:
            for number in [*range(8)] * 2:
                nursery.start_soon(region.hand_over, number)
        assert a.statistics().handed == 8


async def test_idle_entities_are_passivated_and_come_back() -> None:
    async with world() as here, here.node("a", entities=[Passing]) as a:
        assert await a.entity(Passing, "x").ask(Add(1)) == 1
        assert a.statistics().entities == 1
        await trio.sleep(3.0)
        assert a.statistics().entities == 0
        assert await a.entity(Passing, "x").ask(Read()) == [1]


async def test_told_messages_arrive_and_lost_ones_are_counted() -> None:
    async with world() as here, here.node("a") as a, here.node("b") as b:
        await b.wait_for(2)
        for number in range(9):
            b.entity(Log, "x").tell(Add(number))
        b.entity(Log, "y").tell(Fail())
        while b.depth():  # noqa: ASYNC110 (on a clock that jumps)
            await trio.sleep(0.1)
        assert sorted(await a.entity(Log, "x").ask(Read())) == [*range(9)]
        assert b.statistics().lost == 1


def test_entities_name_the_type_of_their_state() -> None:
    with pytest.raises(TypeError, match="must name the type of its state"):

        class Stateless(Entity):  # type: ignore[type-arg]
            pass

    with pytest.raises(TypeError, match="must be a Struct"):

        class Odd(Entity[int]):  # type: ignore[type-var]
            pass
