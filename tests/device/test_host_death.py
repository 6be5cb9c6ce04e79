"""Hosts that die at awkward moments."""

from __future__ import annotations

import signal
from collections.abc import Callable

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import ContextPoisoned, GpuRefStale, open_device
from atomr_accel.testing import kill_host

from ..harness import Gate, cpu_only, opened
from .faulty import aborts, exits, reads_nowhere


@cpu_only
@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    ("function", "status"),
    [(exits, 3), (aborts, -signal.SIGABRT), (reads_nowhere, -signal.SIGSEGV)],
)
async def test_a_function_that_ends_its_host_is_named(
    gate: Gate, function: Callable[[object], None], status: int, busy: bool
) -> None:
    """Also if an op of another lane was there before it."""
    async with opened() as device:
        hold = await gate.kernel(device)
        x, y = await device.zeros(4, np.float32), await device.zeros(4, np.float32)
        await device.run(len, y)  # the lane is open

        async def held() -> None:
            with pytest.raises(ContextPoisoned) as info:
                await hold(x)
            assert info.value.op == f"run {function.__name__}"

        async with trio.open_nursery() as nursery:
            if busy:
                nursery.start_soon(held)
                await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ContextPoisoned) as info:
                await device.run(function, y)
        name = f"run {function.__name__}"
        assert (info.value.op, info.value.status) == (name, status)
        assert f"(seen at op {name!r})" in str(info.value)
        assert f"(seen at op {name!r})" in str(device.statistics().last_fault)


@cpu_only
async def test_a_host_that_ends_without_ops_was_idle() -> None:
    async with opened() as device:
        await device.get(await device.zeros(4))
        await kill_host(device)
        after = await device.zeros(4)  # waits for the next host, and is not to blame
        assert "(seen while idle)" in str(device.statistics().last_fault)
        assert not after.is_stale


async def test_a_death_in_the_block_of_a_batch_fails_it_even_if_its_ops_had_ended() -> None:
    async with opened() as device:
        x = await device.zeros(4, np.float32)
        ended = trio.Event()

        async def look() -> None:
            assert (await device.get(x)).tolist() == [3.0] * 4  # after the fill
            ended.set()

        async with trio.open_nursery() as nursery:
            with pytest.raises(ContextPoisoned, match="generation 1"):
                async with device.batch() as batch:
                    batch.fill(x, 3)
                    nursery.start_soon(look)  # not in the block's task, which may not wait for it
                    await ended.wait()
                    await kill_host(device)


async def test_a_host_that_dies_while_lanes_open_is_replaced() -> None:
    """The first op of a library opens its lane by a request to a host that is gone."""
    answers: list[str] = []

    with trio.fail_after(30):
        async with open_device(0, backend="cpu") as device:
            a = await device.put(np.ones((8, 8)))

            async def client() -> None:
                try:
                    await device.blas.gemm(a, a)
                except (ContextPoisoned, GpuRefStale) as error:
                    answers.append(type(error).__name__)
                else:
                    answers.append("done")

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(client)
                nursery.start_soon(kill_host, device)
            assert len(answers) == 20
            assert device.generation == 2
            b = await device.put(np.eye(8))
            product = await device.get(await device.blas.gemm(b, b))
            np.testing.assert_array_equal(product, np.eye(8))
