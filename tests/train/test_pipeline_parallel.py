"""Pipeline parallel training on CPU devices: as one device, and with faults the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import train
from atomr_accel.testing import poison
from atomr_accel.train._pipeline_parallel import one_forward_one_backward

from ..harness import sized
from .parted import STEPS, close, devices_of, equal, on_one_device, outcome, points, system_of_two
from .pipelined import first, last, middle, stages


def whole(tape: Any, p: Any, batch: Any) -> Any:
    """Loss of the whole model on one device."""
    hidden = tape.evaluate(middle(tape, p[1], first(tape, p[0], batch)))
    return last(tape, p[2], hidden, batch)


ADAMW = train.AdamW(lr=0.02)


async def trained(ranks: int, fault: tuple[int, int, int] | None = None, **options: Any) -> Any:
    """Losses, parameters and statistics; with a fault (stage, its call, rank)."""
    rng = np.random.default_rng(1)
    data, params = points(rng), stages(rng)
    calls = [0, 0, 0]
    async with trio.open_nursery() as nursery, devices_of(ranks, process=bool(fault)) as devices:

        def counted(number: int, stage: Any) -> Any:
            def run(*args: Any) -> Any:
                calls[number] += 1
                if fault and fault[:2] == (number, calls[number]):
                    nursery.start_soon(poison, devices[fault[2]])
                return stage(*args)

            return run

        made = [counted(number, each) for number, each in enumerate((first, middle, last))]
        async with train.open_pipeline_parallel(
            devices,
            made,
            params,
            ADAMW,
            **{"micro_batches": 4, "clip": 1.0, "snapshot_every": 2, **options},
        ) as trainer:
            return await outcome(trainer, data)


async def test_equals_one_device() -> None:
    """Losses and parameters are those of the whole model, and do not depend on devices."""
    rng = np.random.default_rng(1)
    data, start = points(rng), stages(rng)
    losses, params = await on_one_device(whole, data, start, ADAMW)
    one = await trained(1)
    close(one[0], losses, one[1], params)
    for ranks in (2, 4):
        equal(one, await trained(ranks))
    single = await trained(2, micro_batches=1)
    close(single[0], losses, single[1], params)


@pytest.mark.slow
def test_faults_change_no_bit() -> None:
    """A fault of any rank at any time repeats the steps since the snapshot."""
    calm = trio.run(trained, 2)
    rng = np.random.default_rng(3)
    for _ in range(sized(2, 8)):
        stage, call, rank = (int(rng.integers(n)) for n in (3, 4 * STEPS, 2))
        hurt = trio.run(trained, 2, (stage, call + 1, rank))
        equal(calm, hurt)
        assert hurt[2].steps == STEPS


@given(st.integers(1, 8), st.integers(1, 12))
def test_order(ranks: int, count: int) -> None:
    """Each rank does all, backward after forward, and few at once; together they end."""
    orders = [one_forward_one_backward(rank, ranks, count) for rank in range(ranks)]
    done: set[tuple[bool, int, int]] = set()
    for rank, order in enumerate(orders):
        assert sorted(order) == sorted((f, at) for f in (True, False) for at in range(count))
        held = 0
        for forward, _ in order:
            held += 1 if forward else -1
            assert 0 <= held <= ranks - rank
    waiting = [list(reversed(order)) for order in orders]
    while any(waiting):
        ready = []
        for rank, order in enumerate(waiting):
            if order:
                forward, at = order[-1]
                other = rank - 1 if forward else rank + 1
                if not 0 <= other < ranks or (forward, at, other) in done:
                    ready.append(rank)
        assert ready
        for rank in ready:
            forward, at = waiting[rank].pop()
            done.add((forward, at, rank))


def test_rank_lost_for_good() -> None:
    """The other computes its stages, with the same bits."""

    async def program() -> Any:
        rng = np.random.default_rng(1)
        data, params = points(rng), stages(rng)
        every: list[Any] = [first, middle, last]

        async def harm(number: int) -> None:
            if number == 1:
                await devices[1].ref.stop()

        async with (
            system_of_two() as (_, devices),
            train.open_pipeline_parallel(
                devices, every, params, ADAMW, micro_batches=4, clip=1.0
            ) as trainer,
        ):
            return await outcome(trainer, data, harm)

    made = trio.run(program)
    equal(trio.run(trained, 2), made)
    assert made[2].ranks == (0,)


async def test_goes_on_from_a_file(tmp_path: Path) -> None:
    """A file is of the whole model, so another number of devices goes on with the same bits."""
    rng = np.random.default_rng(1)
    data, params = points(rng), stages(rng)
    path = tmp_path / "run.safetensors"
    every: list[Any] = [first, middle, last]
    async with devices_of(3) as devices:
        async with train.open_pipeline_parallel(
            devices, every, params, ADAMW, micro_batches=2
        ) as trainer:
            _ = [made async for made in trainer.run(data[:3])]
            assert await trainer.save(path) == 3
            _ = [made async for made in trainer.run(data[3:])]
            calm = await trainer.params()
        async with train.open_pipeline_parallel(
            devices[:2], every, params, ADAMW, micro_batches=2
        ) as trainer:
            await trainer.restore(path)
            assert trainer.steps == 3
            _ = [made async for made in trainer.run(data[3:])]
            equal(([], calm), ([], await trainer.params()))


async def test_refused() -> None:
    """Bad stages, options and losses change nothing in the trainer."""
    rng = np.random.default_rng(1)
    data, params = points(rng)[0], stages(rng)
    every: list[Any] = [first, middle, last]
    async with devices_of(2) as devices:
        with pytest.raises(ValueError, match="stages must be"):
            async with train.open_pipeline_parallel(
                devices, every, params[:2], ADAMW, micro_batches=2
            ):
                pass
        with pytest.raises(ValueError, match="micro_batches must be"):
            async with train.open_pipeline_parallel(devices, every, params, ADAMW, micro_batches=0):
                pass
        async with train.open_pipeline_parallel(
            devices, every, params, ADAMW, micro_batches=2
        ) as trainer:
            with pytest.raises(ValueError, match="the number of micro-batches"):
                await trainer.make_step({"x": data["x"][:3], "y": data["y"][:3]})
            bad = {"x": data["x"], "y": data["y"] * np.nan}
            with pytest.raises(train.LossNotFinite) as caught:
                await trainer.make_step(bad)
            assert (caught.value.step, caught.value.rank) == (0, 1)
            after = await trainer.params()
            np.testing.assert_array_equal(after[1]["w"], params[1]["w"])
            assert (await trainer.make_step(data)).number == 0
        async with train.open_pipeline_parallel(
            devices, every[:2], params[:2], ADAMW, micro_batches=2
        ) as trainer:
            with pytest.raises(TypeError):
                await trainer.make_step(data)
