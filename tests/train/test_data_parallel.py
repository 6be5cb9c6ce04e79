"""Data parallel training on CPU devices: with faults, the same bits as without."""

from __future__ import annotations

from collections.abc import Set
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import Device, GpuRef, open_device, train
from atomr_accel.testing import hang, poison

from ..harness import sized
from .checks import loss, model, same
from .parted import count_steps, devices_of, outcome, system_of_two

STEPS = 6


def batches(rng: np.random.Generator) -> list[Any]:
    """Points of a function to learn."""
    x = [rng.standard_normal((8, 3)).astype(np.float32) for _ in range(STEPS)]
    return [{"x": each, "y": np.sin(each.sum(1, keepdims=True))} for each in x]


class Faulty:
    """A step that brings faults down at given calls of given ranks."""

    def __init__(self, devices: list[Device], at: Set[tuple[int, int]]) -> None:
        self.devices, self.at = devices, at
        self.calls = [0] * len(devices)
        self.inner = train.gradient_step(loss)

    async def __call__(self, device: Device, params: Any, batch: Any) -> tuple[GpuRef, Any]:
        rank = next(n for n, each in enumerate(self.devices) if each is device)
        self.calls[rank] += 1
        if (rank, self.calls[rank]) in self.at:
            await poison(device)
        return await self.inner(device, params, batch)


async def trained(
    ranks: int,
    faults: Set[tuple[int, int]] = frozenset(),
    after: Set[int] = frozenset(),
    **options: Any,
) -> tuple[list[float], Any, train.TrainerStatistics]:
    """The losses, parameters and statistics of a short run.

    Faults come at calls of ranks, and on all ranks after some numbers of steps.
    """
    rng = np.random.default_rng(1)
    data, params = batches(rng), model(rng)

    async def harm(number: int) -> None:
        if number + 1 in after:
            for device in devices:
                await poison(device)

    async with (
        devices_of(ranks, process=bool(faults or after)) as devices,
        train.open_data_parallel(
            *(devices, Faulty(devices, faults), params, train.AdamW(lr=0.01)),
            **{"shards": 4, "clip": 1.0, "snapshot_every": 3, "digest_every": 2, **options},
        ) as trainer,
    ):
        return await outcome(trainer, data, harm)


@pytest.mark.slow
def test_faults_change_no_bit() -> None:
    """Faults of one rank, of several, and of all at once, at any call."""
    calm = trio.run(trained, 1)
    assert len(calm[0]) == STEPS
    for ranks in (2, 3):
        same(calm, trio.run(trained, ranks))
    rng = np.random.default_rng(2)
    for at in range(sized(3, 12)):
        ranks = 1 + at % 3
        faults = {(int(rng.integers(ranks)), int(rng.integers(1, 14))) for _ in range(3)}
        hurt = trio.run(trained, ranks, faults)
        same(calm, hurt)
        assert hurt[2].steps == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("every", [1, 3])
def test_faults_between_steps_change_no_bit(ranks: int, every: int) -> None:
    calm = trio.run(trained, ranks)
    same(calm, trio.run(partial(trained, ranks, after={1, 3, 4}, snapshot_every=every)))


@pytest.mark.slow
def test_one_fault() -> None:
    """The step is repeated once, and the rank has its model from a peer."""
    calm = trio.run(trained, 2)
    assert calm[2].repeats == 0
    hurt = trio.run(trained, 2, {(1, 5)})
    same(calm, hurt)
    assert hurt[2].repeats == 1
    assert hurt[2].restored == 1


@pytest.mark.slow
def test_all_ranks_lost() -> None:
    """Without a peer the snapshot comes back, and the steps since it are repeated."""
    calm = trio.run(trained, 1)
    hurt = trio.run(trained, 1, {(0, 18)})  # in the fifth step; the snapshot has three
    same(calm, hurt)
    assert hurt[2].repeats == 1


async def test_steps_are_those_of_the_program() -> None:
    """While a step is being written, or those since a snapshot are repeated, none is missing."""
    rng = np.random.default_rng(1)
    params = model(rng)
    data = train.TrainingData(batches(rng)[0], rows=2, epochs=2)
    calm: list[float] = []
    async with open_device(0, backend="cpu", isolation="process") as device:
        step, sgd = train.gradient_step(loss), train.SGD(lr=0.1)
        async with train.open_data_parallel([device], step, params, sgd) as trainer:
            calm += [made.loss async for made in trainer.run(data)]

        async with (
            train.open_data_parallel([device], step, params, sgd) as trainer,
            trio.open_nursery() as nursery,
        ):
            counts = [0]
            nursery.start_soon(count_steps, trainer, counts)
            losses = []
            async with aclosing(trainer.run(data)) as begun:
                async for made in begun:
                    losses.append(made.loss)
                    if len(losses) == 2:
                        break
            await poison(device)
            losses += [made.loss async for made in trainer.run(data)]
            nursery.cancel_scope.cancel()
    assert losses == calm
    assert counts == sorted(counts)


async def test_learns() -> None:
    """The loss of one batch falls, and equals that of NumPy's gradient in float64 at first."""
    rng = np.random.default_rng(1)
    data, params = batches(rng)[0], model(rng)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        step = train.gradient_step(loss)
        adam = train.Adam(lr=0.05)
        async with train.open_data_parallel([device], step, params, adam) as trainer:
            losses = [made.loss async for made in trainer.run([data] * 20)]
    hidden = np.tanh(data["x"] @ params["w"].astype(float) + params["b"])
    expected = np.mean((hidden @ params["out"] - data["y"]) ** 2)
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0] / 4


def test_corrupt_replica() -> None:
    """A replica with another bit is found, named and replaced; two alone cannot tell."""

    async def program(ranks: int) -> Any:
        rng = np.random.default_rng(1)
        data, params = batches(rng), model(rng)
        async with devices_of(ranks) as devices:
            seen = []

            async def step(device: Device, refs: Any, batch: Any) -> Any:
                made = await train.gradient_step(loss)(device, refs, batch)
                seen.append(device)
                if device is devices[1] and seen.count(device) == 1:
                    await device.fill(refs["b"][:1], 9.0)
                return made

            async with train.open_data_parallel(
                devices, step, params, train.SGD(lr=0.01), shards=4, digest_every=1
            ) as trainer:
                _ = [made async for made in trainer.run(data[:2])]
                return trainer.statistics()

    assert trio.run(program, 3).corrupt == (1,)
    with pytest.raises(train.ReplicasDiffer) as caught:
        trio.run(program, 2)
    assert caught.value.ranks == (0, 1)


async def test_refused() -> None:
    """Bad batches, options and losses change nothing in the trainer."""
    rng = np.random.default_rng(1)
    data, params = batches(rng)[0], model(rng)
    sgd = train.SGD(lr=0.1)
    step = train.gradient_step(loss)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        wrong: Any
        for wrong, match in (
            ({"shards": 3}, "power of two"),
            ({"clip": 0}, "clip must be"),
            ({"attempts": 0}, "attempts must be"),
        ):
            with pytest.raises(ValueError, match=match):
                async with train.open_data_parallel([device], step, params, sgd, **wrong):
                    pass
        for devices, match in ((device, "devices must be a sequence"), ([3], "a device must be")):
            with pytest.raises(TypeError, match=match):
                async with train.open_data_parallel(devices, step, params, sgd):  # type: ignore[arg-type]
                    pass
        with pytest.raises(TypeError, match="loss_scale must be"):
            async with train.open_data_parallel([device], step, params, sgd, loss_scale=2.0):  # type: ignore[arg-type]
                pass
        with pytest.raises(TypeError, match="betas must be two numbers"):
            train.Adam(lr=0.1, betas=0.9)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="devices must be"):
            async with train.open_data_parallel([device] * 2, step, params, sgd):
                pass
        async with train.open_data_parallel([device], step, params, sgd, shards=4) as trainer:
            with pytest.raises(ValueError, match="multiple of 4"):
                await trainer.make_step({"x": data["x"][:6], "y": data["y"][:6]})
            with pytest.raises(ValueError, match="one first dimension"):
                await trainer.make_step({"x": data["x"], "y": data["y"][:4]})
            with pytest.raises(TypeError, match="dtype object cannot live in device memory"):
                await trainer.make_step({"x": data["x"].astype(object), "y": data["y"]})
            with pytest.raises(TypeError, match="tree of NumPy arrays"):
                await trainer.make_step({"x": 3})
            with pytest.raises(TypeError, match="data must be an iterable of batches, not int"):
                await anext(trainer.run(5))  # type: ignore[arg-type]
            for call in (trainer.save, trainer.restore):
                with pytest.raises(TypeError, match="data must be an instance of TrainingData"):
                    await call("nowhere", data=3)  # type: ignore[arg-type]
            bad = {"x": data["x"], "y": data["y"].copy()}
            bad["y"][3] = np.nan
            with pytest.raises(train.LossNotFinite) as caught:
                await trainer.make_step(bad)
            assert (caught.value.step, caught.value.rank) == (0, 0)
            after = await trainer.params()
            for name in params:
                np.testing.assert_array_equal(after[name], params[name])
            assert (await trainer.make_step(data)).number == 0


@pytest.mark.slow
def test_hang() -> None:
    """A hung op ends by the device's deadline, and its step is repeated with the same bits."""
    calm = trio.run(trained, 2)

    async def program() -> Any:
        rng = np.random.default_rng(1)
        data, params = batches(rng), model(rng)
        hung: list[Device] = []
        async with devices_of(2, process=True, op_deadline=1.0) as devices:

            async def step(device: Device, refs: Any, batch: Any) -> Any:
                if device is devices[1] and not hung:
                    hung.append(device)
                    await hang(device)
                return await train.gradient_step(loss)(device, refs, batch)

            async with train.open_data_parallel(
                devices, step, params, train.AdamW(lr=0.01), shards=4, clip=1.0
            ) as trainer:
                return await outcome(trainer, data)

    made = trio.run(program)
    same(calm, made)
    assert made[2].repeats == 1


def test_rank_lost_for_good() -> None:
    """The others compute its shards, with the same bits."""
    calm = trio.run(trained, 2)

    async def program() -> Any:
        rng = np.random.default_rng(1)
        data, params = batches(rng), model(rng)

        async def harm(number: int) -> None:
            if number == 2:
                await devices[0].ref.stop()

        async with system_of_two() as (_, devices):
            step = train.gradient_step(loss)
            async with train.open_data_parallel(
                devices, step, params, train.AdamW(lr=0.01), shards=4, clip=1.0
            ) as trainer:
                return await outcome(trainer, data, harm)

    made = trio.run(program)
    same(calm, made)
    assert made[2].ranks == (1,)


def test_loss_scale() -> None:
    """A step with gradients that are not finite is skipped, and then all is as without a scale."""

    async def program(scale: train.LossScale | None) -> Any:
        rng = np.random.default_rng(1)
        data, params = batches(rng), model(rng)
        async with (
            open_device(0, backend="cpu", isolation="thread") as device,
            train.open_data_parallel(
                *([device], train.gradient_step(loss), params, train.SGD(lr=0.01)),
                loss_scale=scale,
            ) as trainer,
        ):
            made = [each async for each in trainer.run(data)]
            return made, await trainer.params(), trainer.statistics()

    plain, params, _ = trio.run(program, None)
    scaled, others, seen = trio.run(program, train.LossScale(2.0**10, interval=3))
    assert [each.loss for each in scaled] == [each.loss for each in plain]
    for name in params:
        np.testing.assert_array_equal(params[name], others[name])  # a power of two rounds nothing
    assert seen.scale == 2.0**12
    made, others, seen = trio.run(program, train.LossScale(2.0**127, interval=100))
    assert made[0].skipped
    assert made[1].loss != made[0].loss or made[1].skipped
    assert seen.skipped == sum(each.skipped for each in made) < STEPS
    assert seen.scale == 2.0 ** (127 - seen.skipped)
    assert all(np.isfinite(each).all() for each in others.values())
