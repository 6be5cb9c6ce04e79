"""Shared state: leases in order, versions as a whole, histories that are linearizable."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_accel import ContextPoisoned, Device, GpuRefSealed, GpuRefStale
from atomr_accel.actors import Actor, Call, Message, handler, open_actor_system
from atomr_accel.agents import (
    AcquireState,
    LeaseLost,
    NameUnknown,
    ReadState,
    StateLease,
    WriteState,
    open_shared_state,
)
from atomr_accel.patterns import Closed
from atomr_accel.testing import kill_host, poison

from ..harness import on_shared, opened, sized
from ..histories import History, linearizable
from ..seeds import draw


@on_shared
async def test_writers_make_versions_and_readers_see_one(device: Device) -> None:
    async with open_shared_state(device) as state:
        first = await state.create("x", np.arange(4))
        async with state.reading("x") as one, state.reading("x") as two:
            assert one.version is two.version is first
            assert one.token < two.token
            with pytest.raises(ValueError, match="for writing"):
                await one.commit(np.ones(4))
        async with state.writing("x") as lease:
            with pytest.raises(GpuRefSealed):
                await device.fill(lease.ref, 0)
            doubled = await device.put(2 * np.arange(4))
            assert (await lease.commit(doubled)).number == 2
            assert (await lease.commit(np.zeros(2))).number == 3
        with pytest.raises(LeaseLost, match="block was left"):
            await lease.commit(np.ones(4))
        with pytest.raises(LeaseLost):
            lease.ref  # noqa: B018 (it raises)
        assert (await state.current("x")).number == 3
        np.testing.assert_array_equal(await device.get(first.ref), np.arange(4))
        statistics = state.statistics()
        assert (statistics.names, statistics.granted, statistics.commits) == (1, 3, 3)
    with pytest.raises(Closed):
        await state.current("x")


@on_shared
async def test_leases_are_granted_in_the_order_of_requests(device: Device) -> None:
    async with open_shared_state(device) as state, trio.open_nursery() as nursery:
        await state.create("x", np.zeros(1))
        order: list[str] = []
        go = {name: trio.Event() for name in "abcde"}

        async def hold(name: str, *, exclusive: bool) -> None:
            async with (state.writing if exclusive else state.reading)("x"):
                order.append(name)
                await go[name].wait()
                order.append(name.upper())

        for name, exclusive in [("a", False), ("b", False), ("c", True), ("d", False), ("e", True)]:
            nursery.start_soon(partial(hold, name, exclusive=exclusive))
            await wait_all_tasks_blocked()
        assert order == ["a", "b"]  # d waits behind the writer
        assert state.statistics().waiting == 3
        for name in "bacde":
            go[name].set()
            await wait_all_tasks_blocked()
        assert "".join(order) == "abBAcCdDeE"


@on_shared
async def test_who_is_cancelled_while_waiting_or_holding_blocks_nobody(device: Device) -> None:
    async with open_shared_state(device) as state, trio.open_nursery() as nursery:
        await state.create("x", np.zeros(1))
        scopes = [trio.CancelScope() for _ in range(3)]
        got: list[int] = []

        async def hold(number: int) -> None:
            with scopes[number]:
                async with state.writing("x"):
                    got.append(number)
                    await trio.sleep_forever()

        for number in range(3):
            nursery.start_soon(hold, number)
            await wait_all_tasks_blocked()
        scopes[1].cancel()
        await wait_all_tasks_blocked()
        scopes[0].cancel()
        await wait_all_tasks_blocked()
        assert got == [0, 2]
        scopes[2].cancel()
        await wait_all_tasks_blocked()
        assert state.statistics().writers == state.statistics().waiting == 0


@on_shared
async def test_revoked_and_deleted(device: Device) -> None:
    async with open_shared_state(device) as state, trio.open_nursery() as nursery:
        await state.create("x", np.zeros(1))
        async with state.writing("x") as lease:
            await state.revoke("x")
            assert not lease.valid
            async with state.writing("x") as other:  # the revoked one is in nobody's way
                assert other.token > lease.token
                with pytest.raises(LeaseLost, match="revoked"):
                    await lease.commit(np.ones(1))
                lost: list[Any] = []

                async def wait() -> None:
                    with pytest.raises(LeaseLost, match="deleted") as caught:
                        async with state.reading("x"):
                            raise AssertionError("it must not be granted")
                    lost.append(caught)

                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                await state.delete("x")
                await wait_all_tasks_blocked()
                assert lost
        with pytest.raises(NameUnknown, match="one of the state's, not 'x'"):
            await state.current("x")
        with pytest.raises(NameUnknown):
            async with state.reading("x"):
                raise AssertionError("it must not be granted")
        await state.create("x", np.ones(1))
        with pytest.raises(ValueError, match="name must be a new one"):
            await state.create("x", np.ones(1))
        with pytest.raises(TypeError):
            await state.create(3, np.ones(1))  # type: ignore[arg-type]
        assert state.statistics().ended == 3


@on_shared
async def test_watching_sees_the_last_of_several_versions(device: Device) -> None:
    async with open_shared_state(device) as state, trio.open_nursery() as nursery:
        await state.create("x", np.zeros(1))
        seen: list[int] = []
        lost: list[Any] = []

        async def watch() -> None:
            with pytest.raises(LeaseLost) as caught:
                async for version in state.watch("x"):
                    seen.append(version.number)  # noqa: PERF401 (as they come)
            lost.append(caught)

        nursery.start_soon(watch)
        await wait_all_tasks_blocked()
        async with state.writing("x") as lease:
            await lease.commit(np.ones(1))
            await wait_all_tasks_blocked()
            await lease.commit(np.ones(1))
        await wait_all_tasks_blocked()
        assert seen == [1, 2, 3]
        await state.delete("x")
        await wait_all_tasks_blocked()
        assert lost


class Hold(Message[StateLease]):
    state: Any


class Holder(Actor):
    @handler
    async def hold(self, message: Hold) -> StateLease:
        lease: StateLease = await message.state.ask(AcquireState("x", self.ref, exclusive=True))
        return lease


@on_shared
async def test_an_actors_lease_ends_with_it(device: Device) -> None:
    async with (
        open_actor_system("test") as system,
        open_shared_state(device, system=system, name="state") as state,
    ):
        await state.ref.ask(WriteState("x", np.zeros(2)))
        holder = await system.spawn(Holder)
        lease = await holder.ask(Hold(state.ref))
        assert lease.valid
        assert (await state.ref.ask(ReadState("x"))).number == 1
        await holder.stop()
        version = await state.ref.ask(WriteState("x", np.ones(2)))
        assert version.number == 2
        with pytest.raises(LeaseLost, match="holder has ended"):
            await lease.commit(np.ones(2))
        assert (await state.ref.ask(Call("x"))) is version


def step(state: int, action: tuple[str, int]) -> tuple[Any, int]:
    kind, value = action
    if kind == "read":
        return state, state
    if kind == "add":
        return state, state + value
    return None, value


@pytest.mark.slow
async def test_histories_with_faults_are_linearizable() -> None:
    chance = random.Random(draw())
    rounds = sized(4, 120)
    async with (
        opened(max_restarts=20 * rounds) as device,
        open_shared_state(device) as state,
    ):
        for number in range(rounds):
            name = str(number)
            await state.create(name, np.zeros(3, np.int64))
            history = History()

            async def value(ref: Any) -> int:
                array = await device.get(ref)
                assert len({*array.tolist()}) == 1, "a version is seen as a whole"
                return int(array[0])

            async def work(client: random.Random, name: str, history: History) -> None:
                for _ in range(4):
                    kind = client.choice(["read", "write", "add"])
                    given = client.randrange(1, 100)
                    with trio.CancelScope() as scope:
                        if client.random() < 0.2:
                            scope.cancel()
                        try:
                            async with history.operation((kind, given)) as done:
                                done(await one(kind, given, name))
                        except (ContextPoisoned, GpuRefStale):
                            """Its outcome is unknown to its caller."""

            async def one(kind: str, given: int, name: str) -> int | None:
                if kind == "read":
                    async with state.reading(name) as lease:
                        return await value(lease.ref)
                async with state.writing(name) as lease:
                    if kind == "write":
                        await lease.commit(np.full(3, given))
                        return None
                    before = await value(lease.ref)
                    await lease.commit(await device.put(np.full(3, before + given)))
                    return before

            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    client = random.Random(chance.random())
                    nursery.start_soon(work, client, name, history)
                for _ in range(chance.randrange(3)):
                    await (poison if chance.random() < 0.7 else kill_host)(device)
            assert linearizable(history.operations, 0, step), history.operations
            async with state.reading(name) as lease:
                final = await value(lease.ref)
            last = [*history.operations]
            async with history.operation(("read", 0)) as done:
                done(final)
            assert linearizable(history.operations, 0, step), last
            assert not linearizable(
                [*last, type(last[0])(("read", 0), -1, history.now(), history.now())], 0, step
            )
            await state.delete(name)


@on_shared
async def test_tokens_grow_beyond_those_of_a_deleted_name(device: Device) -> None:
    async with open_shared_state(device) as state:
        tokens = []
        for _ in range(3):
            await state.create("x", np.ones(1))
            for _ in range(2):
                async with state.writing("x") as lease:
                    tokens.append(lease.token)
            await state.delete("x")
        assert tokens == sorted({*tokens})


@on_shared
async def test_versions_are_watched_after_a_number(device: Device) -> None:
    async with open_shared_state(device) as state:
        await state.create("x", np.ones(1))
        with pytest.raises(TypeError, match="after must be"):
            await anext(state.watch("x", after="1"))  # type: ignore[arg-type]


@on_shared
async def test_a_task_does_not_wait_for_itself(device: Device) -> None:
    """Leases of one task that would wait for each other are refused; others are as before."""
    async with open_shared_state(device) as state, trio.open_nursery() as nursery:
        await state.create("x", np.zeros(1))
        await state.create("y", np.zeros(1))

        async def write() -> None:
            async with state.writing("x") as lease:
                await lease.commit(np.ones(1))

        async with state.reading("x") as lease:
            async with state.reading("x"), state.writing("y"):
                pass
            with pytest.raises(RuntimeError, match="for which it would wait itself"):
                await write()
            assert state.statistics().waiting == 0
            nursery.start_soon(write)
            await wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="for which it would wait itself"):
                async with state.reading("x"):
                    pass
            assert lease.valid
        await wait_all_tasks_blocked()
        async with state.writing("x") as lease:
            await lease.release()
            await write()
        assert (await state.current("x")).number == 3
