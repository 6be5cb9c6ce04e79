"""Effects for videos: graphs of filters, faults and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import Device, GpuRef, Recording
from atomr_accel.actors import Call
from atomr_accel.realtime import BrokenVideo, Filters, open_effect, open_film, open_video
from atomr_accel.testing import poison

from .. import seeds
from ..harness import opened as opened_device
from ..harness import refused

H, W = 12, 16


def noise(count: int, *, shape: tuple[int, ...] = (H, W, 3)) -> list[np.ndarray[Any, Any]]:
    rng = seeds.rng()
    return [rng.integers(0, 256, shape).astype(np.uint8) for _ in range(count)]


def trail(on: Recording, image: GpuRef, last: GpuRef) -> GpuRef:
    """Blend with the result before."""
    return on.evaluate(image * np.float32(0.25) + last * np.float32(0.75))


def trailed(pictures: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    last = np.zeros((H, W, 3), np.float32)
    made = []
    for picture in pictures:
        last = np.rint(picture * np.float32(0.25) + last * np.float32(0.75))
        made.append(last.astype(np.uint8))
    return made


async def sketch(device: Device) -> Callable[[Recording, GpuRef], GpuRef]:
    filters = await Filters.load(device)
    smooth, derive = await filters.sobel()
    gray = await filters.space("rgb2gray")

    def build(on: Recording, image: GpuRef) -> GpuRef:
        calm = filters.convert(on, image, gray)
        dx = filters.separable(on, calm, derive, smooth, border="replicate")
        dy = filters.separable(on, calm, smooth, derive, border="replicate")
        return filters.canny(on, dx, dy, 100, 200)

    return build


async def film_of(path: Path, pictures: list[np.ndarray[Any, Any]]) -> Path:
    async with open_film(path, rate=12) as film:
        for picture in pictures:
            await film.add(picture)
    return path


async def test_a_graph_of_filters_makes_what_opencv_makes(device: Device) -> None:
    y, x = np.mgrid[:H, :W]
    picture = np.where((x > 7) ^ (y > 5), 220, 30).astype(np.uint8)
    async with open_effect(device, (H, W), await sketch(device)) as effect:
        found = await effect.apply(picture)
        assert found.dtype == np.uint8
        assert (found == cv2.Canny(picture, 100, 200)).all()
        assert found.any()
        assert effect.statistics().frames == 1


async def test_results_are_limited_and_may_have_another_size(device: Device) -> None:
    filters = await Filters.load(device)

    def build(on: Recording, image: GpuRef) -> GpuRef:
        small = filters.resize(on, image, H // 2, W // 2, method="area")
        # 0 / 0 is NaN where it is black.
        return on.evaluate((small * np.float32(3) - np.float32(100)) * (small / small))

    (picture,) = noise(1)
    picture[:2, :2] = 0
    async with open_effect(device, (H, W), build) as effect:
        found = await effect.apply(picture)
    small = picture.astype(np.float32).reshape(H // 2, 2, W // 2, 2, 3).mean((1, 3))
    wanted = np.clip(small * 3 - 100, 0, 255)
    wanted[0, 0] = 0
    assert found.shape == (H // 2, W // 2, 3)
    assert np.abs(found - wanted).max() <= 0.51


@pytest.mark.slow
async def test_a_fault_takes_nothing_from_an_effect_with_memory() -> None:
    pictures = noise(7)
    async with (
        opened_device() as device,
        open_effect(device, (H, W), trail, feedback=True) as effect,
    ):
        found = []
        for at, picture in enumerate(pictures):
            if at == 4:
                await poison(device)
            found.append(await effect.apply(picture))
        assert effect.statistics().faults == 1
    assert (np.array(found) == np.array(trailed(pictures))).all()


async def test_a_call_that_is_cancelled_leaves_memory_whole(device: Device) -> None:
    pictures = noise(4)
    async with open_effect(device, (H, W), trail, feedback=True) as effect:
        await effect.apply(pictures[0])
        with trio.CancelScope() as scope:
            scope.cancel()
            await effect.apply(pictures[3])
        assert scope.cancelled_caught
        assert effect.statistics().frames == 1
        found = [await effect.apply(picture) for picture in pictures[1:3]]
    assert (np.array(found) == np.array(trailed(pictures[:3])[1:])).all()


async def test_calls_take_turns_and_others_ask(device: Device) -> None:
    pictures = noise(5)
    found: dict[int, Any] = {}
    async with open_effect(
        device, (H, W), trail, feedback=True, system=device.system, name="trail"
    ) as effect:

        async def send(at: int) -> None:
            found[at] = await effect.ref.ask(Call(pictures[at]))

        async with trio.open_nursery() as nursery:
            for at in range(5):
                nursery.start_soon(send, at)
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert effect.statistics().frames == 5
    with pytest.raises(RuntimeError, match="this effect must be open"):
        await effect.apply(pictures[0])


@pytest.mark.slow
async def test_a_video_goes_through_an_effect_to_a_film(tmp_path: Path) -> None:
    y, x = np.mgrid[:H, :W]
    pictures = [
        np.stack([10 * x + at, 15 * y, x + y], -1).clip(0, 255).astype(np.uint8) for at in range(11)
    ]
    source = await film_of(tmp_path / "a.mp4", pictures)
    async with (
        opened_device() as device,
        open_effect(device, (H, W), trail, feedback=True) as effect,
    ):
        async with trio.open_nursery() as nursery:
            done: list[int] = []

            async def convert() -> None:
                done.append(await effect.convert(source, tmp_path / "b.mp4"))

            nursery.start_soon(convert)
            with trio.fail_after(60):
                while effect.statistics().frames < 4:
                    await trio.lowlevel.checkpoint()
            await poison(device)
        assert done == [11]
        assert effect.statistics().frames == 11
    async with open_video(source) as video:
        seen = [picture async for picture in video]
    async with open_video(tmp_path / "b.mp4") as video:
        assert video.rate == 12
        found = [picture async for picture in video]
    assert len(found) == 11
    for one, other in zip(found, trailed(seen), strict=True):
        assert np.abs(one.astype(int) - other).mean() < 6


async def test_a_broken_video_leaves_the_film_and_the_memory(
    device: Device, tmp_path: Path
) -> None:
    pictures = noise(40)
    source = await film_of(tmp_path / "a.mp4", pictures)
    source.write_bytes(source.read_bytes()[: -(source.stat().st_size // 4)])
    target = await film_of(tmp_path / "b.mp4", pictures[:2])
    before = target.read_bytes()
    async with open_effect(device, (H, W), trail, feedback=True) as effect:
        with pytest.raises(BrokenVideo) as caught:
            await effect.convert(source, target)
        assert target.read_bytes() == before
        assert effect.statistics().frames == caught.value.frames > 0
        white = np.full((H, W, 3), 255, np.uint8)
        after = await effect.apply(white)  # a quarter of white, and the rest of the last picture
        assert after.min() >= 63
        assert after.std() > 0
        with pytest.raises(ValueError, match="source must have pictures of shape"):
            await effect.convert(
                await film_of(tmp_path / "c.mp4", noise(1, shape=(8, 8, 3))), target
            )
        with pytest.raises(FileNotFoundError):
            await effect.convert(tmp_path / "none.mp4", target)


async def test_wrong_graphs_and_pictures_are_refused(device: Device) -> None:
    async def wrong(on: Recording, image: GpuRef) -> GpuRef:
        raise NotImplementedError

    def lost(on: Recording, image: GpuRef) -> GpuRef:
        raise ZeroDivisionError("lost")

    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (wrong, {}, TypeError, "build must be a function that is not async"),
        (lambda _on, _image: None, {}, TypeError, "build must return a GpuRef, not NoneType"),
        (lambda on, x: on.evaluate(x.astype(np.float64)), {}, TypeError, "float32 image, not flo"),
        (lambda on, x: on.evaluate(x.sum()), {}, ValueError, "build must return an image of shape"),
        (lambda on, x, _: on.evaluate(x.sum(2)), {"feedback": True}, ValueError, "image of shape"),
        (trail, {"feedback": 1}, TypeError, "feedback must be an instance of bool"),
        (lost, {}, ZeroDivisionError, "lost"),
    ]
    for build, options, kind, text in cases:
        await refused(kind, text, open_effect, device, (H, W), build, **options)
    await refused(ValueError, "shape must have 2 axes", open_effect, device, (H, W, 3), trail)
    async with open_effect(device, (H, W), trail, feedback=True) as effect:
        with pytest.raises(ValueError, match="picture must be of shape"):
            await effect.apply(np.zeros((W, H, 3), np.uint8))
        with pytest.raises(TypeError, match="picture must be uint8"):
            await effect.apply(np.zeros((H, W, 3)))
        assert effect.statistics().frames == 0
