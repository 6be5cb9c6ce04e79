"""Embedding caches: each key is computed once, and values are those of their keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from atomr_accel import Device
from atomr_accel.actors import open_actor_system
from atomr_accel.agents import GetEmbedding, open_embedding_cache
from atomr_accel.patterns import Closed
from atomr_accel.testing import poison

from ..harness import on_shared, opened, refused


class Alike:
    """A key whose hash others share."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and self.number == other.number


class Embedding:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def __call__(self, key: Any) -> Any:
        self.calls.append(key)
        await trio.lowlevel.checkpoint()
        return [getattr(key, "number", key)] * 3


@given(
    keys=st.lists(st.tuples(st.integers(0, 12), st.sampled_from("gggfc")), max_size=60),
    size=st.integers(1, 8),
    alike=st.booleans(),
)
def test_answers_are_those_of_keys_and_room_is_kept(
    keys: list[tuple[int, str]], size: int, alike: bool
) -> None:
    async def run() -> None:
        embed = Embedding()
        async with open_embedding_cache(embed, size=size) as cache:
            for number, action in keys:
                key: Any = Alike(number) if alike else number
                if action == "g":
                    there, calls = key in cache, len(embed.calls)
                    assert (await cache(key)).tolist() == [number] * 3
                    assert len(embed.calls) == calls + (not there)
                elif action == "f":
                    there = key in cache
                    assert await cache.forget(key) is there
                    assert key not in cache
                else:
                    await cache.clear()
                    assert len(cache) == 0
                assert len(cache) <= size
            statistics = cache.statistics()
            gets = sum(action == "g" for _, action in keys)
            assert statistics.hits + statistics.computed == gets
            assert statistics.entries == len(cache)

    trio.run(run)


async def test_what_is_asked_for_often_outlives_a_scan() -> None:
    embed = Embedding()
    async with open_embedding_cache(embed, size=100) as cache:
        for _ in range(8):
            await cache.get_many(range(50))
        await cache.get_many(range(1000, 2000))
        kept = sum(number in cache for number in range(50))
        assert kept >= 45
        assert len(cache) == 100


async def test_a_key_is_computed_once_while_any_caller_waits() -> None:
    go, begun, ended = trio.Event(), [], []

    async def slow(key: str) -> Any:
        begun.append(key)
        try:
            await go.wait()
        finally:
            ended.append(key)
        return np.ones(2)

    async with open_embedding_cache(slow, size=4) as cache, trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(3)]
        found: list[Any] = []

        async def ask(scope: trio.CancelScope) -> None:
            with scope:
                found.append(await cache("x"))

        for scope in scopes:
            nursery.start_soon(ask, scope)
        await wait_all_tasks_blocked()
        assert begun == ["x"]
        assert cache.statistics().waiting == 3
        scopes[0].cancel()  # it began the computation
        await wait_all_tasks_blocked()
        assert ended == []
        scopes[1].cancel()
        scopes[2].cancel()
        await wait_all_tasks_blocked()
        assert ended == ["x"]
        assert "x" not in cache
        scopes.append(trio.CancelScope())
        nursery.start_soon(ask, scopes[3])
        await wait_all_tasks_blocked()
        go.set()
        await wait_all_tasks_blocked()
        assert begun == ["x", "x"]
        assert len(found) == 1
        with pytest.raises(ValueError, match="read-only"):
            found[0][0] = 2


async def test_errors_reach_all_that_wait_and_nothing_is_kept() -> None:
    calls = 0

    async def fails_once(_: str) -> Any:
        nonlocal calls
        calls += 1
        await trio.lowlevel.checkpoint()
        if calls == 1:
            raise RuntimeError("no model")
        return 1.0

    async with open_embedding_cache(fails_once, size=4) as cache:
        with pytest.raises(RuntimeError, match="no model"):
            await cache.get_many(["x", "x"])
        assert calls == 1
        assert (await cache("x")).tolist() == 1.0
        assert cache.statistics().failed == 1


async def test_what_is_forgotten_while_it_is_computed_is_not_kept() -> None:
    go = trio.Event()

    async def slow(_: str) -> Any:
        await go.wait()
        return 1.0

    async with open_embedding_cache(slow, size=4) as cache, trio.open_nursery() as nursery:
        nursery.start_soon(cache, "x")
        await wait_all_tasks_blocked()
        await cache.forget("x")
        go.set()
        await wait_all_tasks_blocked()
        assert "x" not in cache


def test_values_expire() -> None:
    clock = MockClock()

    async def run() -> None:
        embed = Embedding()
        async with open_embedding_cache(embed, size=10, ttl=5) as cache:
            await cache(1)
            clock.jump(3)
            await cache(2)
            await cache(1)
            clock.jump(2.5)
            assert 1 not in cache
            assert 2 in cache
            await cache(1)
            assert embed.calls == [1, 2, 1]
            clock.jump(100)
            assert len(cache) == 0
            assert cache.statistics().expired == 3

    trio.run(run, clock=clock)


@on_shared
async def test_values_on_the_device_are_freed_when_they_go(device: Device) -> None:
    embed = Embedding()
    async with open_embedding_cache(embed, size=3, device=device) as cache:
        for number in range(10):
            assert (await device.get(await cache(number))).tolist() == [number] * 3
        assert len(cache) == 3


@pytest.mark.slow
async def test_values_that_a_fault_took_are_computed_again() -> None:
    embed = Embedding()
    async with opened() as device, open_embedding_cache(embed, size=8, device=device) as cache:
        old = await cache(5)
        await poison(device)
        new = await cache(5)
        assert old.is_stale
        assert (await device.get(new)).tolist() == [5] * 3
        assert embed.calls == [5, 5]
        assert cache.statistics().stale == 1


async def test_a_cache_is_an_actor() -> None:
    async with (
        open_actor_system("s") as system,
        open_embedding_cache(Embedding(), size=2, system=system, name="cache") as cache,
    ):
        assert (await cache.ref.ask(GetEmbedding(4))).tolist() == [4] * 3
    with pytest.raises(Closed):
        await cache(1)


async def test_bad_arguments_are_refused() -> None:
    async def text(_: str) -> Any:
        await trio.lowlevel.checkpoint()
        return "no numbers"

    wrong: list[dict[str, Any]] = [
        {"size": 0},
        {"size": 1 << 40},
        {"size": 2, "ttl": 0},
        {"size": 2, "ttl": -1},
    ]
    for options in wrong:
        await refused(ValueError, "must be", open_embedding_cache, text, **options)
    await refused(TypeError, "function", open_embedding_cache, 3, size=2)
    await refused(TypeError, "device must be", open_embedding_cache, text, size=2, device=3)
    async with open_embedding_cache(text, size=2) as cache:
        with pytest.raises(TypeError, match="hashable"):
            await cache([1])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="array of numbers"):
            await cache("x")
    async with open_embedding_cache(lambda _: np.ones(3), size=2) as cache:  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError, match="compute must be an async function, and returned nd"):
            await cache("x")


async def test_a_buffer_of_another_device_is_refused() -> None:
    async with opened() as one, opened() as other:

        async def put(_: str) -> Any:
            return await other.put(np.ones(2))

        async with open_embedding_cache(put, size=2, device=one) as cache:
            with pytest.raises(ValueError, match="the cache's device"):
                await cache("x")
            assert cache.statistics().entries == 0


@pytest.mark.parametrize("all_of_them", [False, True])
async def test_a_call_after_forget_does_not_get_what_was_begun_before(all_of_them: bool) -> None:
    go, content = trio.Event(), [1.0]

    async def read(_: str) -> Any:
        value = content[0]
        await go.wait()
        return value

    answers: list[float] = []

    async def ask() -> None:
        answers.append(float(await cache("x")))

    async with open_embedding_cache(read, size=2) as cache:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            content[0] = 2.0
            await (cache.clear() if all_of_them else cache.forget("x"))
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            assert cache.statistics().waiting == 2
            go.set()
        assert sorted(answers) == [1.0, 2.0]
        assert float(await cache("x")) == 2.0
        assert cache.statistics().computed == 2


@pytest.mark.parametrize("several", [False, True])
async def test_a_value_that_needs_itself_is_an_error(several: bool) -> None:
    needs = {"a": "b", "b": "c", "c": "a"}

    async def compute(key: str) -> Any:
        needed = needs[key]
        (value,) = await cache.get_many([needed]) if several else [await cache(needed)]
        return value + 1

    async with open_embedding_cache(compute, size=5) as cache:
        with pytest.raises(RuntimeError, match="must not need itself"):
            await cache("b")
