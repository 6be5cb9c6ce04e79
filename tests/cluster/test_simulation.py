"""Histories of simulated clusters: one effective holder, and linearizable effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel.cluster import MemoryStore, StoreLease, _store, open_cluster
from atomr_accel.cluster._region import Region
from tests.harness import on_mock_clock, sized

from .histories import SETTINGS, Event, History, simulate
from .simulated import Add, Log, Network, NodeStore, Read


# In 210 somebody asks when the last task of a node that fails has ended.
@pytest.mark.parametrize("seed", [0, 1, 2, 210])
def test_histories_are_linearizable(seed: int) -> None:
    history = simulate(seed)
    history.check()
    assert sum(event.result is not None for event in history.events) > 20
    assert history.recovered < 3 * SETTINGS.lease


@pytest.mark.slow
def test_more_histories_are_linearizable() -> None:
    for seed in range(100, 100 + sized(20, 1000)):
        simulate(seed).check()


@pytest.mark.slow
def test_many_nodes_have_linearizable_histories() -> None:
    history = simulate(1, nodes=sized(30, 200), clients=8, calls=4)
    history.check()


def test_a_seed_gives_the_same_history_again() -> None:
    one, other = simulate(5), simulate(5)
    assert one.events == other.events
    assert one.final == other.final


@on_mock_clock
async def test_a_slow_store_is_not_taken_for_another_node_of_the_name() -> None:
    store = MemoryStore()
    access = NodeStore(store, 0)
    async with trio.open_nursery() as nursery:
        await store.lease(["test/member/a"], "one that has crashed", SETTINGS.lease)
        access.lag = 2 * SETTINGS.lease
        async with open_cluster(
            "test",
            node="a",
            store=access,
            transport=Network(nursery).transport("a"),
            settings=SETTINGS,
        ) as cluster:
            await cluster.wait_for(1)
        nursery.cancel_scope.cancel()


def _events(*rows: tuple[int | None, float, float, Any]) -> list[Event]:
    return [Event("x", number, began, ended, result) for number, began, ended, result in rows]


@pytest.mark.parametrize(
    ("events", "final", "said"),
    [
        (_events((1, 0, 1, 1)), [], "lost"),
        (_events((1, 0, 1, 1)), [1, 1], "doubled"),
        (_events((1, 0, 1, 1), (None, 2, 3, [])), [1], "went back"),
        (_events((1, 0, 1, 1), (2, 2, 3, 2), (None, 0, 1, [2])), [1, 2], "read"),
        (_events((1, 0, 9, None)), [2], "never sent"),
    ],
)
def test_bad_histories_are_found(events: list[Event], final: list[int], said: str) -> None:
    history = History(events, {"x": final, "y": [], "z": []})
    with pytest.raises(AssertionError, match=f"x: {said}"):
        history.check()


def test_old_epochs_are_found() -> None:
    history = History([], {"x": [], "y": [], "z": []}, {"x": [1, 2, 1]})
    with pytest.raises(AssertionError, match="two effective holders"):
        history.check()


def _unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _store.swap

    def swap(rows: Any, key: str, value: bytes | None, version: int, _fence: Any) -> int:
        return real(rows, key, value, version, None)

    monkeypatch.setattr(_store, "swap", swap)


def _trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusts(_region: Region, shard: Any, lease: StoreLease | None) -> bool:
        return lease is not None and shard.lease is lease

    monkeypatch.setattr(Region, "_trusts", trusts)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [_unfenced, _trusting])
def test_stores_without_fences_and_trust_in_leases_that_are_over_are_found(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulation is strong enough: every third seed or so finds these faults."""
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=r"effective holders|went back|lost|doubled|read"):
        for seed in range(40):
            simulate(seed).check()


@on_mock_clock
async def test_a_node_without_its_store_answers_nothing_stale() -> None:
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        network = Network(nursery)
        access = {name: NodeStore(store, 0) for name in "ab"}

        def node(name: str) -> Any:
            return open_cluster(
                "test",
                node=name,
                store=access[name],
                messages=[Add, Read],
                entities=[Log],
                transport=network.transport(name),
                settings=SETTINGS,
            )

        async with node("a") as a, node("b") as b:
            await a.wait_for(2)
            key = next(key for key in map(str, range(99)) if a.place_of(Log, key) == "a")
            assert await a.entity(Log, key).ask(Add(1)) == 1
            access["a"].away = True
            assert await a.entity(Log, key).ask(Read()) == [1]  # its lease still stands
            while b.place_of(Log, key) == "a":  # noqa: ASYNC110 (on a clock that jumps)
                await trio.sleep(0.1)
            assert await b.entity(Log, key).ask(Add(2)) == 2
            with trio.move_on_after(5.0):
                assert await a.entity(Log, key).ask(Read()) == [1, 2]
            access["a"].away = False
            assert await a.entity(Log, key).ask(Read()) == [1, 2]
        nursery.cancel_scope.cancel()
