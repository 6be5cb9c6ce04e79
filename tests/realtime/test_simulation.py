"""Steps, faults, clocks and viewers of all simulations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from atomr_accel import Device, GpuRef, Recording
from atomr_accel.actors import Call, GetStatistics
from atomr_accel.realtime import (
    DrawScene,
    KernelSource,
    SceneParameter,
    Simulation,
    StepScene,
    UpdateScene,
    open_fluid,
    opened,
)
from atomr_accel.testing import poison

from ..harness import opened as opened_device

SOURCE = r"""
extern "C" __global__ void grow(float* x, const float* values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += values[0] * values[1];
}
extern "C" __global__ void show(unsigned char* out, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (unsigned char)x[i / 3];
}
"""


def grow(x: Any, values: Any, n: int) -> None:
    x += values[0] * values[1]


def show(out: Any, x: Any, n: int) -> None:
    out[...] = x[..., None].astype(np.uint8)


class Growth(Simulation):
    """Numbers that grow by ``rate`` in a second."""

    parameters: ClassVar[Mapping[str, SceneParameter]] = {"rate": SceneParameter(1.0, 0.0, 100.0)}
    kernels = KernelSource(SOURCE, {"grow": grow, "show": show})

    def begin(self) -> Mapping[str, np.ndarray[Any, Any]]:
        return {"x": np.random.default_rng(self.seed).integers(0, 9, (2, 4)).astype(np.float32)}

    def scratch(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"picture": ((2, 4, 3), "uint8")}

    def record(self, recording: Recording) -> None:
        self.launch(recording, "grow", 8, self.state["x"], self.values, 8)

    def draw(self, recording: Recording) -> GpuRef:
        self.launch(recording, "show", 24, self.room["picture"], self.state["x"], 24)
        return self.room["picture"]

    def substeps(self, dt: float, settings: Mapping[str, float]) -> int:
        return int(dt // 4) + 1

    def check(self, settings: Mapping[str, float]) -> None:
        if settings["rate"] == 13:
            raise ValueError("rate must be another number, not 13")


def growth(device: Device, *, seed: int = 0, every: int = 4, **given: float) -> Growth:
    return Growth(device, seed=seed, every=every, given=given)


async def test_steps_updates_and_pictures(device: Device) -> None:
    async with opened(growth(device, rate=2.0)) as scene:
        first = await scene.read("x")
        assert await scene.step(0.5, count=2) == 1.0
        assert (await scene.read("x") == first + 2).all()
        scene.update(rate=4)
        assert await scene.step(8.0) == 9.0  # in three substeps
        assert np.abs(await scene.read("x") - first - 34).max() < 1e-5
        picture = await scene.snapshot()
        assert picture.dtype == np.uint8
        assert (picture[..., 1] == np.floor(await scene.read("x") + 1e-4)).all()
        await scene.write("x", np.ones((2, 4)))
        assert (await scene.read("x") == 1).all()
    found = scene.statistics()
    assert (found.steps, found.frames, found.faults) == (3, 1, 0)
    assert found.parameters == {"rate": 4.0}
    with pytest.raises(RuntimeError, match="Growth must be open"):
        await scene.step(1.0)


async def test_the_same_seed_makes_the_same_scene(device: Device) -> None:
    found = []
    for seed in (3, 3, 4):
        async with opened(growth(device, seed=seed)) as scene:
            await scene.step(0.1, count=5)
            found.append(await scene.read("x"))
    assert (found[0] == found[1]).all()
    assert (found[0] != found[2]).any()


async def test_bad_input_leaves_the_scene_as_it_is(device: Device) -> None:
    with pytest.raises(TypeError, match="'speed' must be a parameter: one of rate"):
        growth(device, speed=1)
    with pytest.raises(TypeError, match="device must be an instance of Device"):
        growth("0")  # type: ignore[arg-type]
    async with opened(growth(device)) as scene:
        for wrong, kind in [
            (0, ValueError),
            (-1, ValueError),
            (np.nan, ValueError),
            ("1", TypeError),
        ]:
            with pytest.raises(kind, match="dt must be"):
                await scene.step(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="dt must need at most 256 substeps"):
            await scene.step(5000.0)
        for changes in ({"rate": np.inf}, {"rate": 13}, {"rate": 101}):
            with pytest.raises(ValueError, match="rate must be"):
                scene.update(**changes)
        with pytest.raises(ValueError, match="count must be from 1"):
            await scene.step(1.0, count=0)
        with pytest.raises(ValueError, match="name must be one of x, not 'y'"):
            await scene.read("y")
        with pytest.raises(ValueError, match="array must be of shape"):
            await scene.write("x", np.zeros((4, 2)))
        with pytest.raises(ValueError, match="array must be finite, not with NaN"):
            await scene.write("x", np.full((2, 4), np.nan))
        with pytest.raises(ValueError, match="hz must be from"):
            await scene.run(0)
        assert scene.steps == 0
        assert scene.statistics().parameters == {"rate": 1.0}


async def test_run_makes_a_step_when_its_time_has_come(
    device: Device, mock_clock: MockClock
) -> None:
    async with opened(growth(device)) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(partial(scene.run, 50, frames=10))
        for made in range(10):
            await trio.testing.wait_all_tasks_blocked()
            assert scene.steps == made
            mock_clock.jump(0.0201)
            while scene.steps == made:
                await trio.lowlevel.checkpoint()
    assert scene.steps == 10
    assert scene.time == pytest.approx(0.2)


async def test_run_makes_up_for_some_steps_and_leaves_out_the_rest(
    device: Device, mock_clock: MockClock
) -> None:
    async with opened(growth(device)) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.run, 10)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.35)
        while scene.steps < 3:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(2.0)
        while scene.steps < 7:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert scene.steps == 7
        assert scene.statistics().late_steps == 16
        nursery.cancel_scope.cancel()


async def test_viewers_get_pictures_and_slow_ones_skip_some(
    device: Device, mock_clock: MockClock
) -> None:
    async with opened(growth(device)) as scene, trio.open_nursery() as nursery:
        async with scene.frames() as quick, scene.frames():  # the other one takes none
            nursery.start_soon(scene.run, 10)
            seen = []
            for _ in range(5):
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(0.101)
                seen.append(await quick.receive())
        nursery.cancel_scope.cancel()
    assert {each.shape for each in seen} == {(2, 4, 3)}
    assert scene.statistics().skipped_frames == 4


async def test_viewers_end_with_the_scene(device: Device) -> None:
    ended = trio.Event()

    async def watch(scene: Growth, task_status: trio.TaskStatus[None]) -> None:
        async with scene.frames() as pictures:
            task_status.started()
            async for _ in pictures:
                pass
        ended.set()

    async with trio.open_nursery() as nursery:
        async with opened(growth(device)) as scene:
            await nursery.start(watch, scene)
        await ended.wait()
    with pytest.raises(RuntimeError, match="Growth must be open"):
        async with scene.frames():
            pass
    with pytest.raises(RuntimeError, match="Growth must be open"):
        scene.update(rate=2.0)


async def test_a_scene_is_an_actor(device: Device) -> None:
    async with opened(growth(device), system=device.system, name="growth") as scene:
        assert scene.ref.path == "/growth"
        assert await scene.ref.ask(StepScene(dt=0.5, count=2)) == 1.0
        await scene.ref.ask(UpdateScene({"rate": 3.0}))
        assert (await scene.ref.ask(DrawScene())).shape == (2, 4, 3)
        assert (await scene.ref.ask(GetStatistics())).parameters == {"rate": 3.0}
        with pytest.raises(TypeError, match="takes no calls by message"):
            await scene.ref.ask(Call(1))
        with pytest.raises(ValueError, match="rate must be"):
            await scene.ref.ask(UpdateScene({"rate": -1.0}))
        with pytest.raises(ValueError, match="dt must be"):
            await scene.ref.ask(StepScene(dt=-1.0))


async def test_a_cancelled_step_is_made_in_full_or_not_at_all(device: Device) -> None:
    async with opened(growth(device)) as scene:
        first = await scene.read("x")
        for checkpoints in range(8):
            with trio.CancelScope() as scope:

                async def cancel(scope: Any = scope, checkpoints: int = checkpoints) -> None:
                    for _ in range(checkpoints):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel)
                    await scene.step(1.0)
            assert (await scene.read("x") == first + scene.steps).all()


@pytest.mark.slow
async def test_a_fault_costs_steps_and_not_the_scene() -> None:
    async with (
        opened_device() as device,
        opened(growth(device, every=4), system=device.system) as scene,
    ):
        first = await scene.read("x")
        scene.update(rate=2.0)
        await scene.step(1.0, count=6)
        await poison(device)
        await scene.step(1.0)
        assert scene.steps == 5  # four were kept, and one is new
        assert scene.time == 5.0
        assert (await scene.read("x") == first + 10).all()
        found = scene.statistics()
        assert (found.faults, found.lost_steps) == (1, 2)
        await scene.keep()
        await scene.step(1.0)
        await poison(device)
        assert (await scene.snapshot())[0, 0, 0] == first[0, 0] + 10
        assert scene.steps == 5


async def test_a_fault_midway_in_run_delays_it() -> None:
    async with opened_device() as device, open_fluid(device, (8, 8), every=2) as fluid:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fluid.run, 200)
            while fluid.steps < 4:
                await trio.lowlevel.checkpoint()
            await poison(device)
            while not fluid.statistics().faults or fluid.steps < 8:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert device.generation == 2
