"""Asynchronous training on CPU devices, whose staleness has a bound."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import DeviceLost, train
from atomr_accel.testing import kill_host, poison

from .checks import loss, model
from .parted import count_steps, devices_of, equal, system_of_two

SGD = train.SGD(lr=0.02, momentum=0.5)
STEP = train.gradient_step(loss)


def batches(count: int) -> list[Any]:
    """Points of a function to learn."""
    rng = np.random.default_rng(2)
    x = [rng.standard_normal((8, 3)).astype(np.float32) for _ in range(count)]
    return [{"x": each, "y": np.sin(each.sum(1, keepdims=True))} for each in x]


def start() -> Any:
    return model(np.random.default_rng(1))


async def test_without_staleness_as_one_device() -> None:
    """Steps are those of data parallel training on one device, to the bit."""
    found = []
    async with devices_of(3) as devices:
        async with train.open_data_parallel(devices[:1], STEP, start(), SGD, clip=1.0) as one:
            losses = [made.loss async for made in one.run(batches(5))]
            found.append((losses, await one.params()))
        async with train.open_parameter_server(
            devices, STEP, start(), SGD, staleness=0, clip=1.0
        ) as server:
            made = [each async for each in server.run(batches(5))]
            assert [each.number for each in made] == list(range(5))
            assert {each.staleness for each in made} == {0}
            found.append(([each.loss for each in made], await server.params()))
    equal(*found)


@pytest.mark.parametrize("bound", [1, 2, 5])
async def test_staleness_is_bounded(bound: int) -> None:
    """Staleness stays in its bound with workers of any speed, and rates are as documented.

    The steps are made once more with NumPy, from the parameters that each worker had.
    """
    rng = np.random.default_rng(bound)
    seen: list[tuple[dict[str, np.ndarray], Any]] = []

    async def step(device: Any, refs: Any, batch: Any) -> Any:
        for _ in range(int(rng.integers(1, 40))):
            await trio.lowlevel.checkpoint()
        made = await STEP(device, refs, batch)
        values = {name: await device.get(ref) for name, ref in refs.items()}
        grads = {name: await device.get(ref) for name, ref in made[1].items()}
        seen.append((values, (float(await device.get(made[0])), grads)))
        return made

    async with (
        devices_of(3) as devices,
        train.open_parameter_server(
            devices, step, start(), train.SGD(lr=0.02), staleness=bound
        ) as server,
    ):
        made = [each async for each in server.run(batches(12))]
        after = await server.params()
    assert [each.number for each in made] == list(range(12))
    assert max(each.staleness for each in made) <= bound
    assert any(each.staleness for each in made)
    past = [start()]
    for each in made:
        values, (_, grads) = next(one for one in seen if one[1][0] == each.loss)
        before = past[each.number - each.staleness]
        for name, value in values.items():
            np.testing.assert_allclose(value, before[name], rtol=1e-5, atol=1e-6)
        lr = 0.02 / (1 + each.staleness)
        past.append({name: past[-1][name] - lr * grads[name] for name in grads})
    for name in after:
        np.testing.assert_allclose(after[name], past[-1][name], rtol=1e-4, atol=1e-6)


async def test_staleness_is_bounded_while_a_step_is_being_written() -> None:
    """A worker that is free just then counts the steps that are made already."""
    slow = [300]

    async def step(device: Any, refs: Any, batch: Any) -> Any:
        for _ in range(slow.pop() if slow else 0):
            await trio.lowlevel.checkpoint()
        return await STEP(device, refs, batch)

    async with (
        devices_of(2) as devices,
        train.open_parameter_server(
            devices, step, start(), train.SGD(lr=0.02), staleness=1, snapshot_every=100
        ) as server,
        trio.open_nursery() as nursery,
    ):
        counts = [0]
        nursery.start_soon(count_steps, server, counts)
        made = [each async for each in server.run(batches(30))]
        nursery.cancel_scope.cancel()
    assert max(each.staleness for each in made) <= 1
    assert counts == sorted(counts)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 1, 2])
async def test_undone_steps_are_made_before_a_run_ends(bound: int) -> None:
    """A fault near the end leaves the model with the step of each batch."""
    async with (
        devices_of(2, process=True) as devices,
        train.open_parameter_server(
            devices, STEP, start(), SGD, staleness=bound, snapshot_every=100
        ) as server,
    ):
        count = 0
        async for _ in server.run(batches(8)):
            count += 1
            if count == 5:
                await poison(devices[0])
        assert (count, server.steps, server.statistics().restored) == (8, 8, 1)
        await poison(devices[0])
        await server.make_step(batches(1)[0])
        assert server.steps == 9


@pytest.mark.slow
@pytest.mark.parametrize("hurt", [0, 1])
async def test_kills(hurt: int) -> None:
    """Each batch makes its step, whether a worker or the server is killed."""
    async with (
        devices_of(2, process=True) as devices,
        train.open_parameter_server(
            devices, STEP, start(), SGD, staleness=2, snapshot_every=4
        ) as server,
    ):
        made = []
        async for each in server.run(batches(16)):
            made.append(each)
            if len(made) in (3, 10):
                await kill_host(devices[hurt])
        assert len(made) == 16
        assert max(each.staleness for each in made) <= 2
        params = await server.params()
        assert all(np.isfinite(each).all() for each in params.values())
        seen = server.statistics()
        assert seen.restored >= 1 or hurt  # a worker may have been idle


async def test_device_lost_for_good() -> None:
    """The model moves to another device, and batches go on."""
    async with (
        system_of_two() as (system, devices),
        train.open_parameter_server(
            devices, STEP, start(), SGD, staleness=1, snapshot_every=3, system=system
        ) as server,
    ):
        assert server.ref.path.startswith("/")
        made = []
        async for each in server.run(batches(8)):
            made.append(each)
            if len(made) == 4:
                await devices[0].ref.stop()
        assert len(made) == 8
        assert server.statistics().ranks == (1,)
        await devices[1].ref.stop()
        with pytest.raises(DeviceLost):
            await server.make_step(batches(1)[0])


async def test_refused(tmp_path: Path) -> None:
    """Bad batches and losses make no step; a loop that ends early leaves nothing behind."""
    good = batches(6)
    bad = {"x": good[0]["x"], "y": good[0]["y"] * np.nan}
    async with devices_of(2) as devices:
        with pytest.raises(TypeError, match="staleness must be"):
            async with train.open_parameter_server(devices, STEP, start(), SGD, staleness=1.5):  # type: ignore[arg-type]
                pass
        with pytest.raises(ValueError, match="staleness must be"):
            async with train.open_parameter_server(devices, STEP, start(), SGD, staleness=-1):
                pass
        async with train.open_parameter_server(devices, STEP, start(), SGD, staleness=0) as server:
            with pytest.raises(train.LossNotFinite) as caught:
                await server.make_step(bad)
            assert caught.value.step == 0
            with pytest.raises(TypeError, match="tree of NumPy arrays"):
                await server.make_step({"x": 3})
            np.testing.assert_array_equal((await server.params())["w"], start()["w"])

            async with aclosing(server.run(good[:3])) as begun:
                assert (await anext(begun)).number == 0
            path = tmp_path / "run.safetensors"
            await server.save(path)
            steps = server.steps
            assert (await server.make_step(good[4])).number >= steps
            await server.restore(path)
            assert server.steps <= steps + 1
