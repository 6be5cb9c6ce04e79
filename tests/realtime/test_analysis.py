"""Components, distances and cells against SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from atomr_accel import Device
from atomr_accel.realtime import FrameAnalysis, open_frame_analysis
from atomr_accel.realtime.wire import analysis as wire
from atomr_accel.testing import poison

from .. import seeds
from ..harness import cpu_only, on_shared, opened, sized
from .emulated import emulated, needs_compiler

Array = np.ndarray[Any, Any]


@pytest.fixture(params=["function", pytest.param("kernel", marks=[needs_compiler, cpu_only])])
def sources(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernel":
        monkeypatch.setattr(FrameAnalysis, "kernels", emulated(wire.ANALYSIS))


def pictures(random: Any) -> dict[str, Array]:
    """Return masks, most of which are hard for some pass."""
    h, w = random.integers(1, 40, 2)
    spiral = np.zeros((15, 15), bool)
    for k in range(0, 8, 2):
        spiral[k, k : 15 - k] = spiral[14 - k, k : 15 - k] = True
        spiral[k : 15 - k, 14 - k] = spiral[k + 2 : 15 - k, k] = True
        if k:
            spiral[k, k - 1] = True
    comb = np.zeros((12, 21), bool)
    comb[:, ::2] = comb[-1] = True
    return {
        "few": random.random((h, w)) < 0.05,
        "half": random.random((h, w)) < 0.5,
        "many": random.random((h, w)) < 0.95,
        "none": np.zeros((h, w), bool),
        "all": np.ones((h, w), bool),
        "line": random.random((1, w)) < 0.4,
        "column": random.random((h, 1)) < 0.4,
        "chess": np.indices((h, w)).sum(0) % 2 == 0,
        "spiral": spiral,
        "comb": comb,
    }


async def check(device: Device, mask: Array, neighbours: int) -> int:
    """Compare a frame's analysis with SciPy's; return how many pixels have another cell."""
    h, w = mask.shape
    async with open_frame_analysis(device, (h, w), neighbours=neighbours) as scene:
        await scene.push(mask.astype(np.float32))
        found = {name: await scene.read(name) for name in scene.state}
    structure = np.ones((3, 3)) if neighbours == 8 else None
    labels, count = ndimage.label(mask, structure)
    assert found["count"].tolist() == [count]
    assert (found["labels"] == labels).all()

    if mask.all():
        assert np.isinf(found["distance"]).all()
    else:
        wanted = ndimage.distance_transform_edt(mask)
        np.testing.assert_allclose(found["distance"], wanted, rtol=1e-6)

    nearest = found["nearest"]
    assert (found["cells"] == np.where(nearest < 0, 0, labels.ravel()[nearest])).all()
    if not mask.any():
        assert (nearest == -1).all()
        return 0
    assert mask.ravel()[nearest].all()
    far = np.hypot(*(np.indices((h, w)) - np.stack(np.divmod(nearest, w))))
    least = ndimage.distance_transform_edt(~mask)
    assert (far >= least - 1e-6).all()
    assert (far <= least + 1.0).all()
    return int((far > least + 1e-6).sum())


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize("neighbours", [4, 8])
async def test_hard_pictures_side_by_side(device: Device, neighbours: int) -> None:
    masks = [np.pad(mask, 1) for mask in pictures(seeds.rng()).values()]
    height = max(len(mask) for mask in masks)
    whole = [np.pad(mask, ((0, height - len(mask)), (0, 0))) for mask in masks]
    frame = np.concatenate(whole, axis=1)
    assert await check(device, frame, neighbours) <= frame.size / 1000


@pytest.mark.slow
@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize("neighbours", [4, 8])
async def test_hard_pictures(device: Device, neighbours: int) -> None:
    for mask in pictures(seeds.rng()).values():
        await check(device, mask, neighbours)


@pytest.mark.slow
@settings(max_examples=sized(15, 2000))
@given(
    mask=arrays(bool, st.tuples(st.integers(1, 24), st.integers(1, 24))),
    neighbours=st.sampled_from([4, 8]),
)
@on_shared
async def test_any_picture(device: Device, mask: Array, neighbours: int) -> None:
    await check(device, mask, neighbours)


@pytest.mark.slow
async def test_jump_flooding_seldom_errs(device: Device) -> None:
    random = seeds.rng()
    wrong = 0
    for _ in range(sized(1, 30)):
        wrong += await check(device, random.random((128, 160)) < 0.01, 4)
    assert wrong < sized(1, 30) * 128 * 160 / 1000


async def test_a_threshold_that_changes_and_frames_on_the_device(device: Device) -> None:
    frame = np.zeros((6, 9), np.float32)
    frame[1:3, 1:4], frame[4, 6:8] = 1, 3
    async with open_frame_analysis(device, frame.shape) as scene:
        await scene.push(await device.put(frame))
        assert (await scene.read("count")).tolist() == [2]
        assert scene.time == 1.0
        scene.update(threshold=2.0)
        await scene.step(0.5)  # the same frame once more
        assert (await scene.read("count")).tolist() == [1]
        assert ((await scene.read("labels")) == (frame == 3)).all()
        await scene.push(np.full((6, 9), 2.5) - frame)
        assert (await scene.read("count")).tolist() == [1]
        picture = await scene.snapshot()
        assert picture.shape == (6, 9, 3)
        assert picture[0, 0].max() > 0
        nan = await device.put(np.full((6, 9), np.nan, np.float32))
        await scene.push(nan)
        assert (await scene.read("count")).tolist() == [0]
        assert not (await scene.snapshot()).any()


@pytest.mark.slow
async def test_a_fault_midway() -> None:
    random = seeds.rng()
    async with opened() as device, open_frame_analysis(device, (8, 8), every=2) as scene:
        for number in range(5):
            if number == 3:
                await poison(device)
            frame = random.random((8, 8))
            await scene.push(frame)
            labels, _ = ndimage.label(frame > 0.5)
            assert (await scene.read("labels") == labels).all()
        found = scene.statistics()
        assert (found.steps, found.faults, found.lost_steps) == (4, 1, 1)


async def test_bad_input(device: Device) -> None:
    changes: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"shape": (0, 4)}, ValueError, "shape must be from 1"),
        ({"shape": (1, 40_000)}, ValueError, "shape must be at most 30000"),
        ({"neighbours": 6}, ValueError, "neighbours must be 4 or 8"),
        ({"threshold": np.nan}, ValueError, "threshold must be finite"),
    ]
    for change, kind, message in changes:
        with pytest.raises(kind, match=message):
            async with open_frame_analysis(device, **{"shape": (4, 4), **change}):
                pass
    async with open_frame_analysis(device, (4, 4)) as scene:
        await scene.push(np.ones((4, 4)))
        wrong: list[tuple[Any, type[Exception], str]] = [
            (np.ones((4, 5)), ValueError, r"frame must have shape \(4, 4\)"),
            (np.full((4, 4), np.nan), ValueError, "frame must be finite"),
            ("frame", TypeError, "frame must be an array of numbers"),
            (await device.zeros((4, 4), np.int32), TypeError, "frame must be of float32"),
            (await device.zeros((4, 5), np.float32), ValueError, "frame must have shape"),
        ]
        for frame, kind, message in wrong:
            with pytest.raises(kind, match=message):
                await scene.push(frame)
        with pytest.raises(ValueError, match="dt must be more than 0"):
            await scene.push(np.ones((4, 4)), dt=0)
        assert scene.steps == 1
        assert (await scene.read("labels") == 1).all()


@needs_compiler
@cpu_only
async def test_kernels_equal_their_functions(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = seeds.rng().random((23, 31))
    found = []
    for kernels in (FrameAnalysis.kernels, emulated(FrameAnalysis.kernels)):
        monkeypatch.setattr(FrameAnalysis, "kernels", kernels)
        async with open_frame_analysis(device, frame.shape, threshold=0.8, neighbours=8) as scene:
            await scene.push(frame)
            found.append([await scene.read(name) for name in scene.state])
            found[-1].append(await scene.snapshot())
    for one, other in zip(*found, strict=True):
        assert (one == other).all()
