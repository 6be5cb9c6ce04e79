"""Experts that are spread over devices: exchanges, and the cost of a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefStale
from atomr_accel.actors import Call, GetStatistics, open_actor_system
from atomr_accel.patterns import (
    Closed,
    DeviceCopies,
    Gating,
    RankFailed,
    Retry,
    is_device_fault,
    is_transient,
    mixture_of_experts,
    open_moe,
)
from atomr_accel.testing import poison

from .. import seeds
from ..harness import BACKEND, SECOND, Gate, opened
from . import moe_model
from .moe_model import Array

if BACKEND == "cuda":
    pytestmark = pytest.mark.gpu

ONCE = Retry(attempts=1)


def close(y: Array, expected: Array) -> None:
    """A result in float32 is what the model says."""
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def expected_of(x: Array, weights: Any, gating: Gating, devices: int) -> Array:
    """Return the result of several devices, each of which counts capacities for its own tokens."""
    shares = np.array_split(x, devices)
    return np.concatenate(
        [
            moe_model.computed(
                share, weights, moe_model.routed(share @ weights.router, gating).weights
            )[0]
            for share in shares
        ]
    )


class Interrupted:
    """An exchange during which something happens."""

    def __init__(self, devices: Sequence[Device], harm: dict[int, Device]) -> None:
        self._copies = DeviceCopies(devices)
        self._harm = harm
        self.calls = 0

    @property
    def ranks(self) -> int:
        return self._copies.ranks

    async def all_to_all_v(self, parts: Sequence[Sequence[GpuRef]]) -> list[list[GpuRef]]:
        moved = await self._copies.all_to_all_v(parts)
        victim = self._harm.pop(self.calls, None)
        self.calls += 1
        if victim is not None:
            await poison(victim)
        return moved


class Endless(Interrupted):
    """An exchange that does not end."""

    def __init__(self, devices: Sequence[Device], harm: dict[int, Device]) -> None:
        super().__init__(devices, harm)
        self.started = trio.Event()

    async def all_to_all_v(self, parts: Sequence[Sequence[GpuRef]]) -> list[list[GpuRef]]:
        self.started.set()
        await trio.sleep_forever()


@pytest.mark.parametrize("factor", [None, 4.0, 0.5], ids=["dropless", "roomy", "tight"])
@pytest.mark.parametrize("gated", [True, False], ids=["swiglu", "gelu"])
async def test_devices_together_are_the_model(factor: float | None, gated: bool) -> None:
    rng = seeds.rng()
    weights = moe_model.made(
        rng, d=6, f=9, experts=5, dtype=np.float32, gated=gated, biased=not gated
    )
    gating = Gating(capacity_factor=factor)
    hosts = [rng.uniform(-1, 1, (n, 6)).astype(np.float32) for n in (13, 1, 0, 40)]
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as other:
        for devices in ([one], [one, other]):
            async with open_moe(devices, weights, gating) as layer:
                for host in hosts:
                    close(await layer(host), expected_of(host, weights, gating, len(devices)))
                statistics = layer.statistics()
            assert statistics.answered == 4
            assert statistics.tokens == 54
            assert sum(statistics.load) == 108
            assert (statistics.dropped_choices > 0) == (factor == 0.5)
            assert statistics.z_loss > 0


async def test_a_layer_with_a_place_answers_by_its_ref() -> None:
    rng = seeds.rng()
    weights = moe_model.made(rng, d=4, f=8, experts=3, dtype=np.float32)
    host = rng.uniform(-1, 1, (5, 4)).astype(np.float32)
    async with opened(isolation="thread") as device, open_actor_system("test") as system:
        async with open_moe([device], weights, system=system, name="experts") as layer:
            np.testing.assert_array_equal(await layer.ref.ask(Call(host)), await layer(host))
            with pytest.raises(ValueError, match="x must have shape"):
                await layer.ref.ask(Call(host[:, :3]))
            assert await layer.ref.ask(GetStatistics()) == layer.statistics()
            assert [(one.path, one.kind) for one in system.tree().children] == [("/experts", "Moe")]
        assert layer.ref.stopped


async def test_tokens_that_are_on_the_devices() -> None:
    rng = seeds.rng()
    weights = moe_model.made(rng, d=4, f=8, experts=3, dtype=np.float32)
    gating = Gating(top_k=1, capacity_factor=1.0)
    hosts = [rng.uniform(-1, 1, (n, 4)).astype(np.float32) for n in (7, 2)]
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as other:
        devices = [one, other]
        async with open_moe(devices, weights, gating, residual=True) as layer:
            parts = [await each.put(host) for each, host in zip(devices, hosts, strict=True)]
            results = await layer.on_devices(parts)
            for device, y, host in zip(devices, results, hosts, strict=True):
                close(await device.get(y), host + expected_of(host, weights, gating, 1))
            with pytest.raises(ValueError, match="2 devices take as many parts, not 1"):
                await layer.on_devices(parts[:1])
            with pytest.raises(ValueError, match=r"a must be on cpu:0.*, not on cpu:0"):
                await layer.on_devices(parts[::-1])
        with pytest.raises(Closed):
            await layer(hosts[0])


async def test_tokens_without_experts_are_told() -> None:
    weights = moe_model.made(seeds.rng(), d=4, f=4, experts=2, dtype=np.float32)
    host = np.ones((5, 4), np.float32)
    host[3] = np.nan
    async with opened(isolation="thread") as device, open_moe([device], weights) as layer:
        with pytest.raises(ValueError, match="1 of 5 tokens"):
            await layer(host)
        assert layer.statistics().failed == 1
        assert layer.statistics().tokens == 0
        assert layer.statistics().load == (0, 0)
        closed = replace(weights, router=np.full_like(weights.router, -np.inf))
        async with open_moe([device], closed) as none:
            with pytest.raises(ValueError, match=r"5 of 5 tokens.* all negative infinity"):
                await none(np.ones_like(host))


async def test_cancelled_caller_withdraws() -> None:
    weights = moe_model.made(seeds.rng(), d=4, f=4, experts=2, dtype=np.float32)
    host = np.ones((5, 4), np.float32)
    async with opened(isolation="thread") as device:
        exchange = Endless([device], {})
        async with open_moe([device], weights, exchange=exchange) as layer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(layer, host)
                await exchange.started.wait()
                assert layer.statistics().running == 1
                nursery.cancel_scope.cancel()
            assert layer.statistics().withdrawn == 1


async def test_a_block_that_is_left_by_an_error_refuses_who_waits() -> None:
    weights = moe_model.made(seeds.rng(), d=4, f=4, experts=2, dtype=np.float32)
    async with opened(isolation="thread") as device, trio.open_nursery() as nursery:
        exchange = Endless([device], {})

        async def ask() -> None:
            with pytest.raises(Closed):
                await layer(np.ones((5, 4), np.float32))

        with pytest.raises(ZeroDivisionError):
            async with open_moe([device], weights, exchange=exchange) as layer:
                nursery.start_soon(ask)
                await exchange.started.wait()
                raise ZeroDivisionError


async def test_jitter_follows_from_the_seed() -> None:
    weights = moe_model.made(seeds.rng(), d=4, f=4, experts=4, dtype=np.float32)
    host = seeds.rng().uniform(-1, 1, (6, 4)).astype(np.float32)
    gating = Gating(jitter=0.5, normalize=False, capacity_factor=None)
    async with opened(isolation="thread") as device:
        results = []
        for seed in (1, 1, 2):
            async with open_moe([device], weights, gating, seed=seed) as layer:
                results.append([await layer(host) for _ in range(2)])
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])
    assert not np.array_equal(results[0][0], results[0][1])


async def test_an_exchange_is_a_transpose() -> None:
    """Refs have any shape; views and empty refs are included."""
    async with opened(isolation="thread") as one, opened(SECOND, isolation="thread") as other:
        devices = [one, other]
        exchange = DeviceCopies(devices)
        whole = [
            await each.put(np.arange(12.0).reshape(3, 4) + n) for n, each in enumerate(devices)
        ]
        parts = [
            [whole[0][:1], whole[0][:, 1:3]],
            [whole[1][3:], whole[1][1:]],
        ]
        hosts = [
            [await each.get(ref) for ref in row] for each, row in zip(devices, parts, strict=True)
        ]
        moved = await exchange.all_to_all_v(parts)
        for j, device in enumerate(devices):
            for i in range(2):
                np.testing.assert_array_equal(await device.get(moved[j][i]), hosts[i][j])
        for wrong in (parts[:1], [parts[0], parts[1][:1]]):
            with pytest.raises(ValueError, match="parts must be 2 from each of 2 ranks, not"):
                await exchange.all_to_all_v(wrong)
        with pytest.raises(ValueError, match=r"parts\[0\]\[0\] is not on the device of rank 0"):
            await exchange.all_to_all_v(parts[::-1])
        await one.free(whole[0])
        with pytest.raises(GpuRefStale):
            await exchange.all_to_all_v(parts)
    with pytest.raises(ValueError, match="one device or more"):
        DeviceCopies([])


@pytest.mark.slow
async def test_a_device_that_faults_in_the_middle_of_an_exchange_is_named(gate: Gate) -> None:
    host = np.arange(8, dtype=np.float32)
    async with opened(isolation="thread") as one, opened(SECOND) as other:
        hold = await gate.kernel(other)
        exchange = DeviceCopies([one, other])
        mine = await one.put(host)

        async def parts() -> list[list[GpuRef]]:
            return [[mine, mine], [await other.put(host), await other.put(host)]]

        given = await parts()

        async def fault() -> None:
            with pytest.raises(ContextPoisoned):
                await hold(given[1][0], fault=True)

        async def move() -> None:
            with pytest.raises(RankFailed, match="rank 1 of 2") as caught:
                await exchange.all_to_all_v(given)
            assert (caught.value.rank, caught.value.device) == (1, other.name)
            assert is_transient(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fault)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(move)  # what it takes from the second device waits for the kernel
            await trio.testing.wait_all_tasks_blocked()
            gate.open()
        assert (one.generation, other.generation) == (1, 2)
        np.testing.assert_array_equal(await one.get(mine), host)

        moved = await exchange.all_to_all_v(await parts())
        for device, row in zip((one, other), moved, strict=True):
            for ref in row:
                np.testing.assert_array_equal(await device.get(ref), host)

        # A fault that no copy has noticed: what comes last arrives after the rebuild.
        hold = await gate.kernel(one)
        given = await parts()
        given[0][1] = await one.put(host)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, given[0][1])
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(move)
            await trio.testing.wait_all_tasks_blocked()
            await poison(other)
            await other.empty(1)  # it is there again
            gate.open()


@pytest.mark.slow
async def test_a_fault_costs_a_retry_and_nothing_else() -> None:
    rng = seeds.rng()
    weights = moe_model.made(rng, d=4, f=8, experts=4, dtype=np.float32, gated=True)
    host = rng.uniform(-1, 1, (9, 4)).astype(np.float32)
    async with opened(isolation="thread") as one, opened(SECOND) as other:
        devices = [one, other]
        kept = await one.put(host)
        for when, factor, retry in ((0, None, ONCE), (1, 2.0, ONCE), (0, 2.0, None)):
            gating = Gating(capacity_factor=factor)
            expected = expected_of(host, weights, gating, 2)
            exchange = Interrupted(devices, {when: other})
            async with open_moe(devices, weights, gating, exchange=exchange, retry=retry) as layer:
                if retry is not None:
                    with pytest.raises(RankFailed, match="rank 1 of 2") as caught:
                        await layer(host)
                    assert is_transient(caught.value)
                close(await layer(host), expected)
                assert layer.statistics().failed == (retry is not None)
                assert layer.statistics().answered == 1
        assert (one.generation, other.generation) == (1, 4)
        np.testing.assert_array_equal(await one.get(kept), host)


async def test_a_layer_that_cannot_be_is_refused() -> None:
    weights = moe_model.made(seeds.rng(), d=4, f=4, experts=2, dtype=np.float32)
    async with opened(isolation="thread") as device:
        odd: Any
        for odd, text in (
            (device, "devices must be a list or another iterable"),
            ([3], "must be open devices"),
        ):
            with pytest.raises(TypeError, match=text):
                async with open_moe(odd, weights):
                    pass
        x: Any = np.ones((2, 4), np.float32)
        there: Any = weights
        odd = device
        with pytest.raises(TypeError, match="to must be a batch or a recording, not a Device"):
            mixture_of_experts(odd, x, there, Gating())
        for devices, changed, options, text in (
            ([device] * 3, weights, {}, "devices for 2 experts must be 1 to 2, not 3"),
            ([], weights, {}, "devices for 2 experts must be 1 to 2, not 0"),
            (
                [device],
                weights,
                {"gating": Gating(top_k=3)},
                "top_k must be at most 2, the number of experts, not 3",
            ),
            ([device], weights, {"exchange": DeviceCopies([device] * 2)}, "2 ranks for 1 devices"),
            (
                [device],
                replace(weights, down=weights.down[:1]),
                {},
                r"down must have shape \(2, 4, 4\) with an up of \(2, 4, 4\), not \(1,",
            ),
        ):
            with pytest.raises(ValueError, match=text):
                async with open_moe(devices, changed, **options):
                    """Opening fails before this."""
        wrong: list[tuple[Any, dict[str, Any], str]] = [
            (replace(weights, router=weights.router.tolist()), {}, "router must be an array"),
            (replace(weights, up=None), {}, "up must be an array"),  # type: ignore[arg-type]
            (weights, {"exchange": object()}, "exchange must be an Exchange"),
        ]
        for given, also, text in wrong:
            with pytest.raises(TypeError, match=text):
                async with open_moe([device], given, **also):
                    """Opening fails before this."""
        async with open_moe([device], weights) as layer:
            with pytest.raises(TypeError, match="refs are for on_devices"):
                await layer(await device.put(np.ones((2, 4), np.float32)))  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="x must be float32"):
                await layer(np.ones((2, 4)))
            with pytest.raises(ValueError, match="tokens, 4"):
                await layer(np.ones((2, 3), np.float32))


def test_a_rank_that_failed_is_retried_where_its_fault_passes() -> None:
    def failed(cause: BaseException | None) -> RankFailed:
        error = RankFailed("rank 1 of 2", rank=1, device="device-1")
        error.__cause__ = cause
        return error

    assert is_transient(failed(GpuRefStale("lost")))
    assert not is_transient(failed(ValueError("no fault")))
    assert not is_transient(failed(None))
    assert is_device_fault(failed(None))
