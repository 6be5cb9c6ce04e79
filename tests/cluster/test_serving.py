"""Pools of replicas on many nodes, and fair shares over them."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_accel import ContextPoisoned
from atomr_accel.actors import Actor, handler, open_actor_system
from atomr_accel.cluster import Cluster, ConnectionLost
from atomr_accel.patterns import Closed, open_fair_share

from .simulated import Add, Read
from .worlds import world

pytestmark = pytest.mark.clock("mock")

ERRORS: list[Exception] = []
"""Errors that the next messages end with."""


class Doubler(Actor):
    """A replica, which may be held up, or fail."""

    def __init__(self, made: list[Doubler]) -> None:
        made.append(self)
        self.asked: list[int] = []
        self.held: trio.Event | None = None

    @handler
    async def double(self, message: Add) -> int:
        self.asked.append(message.number)
        if self.held is not None:
            await self.held.wait()
        await trio.lowlevel.checkpoint()
        if ERRORS:
            raise ERRORS.pop()
        return 2 * message.number

    @handler
    async def read(self, message: Read) -> list[int]:
        await trio.lowlevel.checkpoint()
        return self.asked


async def replicas(cluster: Cluster, system: Any) -> list[Doubler]:
    """Publish a replica; the list gets another one whenever it is started again."""
    made: list[Doubler] = []
    cluster.publish("doubler", await system.spawn(Doubler, made))
    return made


async def replica(cluster: Cluster, system: Any) -> Doubler:
    return (await replicas(cluster, system))[0]


async def test_replicas_of_all_nodes_share_the_messages() -> None:
    async with (
        world() as here,
        open_actor_system("test") as system,
        here.node("a") as a,
        here.node("b") as b,
        here.node("c") as c,
    ):
        ones = [await replica(each, system) for each in (a, b)]
        async with c.open_pool("doubler", limit=2) as pool, trio.open_nursery() as nursery:
            assert await pool.ask(Add(1)) == 2
            for each in ones:
                each.held = trio.Event()

            async def ask(number: int) -> None:
                assert await pool.ask(Add(number)) == 2 * number

            for number in range(2, 9):
                nursery.start_soon(ask, number)
            await trio.sleep(0.1)
            assert [each.in_flight for each in pool.statistics()] == [2, 2]
            assert pool.waiting == 3
            for each in ones:
                assert each.held is not None
                each.held.set()
        with pytest.raises(Closed, match="the pool is closed"):
            await pool.ask(Add(9))
        assert sum(each.answered for each in pool.statistics()) == 8
        assert all(len(each.asked) >= 3 for each in ones)


async def test_a_rolling_restart_fails_no_message() -> None:
    async with world() as here, open_actor_system("test") as system, here.node("client") as client:
        answered = restarts = 0
        over = trio.Event()

        async def live(name: str) -> None:
            nonlocal restarts
            while not over.is_set():
                async with here.node(name) as cluster:
                    await replica(cluster, system)
                    with trio.move_on_after(2.0 + 1.0 * int(name[1])):
                        await over.wait()
                restarts += 1

        async with trio.open_nursery() as nursery, client.open_pool("doubler") as pool:
            for name in ("n0", "n1", "n2"):
                nursery.start_soon(live, name)

            async def ask(number: int) -> None:
                nonlocal answered
                while not over.is_set():
                    with trio.fail_after(5.0):
                        assert await pool.ask(Add(number)) == 2 * number
                    answered += 1
                    await trio.sleep(0.05)

            async with trio.open_nursery() as clients:
                for number in range(4):
                    clients.start_soon(ask, number)
                await trio.sleep(12.0)
                over.set()
        assert restarts >= 4
        assert answered > 300


async def test_a_node_that_leaves_answers_what_it_was_asked() -> None:
    async with world() as here, open_actor_system("test") as system, here.node("a") as a:
        leave = trio.Event()
        made: list[Doubler] = []

        async def live() -> None:
            async with here.node("b") as b:
                made.append(await replica(b, system))
                made[0].held = trio.Event()
                await leave.wait()

        async with trio.open_nursery() as nursery, a.open_pool("doubler") as pool:
            nursery.start_soon(live)
            answers: list[int] = []

            async def ask() -> None:
                answers.append(await pool.ask(Add(4)))

            nursery.start_soon(ask)
            while not (made and made[0].asked):  # noqa: ASYNC110 (on a clock that jumps)
                await trio.sleep(0.1)
            leave.set()
            await trio.sleep(1.0)
            assert not pool.statistics()  # it gets no more
            assert made[0].held is not None
            made[0].held.set()
        assert answers == [8]


async def test_faults_and_lost_connections_are_asked_elsewhere_if_they_may() -> None:
    async with (
        world() as here,
        open_actor_system("test") as system,
        here.node("a") as a,
        here.node("b") as b,
        here.node("c") as c,
    ):
        ones = [await replicas(each, system) for each in (a, b)]
        async with c.open_pool("doubler") as pool:
            fault = ContextPoisoned(
                "as asked", generation=1, status=700, status_name="ILLEGAL_ADDRESS", op="double"
            )
            ERRORS[:] = [fault, fault]
            assert await pool.ask(Add(1)) == 2
            assert sum(each.failed for each in pool.statistics()) == 2
            await trio.sleep(90.0)  # not too many restarts at once
            for error in (ValueError("as asked"), fault):
                ERRORS[:] = [error] * 3
                with pytest.raises(type(error), match="as asked"):
                    await pool.ask(Add(1))
                ERRORS.clear()
                await trio.sleep(90.0)  # all are started again
            one, other = ones[0][-1], ones[1][-1]
            for idempotent in (False, True):
                before = [len(each.asked) for each in (one, other)]
                one.held = other.held = trio.Event()
                outcome: list[Any] = []

                async def ask(into: list[Any] = outcome, again: bool = idempotent) -> None:
                    try:
                        into.append(await pool.ask(Add(3), idempotent=again))
                    except ConnectionLost as error:
                        into.append(error)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask)
                    while [len(each.asked) for each in (one, other)] == before:  # noqa: ASYNC110
                        await trio.sleep(0.1)
                    first = "a" if len(one.asked) > before[0] else "b"
                    c._peers[first].hang_up()
                    await trio.sleep(0.1)
                    one.held.set()
                if idempotent:
                    assert outcome == [6]
                else:
                    assert isinstance(outcome[0], ConnectionLost)


async def test_turns_are_shared_out_over_nodes_by_weight() -> None:
    async with (
        world() as here,
        open_fair_share(capacity=1, weights={"gold": 3}) as share,
        here.node("a") as a,
        here.node("b") as b,
        here.node("c") as c,
    ):
        a.publish_share("gpus", share)
        while "gpus" not in c.nodes["a"].shares:  # noqa: ASYNC110 (on a clock that jumps)
            await trio.sleep(0.1)
        order: list[str] = []
        inside = 0

        async def work(cluster: Cluster, tenant: str) -> None:
            nonlocal inside
            async with cluster.slot("gpus", tenant):
                inside += 1
                assert inside == 1
                order.append(tenant)
                await trio.sleep(0.1)
                inside -= 1

        async with trio.open_nursery() as nursery, a.slot("gpus", "first"):
            for _ in range(12):
                nursery.start_soon(work, b, "gold")
                nursery.start_soon(work, c, "iron")
            await trio.sleep(1.0)
        await wait_all_tasks_blocked()
        assert len(order) == 24
        assert 8 <= order[:12].count("gold") <= 10
        assert share.statistics().serving == 0


async def test_turns_of_nodes_that_cancel_or_are_lost_come_back() -> None:
    async with world() as here, open_fair_share(capacity=1) as share, here.node("a") as a:
        a.publish_share("gpus", share)
        async with here.node("b") as b:
            async with trio.open_nursery() as nursery, a.slot("gpus", "first"):

                async def work() -> None:
                    async with b.slot("gpus", "second"):
                        await trio.sleep_forever()

                nursery.start_soon(work)
                await trio.sleep(1.0)
                nursery.cancel_scope.cancel()  # while it waits
            with trio.fail_after(1.0):
                async with a.slot("gpus", "first"):
                    pass
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                await trio.sleep(1.0)
                assert share.statistics().serving == 1
                b._peers["a"].hang_up()
                with trio.fail_after(5.0):
                    async with a.slot("gpus", "first"):
                        pass
                nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        assert share.statistics().serving == 0


async def test_another_node_gives_out_turns_when_one_is_gone() -> None:
    async with (
        world() as here,
        open_fair_share(capacity=2) as one,
        open_fair_share(capacity=2) as other,
        here.node("a") as a,
    ):
        async with here.node("b") as b, here.node("c") as c:
            b.publish_share("gpus", one)
            c.publish_share("gpus", other)
            async with a.slot("gpus", "x"):
                pass
            with pytest.raises(ValueError, match="cost must be"):
                async with a.slot("gpus", "x", cost=0.0):
                    pass
        with trio.move_on_after(10.0) as scope:
            async with a.slot("gpus", "x"):
                pass
        assert scope.cancelled_caught
        a.publish_share("gpus", one)
        async with a.slot("gpus", "x"):
            pass
