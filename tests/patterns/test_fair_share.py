"""Slots in their turns: waiting for them, giving them back, and leaving the block."""

from __future__ import annotations

import math
from typing import Any, assert_type

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.patterns import (
    Budget,
    Closed,
    FairServer,
    FairShare,
    Overloaded,
    open_batcher,
    open_fair_share,
)

from ..harness import run_on_mock_clock
from .worlds import Log

pytestmark = pytest.mark.clock("mock")


async def work(share: FairShare, tenant: str, order: list[str], cost: float = 1) -> None:
    async with share.slot(tenant, cost=cost):
        order.append(tenant)
        await trio.sleep(cost)


async def test_tenants_take_turns() -> None:
    order: list[str] = []
    async with (
        open_fair_share(capacity=1, weights={"b": 2}) as share,
        trio.open_nursery() as nursery,
    ):
        assert_type(share, FairShare)
        for tenant in ("a", "b"):
            for _ in range(6):
                nursery.start_soon(work, share, tenant, order)
            await trio.testing.wait_all_tasks_blocked()
    assert order[0] == "a"
    assert order[:9].count("b") == 6
    assert share.statistics().granted == 12


async def test_a_slot_that_is_free_is_had_at_once() -> None:
    async with open_fair_share(capacity=2) as share:
        async with share.slot("a") as first, share.slot("a", cost=3) as second:
            statistics = share.statistics()
            assert (statistics.serving, statistics.waiting, statistics.work) == (2, 0, 4)
            (tenant,) = statistics.tenants
            assert (tenant.path, tenant.serving, tenant.work) == ("a", 2, 4)
            assert (first.cost, second.cost) == (1, 3)
            second.charge(2)
            assert second.cost == 5
            with pytest.raises(ValueError, match="costs 5"):
                second.charge(-6)
            with pytest.raises(RuntimeError, match="one turn"):
                await first.__aenter__()
        with pytest.raises(RuntimeError, match="slot that is held can be charged"):
            second.charge(1)
        assert share.statistics().serving == 0


async def test_a_turn_costs_something() -> None:
    async with open_fair_share(capacity=1) as share:
        for cost in (0, -1, math.nan, math.inf):
            with pytest.raises(ValueError, match="cost must be at least 1e-100"):
                share.slot("a", cost=cost)
        wrong: Any
        for wrong in ("1", None, True):
            with pytest.raises(TypeError, match="cost must be a real number"):
                share.slot("a", cost=wrong)
        assert share.statistics().granted == 0


async def test_tuning_that_fails_changes_nothing() -> None:
    async with open_fair_share(capacity=1, weights={"a": 2}) as share:
        with pytest.raises(ValueError, match="weight"):
            share.tune(capacity=5, weights={"a": 3, "b": -1})
        assert share.statistics().capacity == 1
        async with share.slot("a"):
            (weight,) = {one.weight for one in share.statistics().tenants if one.path == "a"}
            assert weight == 2


async def test_cancelled_tenant_waits_no_more_and_pays_nothing() -> None:
    order: list[str] = []
    log = Log()
    async with open_fair_share(capacity=1, observer=log) as share:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, share, "a", order, 5)
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(1) as scope:
                await work(share, "b", order)
            assert scope.cancelled_caught
        await work(share, "b", order)
    assert order == ["a", "b"]
    assert log.lines.count(("withdrawn", "b")) == 1
    statistics = share.statistics()
    assert (statistics.withdrawn, statistics.granted, statistics.work) == (1, 2, 6)


async def test_one_who_floods_gets_in_nobodys_way() -> None:
    order: list[str] = []
    async with (
        open_fair_share(capacity=1, max_waiting=2) as share,
        trio.open_nursery() as nursery,
    ):
        for _ in range(3):
            nursery.start_soon(work, share, "flood", order)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Overloaded, match="2 requests of 'flood' wait already"):
            await work(share, "flood", order)
        nursery.start_soon(work, share, "other", order)
    assert order[:2] in (["flood", "other"], ["flood", "flood"])
    assert order.index("other") <= 2
    assert share.statistics().refused == 1


async def test_budgets_let_go_in_time() -> None:
    times: list[float] = []
    budgets = {"a": Budget(rate=2, burst=4), "": Budget(rate=100, burst=100)}
    async with open_fair_share(capacity=9, budgets=budgets) as share:
        start = trio.current_time()
        for _ in range(4):
            async with share.slot("a/x", cost=3):
                times.append(trio.current_time() - start)
    assert times == pytest.approx([0, 1, 2.5, 4])


async def test_a_budget_that_is_due_while_no_slot_is_free_waits_for_one() -> None:
    order: list[str] = []
    async with (
        open_fair_share(capacity=2, budgets={"a": Budget(rate=1, burst=1)}) as share,
        trio.open_nursery() as nursery,
    ):
        start = trio.current_time()
        nursery.start_soon(work, share, "a", order)
        nursery.start_soon(work, share, "b", order, 10)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(work, share, "a", order, 1)  # held back until 1
        nursery.start_soon(work, share, "b", order, 10)
        await trio.sleep(0.5)
        share.tune(capacity=1)
    assert trio.current_time() - start == 21
    assert order.count("a") == 2


async def test_in_front_of_a_batcher() -> None:
    batches: list[list[str]] = []

    async def lengths(items: list[str]) -> list[int]:
        batches.append(items)
        await trio.sleep(1)
        return [len(item) for item in items]

    results: dict[str, int] = {}
    log = Log()
    async with (
        open_batcher(lengths, max_size=4) as batcher,
        open_fair_share(
            batcher, capacity=4, tenant=lambda item: item[0], cost=len, observer=log
        ) as server,
        trio.open_nursery() as nursery,
    ):
        assert_type(server, FairServer[str, int])

        async def client(item: str) -> None:
            results[item] = assert_type(await server(item), int)

        for number in range(8):
            nursery.start_soon(client, f"a{number}")
        await trio.testing.wait_all_tasks_blocked()
        for number in range(4):
            nursery.start_soon(client, f"b{number}")
    assert set(results.values()) == {2}
    assert len(results) == 12
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert sum(item[0] == "b" for item in batches[1]) >= 2
    assert set(log.ends().values()) == {1}


async def test_an_error_of_the_function_is_the_callers() -> None:
    async def fail(item: str) -> str:
        await trio.lowlevel.checkpoint()
        raise KeyError(item)

    async with open_fair_share(fail, capacity=1, tenant=str) as server:
        with pytest.raises(KeyError):
            await server("a")
        with pytest.raises(ValueError, match="one name or several"):
            await server("")
        assert server.statistics().serving == 0


async def test_leaving_the_block_lets_all_have_their_turns() -> None:
    order: list[str] = []
    async with trio.open_nursery() as nursery:
        async with open_fair_share(capacity=1, budgets={"b": Budget(rate=1, burst=1)}) as share:
            for tenant in ("a", "b", "b"):
                nursery.start_soon(work, share, tenant, order)
            await trio.testing.wait_all_tasks_blocked()
        assert sorted(order) == ["a", "b", "b"]
        with pytest.raises(Closed):
            await work(share, "a", order)


async def test_a_failure_of_the_block_is_told_to_all_who_wait() -> None:
    order: list[str] = []
    errors: list[BaseException | None] = []

    async def client() -> None:
        try:
            await work(share, "a", order)
        except Closed as error:
            errors.append(error.__cause__)

    async with trio.open_nursery() as nursery:
        with pytest.raises(KeyError):
            async with open_fair_share(capacity=1) as share:
                for _ in range(3):
                    nursery.start_soon(client)
                await trio.testing.wait_all_tasks_blocked()
                raise KeyError
    assert len(order) == 1  # who had a slot goes on
    assert [type(error) for error in errors] == [KeyError, KeyError]
    assert share.statistics().waiting == 0


async def test_fair_share_can_be_tuned_while_it_runs() -> None:
    order: list[str] = []
    async with open_fair_share(capacity=1) as share, trio.open_nursery() as nursery:
        for tenant in ("a", "b"):
            for _ in range(8):
                nursery.start_soon(work, share, tenant, order)
            await trio.testing.wait_all_tasks_blocked()
        share.tune(weights={"b": 3})
        await trio.sleep(8.5)
        assert order[1:9].count("b") >= 5
        share.tune(capacity=3)
        assert share.statistics().serving == 3
    with pytest.raises(ValueError, match="capacity must be a whole number of at least 1, not 0"):
        share.tune(capacity=0)


def test_options_are_checked_at_once() -> None:
    async def same(item: str) -> str:
        return item

    options: Any
    for options, said in (
        ({"capacity": 0}, "capacity must be a whole number of at least 1, not 0"),
        (
            {"capacity": 1, "max_waiting": 0},
            "max_waiting must be a whole number of at least 1, not 0",
        ),
        ({"capacity": 1, "budgets": {"a": 3}}, "the budget of 'a' must be an instance of Budget"),
        ({"capacity": 1, "tenant": str}, "tenant and cost are for a function"),
        ({"capacity": 1, "function": same}, "tenant must be a function"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            open_fair_share(**options)
    with pytest.raises(ValueError, match="rate must be at least 1e-100"):
        Budget(rate=0, burst=1)


@settings(max_examples=60)
@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from(["a", "a/x", "b"]),
            st.integers(0, 8),
            st.integers(1, 6),
            st.sampled_from([0.4, 2.2, 1e9, 1e9]),
        ),
        max_size=14,
    ),
    capacity=st.integers(1, 3),
    budgets=st.dictionaries(
        st.sampled_from(["", "a", "b"]), st.just(Budget(rate=1, burst=3)), max_size=2
    ),
)
def test_every_slot_is_had_or_left_and_given_back(
    asked: list[tuple[str, int, int, float]], capacity: int, budgets: dict[str, Budget]
) -> None:
    ends: list[str] = []
    serving = 0
    log = Log()

    async def client(share: FairShare, tenant: str, at: int, cost: int, leaves: float) -> None:
        nonlocal serving
        await trio.sleep(at / 2)
        with trio.move_on_after(leaves):
            async with share.slot(tenant, cost=cost):
                serving += 1
                assert serving <= capacity
                try:
                    await trio.sleep(cost / 4)
                finally:
                    serving -= 1
            ends.append("had")
            return
        ends.append("left")

    async def main() -> None:
        async with (
            open_fair_share(capacity=capacity, budgets=budgets, observer=log) as share,
            trio.open_nursery() as nursery,
        ):
            for one in asked:
                nursery.start_soon(client, share, *one)
        statistics = share.statistics()
        assert (statistics.waiting, statistics.serving) == (0, 0)
        assert statistics.granted + statistics.withdrawn == len(asked)

    run_on_mock_clock(main)
    assert len(ends) == len(asked)
