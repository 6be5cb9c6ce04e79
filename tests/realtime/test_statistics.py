"""Statistics over frames against NumPy's of all frames together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.realtime import FrameStatistics, FrameSummary, open_frame_statistics
from atomr_accel.realtime.wire import statistics as wire
from atomr_accel.testing import poison

from .. import seeds
from ..harness import cpu_only, opened
from .emulated import emulated, needs_compiler

Array = np.ndarray[Any, Any]

SMALL: Any = {"bins": 20, "low": -2.0, "high": 2.0, "image": (12, 40)}


@pytest.fixture(params=["function", pytest.param("kernel", marks=[needs_compiler, cpu_only])])
def sources(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernel":
        monkeypatch.setattr(FrameStatistics, "kernels", emulated(wire.STATISTICS))


def agree(found: FrameSummary, frames: Array) -> None:
    """Compare with NumPy, which sees all frames at once."""
    wide = frames.astype(np.float64)
    assert found.frames == len(frames)
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
    np.testing.assert_allclose(found.mean, wide.mean(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.variance, wide.var(), rtol=1e-6)
    edges = found.edges
    inside = frames[(frames >= edges[0]) & (frames < edges[-1])]
    counts, _ = np.histogram(inside, edges)
    assert found.histogram.sum() == counts.sum()
    assert np.abs(found.histogram - counts).max() <= 1  # at an edge, rounding decides
    flat = wide.reshape(len(frames), -1)
    recent = np.stack([flat.min(1), flat.max(1), flat.mean(1), flat.var(1)], 1)
    np.testing.assert_allclose(found.recent, recent[-len(found.recent) :], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("sources")
async def test_statistics_of_many_frames(device: Device) -> None:
    frames = seeds.rng().standard_normal((9, 7, 11)).astype(np.float32)
    async with open_frame_statistics(device, (7, 11), history=4, **SMALL) as scene:
        empty = await scene.summary()
        assert (empty.frames, empty.mean, empty.variance) == (0, 0, 0)
        assert (empty.minimum, empty.maximum) == (np.inf, -np.inf)
        assert empty.recent.shape == (0, 4)
        for number, frame in enumerate(frames):
            await scene.push(frame)
            if number in {0, 2, 8}:
                found = await scene.summary()
                assert len(found.recent) == min(number + 1, 4)
                agree(found, frames[: number + 1])
        pixels = {
            name: await scene.read(name) for name in ("minimum", "maximum", "mean", "squares")
        }
    assert (pixels["minimum"] == frames.min(0)).all()
    assert (pixels["maximum"] == frames.max(0)).all()
    np.testing.assert_allclose(pixels["mean"], frames.mean(0, dtype=float), rtol=1e-12)
    np.testing.assert_allclose(pixels["squares"] / 9, frames.astype(float).var(0), rtol=1e-10)


async def test_a_mean_far_from_zero_does_not_cancel(device: Device) -> None:
    frames = (1e6 + seeds.rng().integers(0, 4, (6, 8, 8))).astype(np.float32)
    async with open_frame_statistics(
        device, (8, 8), bins=4, low=1e6, high=1e6 + 4, image=(4, 4)
    ) as scene:
        for frame in frames:
            await scene.push(frame)
        agree(await scene.summary(), frames)


async def test_forgetting_weights_frames_by_age(device: Device) -> None:
    frames = seeds.rng().standard_normal((5, 6, 6)).astype(np.float32)
    weights = 0.75 ** np.arange(4, -1, -1)
    async with open_frame_statistics(device, (6, 6), forgetting=0.25, **SMALL) as scene:
        for frame in frames:
            await scene.push(frame)
        found, mean = await scene.summary(), await scene.read("mean")
        assert found.frames == pytest.approx(weights.sum())
        np.testing.assert_allclose(mean, np.average(frames, 0, weights), rtol=1e-6, atol=1e-9)
        wide = frames.astype(float).reshape(5, -1)
        average = np.average(wide.mean(1), weights=weights)
        assert found.mean == pytest.approx(average, rel=1e-6)
        spread = np.average(((wide - average) ** 2).mean(1), weights=weights)
        assert found.variance == pytest.approx(spread, rel=1e-6)
        scene.update(forgetting=1.0)
        await scene.push(frames[0])
        found = await scene.summary()
        assert found.frames == 1
        assert found.mean == pytest.approx(wide[0].mean(), rel=1e-6)


async def test_the_picture_shows_bars(device: Device) -> None:
    async with open_frame_statistics(device, (4, 4), bins=4, low=0, high=4, image=(8, 16)) as scene:
        await scene.push(np.repeat([0.5, 0.5, 2.5, 3.5], 4).reshape(4, 4))
        bars = (await scene.snapshot())[..., 1] >= 200
    # The mean's line covers a column of those of the second bin.
    assert bars.sum(0)[[1, 5, 9, 13]].tolist() == [8, 0, 4, 4]


@pytest.mark.slow
async def test_a_fault_midway_loses_only_frames() -> None:
    frames = seeds.rng().standard_normal((7, 5, 5)).astype(np.float32)
    async with opened() as device, open_frame_statistics(device, (5, 5), every=2, **SMALL) as scene:
        for number, frame in enumerate(frames):
            if number == 5:
                await poison(device)
            await scene.push(frame)
        assert scene.statistics().faults == 1
        assert scene.statistics().lost_steps == 1
        agree(await scene.summary(), np.delete(frames, 4, 0))
    with pytest.raises(RuntimeError, match="FrameStatistics must be open"):
        await scene.summary()


async def test_bad_input(device: Device) -> None:
    changes: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"bins": 0}, ValueError, "bins must be from 1"),
        ({"low": 2.0, "high": 2.0}, ValueError, "low must be less than high"),
        ({"high": np.nan}, ValueError, "high must be finite"),
        ({"history": 0}, ValueError, "history must be from 1"),
        ({"forgetting": 1.5}, ValueError, "forgetting must be from 0 to 1"),
        ({"image": (4,)}, ValueError, "image must have 2 axes"),
    ]
    for change, kind, message in changes:
        with pytest.raises(kind, match=message):
            async with open_frame_statistics(device, (4, 4), **change):
                pass


@needs_compiler
@cpu_only
async def test_kernels_equal_their_functions(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = seeds.rng().standard_normal((3, 9, 10))
    found: list[list[Array]] = []
    for kernels in (FrameStatistics.kernels, emulated(FrameStatistics.kernels)):
        monkeypatch.setattr(FrameStatistics, "kernels", kernels)
        async with open_frame_statistics(device, (9, 10), forgetting=0.1, **SMALL) as scene:
            for frame in frames:
                await scene.push(frame)
            found.append([await scene.read(name) for name in scene.state])
            found[-1].append(await scene.snapshot())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
