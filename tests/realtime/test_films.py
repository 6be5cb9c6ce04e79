"""Pictures, films and videos in files, good ones and broken ones."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import trio
import trio.testing
from PIL import Image

from atomr_accel import Device
from atomr_accel.realtime import BrokenVideo, open_film, open_fluid, open_video, save_picture

from .. import seeds

Array = np.ndarray[Any, np.dtype[np.uint8]]


def moving(count: int, height: int = 32, width: int = 48) -> list[Array]:
    """Return smooth pictures, each another one."""
    y, x = np.mgrid[:height, :width]
    return [
        np.stack([4 * x + 3 * at, 5 * y, np.full_like(x, 9 * at)], -1).clip(0, 255).astype(np.uint8)
        for at in range(count)
    ]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def filmed(path: Path, pictures: list[Array], **options: Any) -> Path:
    async with open_film(path, **options) as film:
        for picture in pictures:
            await film.add(picture)
    return path


async def test_a_png_has_the_pixels_of_the_picture(tmp_path: Path) -> None:
    picture = seeds.rng().integers(0, 256, (5, 7, 3)).astype(np.uint8)
    for given, scale in ((picture, 1), (picture, 3), (picture[..., 0], 2)):
        await save_picture(tmp_path / "a.png", given, scale=scale)
        found = np.asarray(Image.open(tmp_path / "a.png"))
        wanted = given if given.ndim == 3 else given[..., None].repeat(3, 2)
        assert (found == wanted.repeat(scale, 0).repeat(scale, 1)).all()
    assert names(tmp_path) == ["a.png"]


async def test_a_gif_has_all_pictures_at_their_times(tmp_path: Path) -> None:
    pictures = moving(7)
    await filmed(tmp_path / "a.gif", pictures, rate=30, scale=2)
    with Image.open(tmp_path / "a.gif") as image:
        assert (image.n_frames, image.size) == (7, (96, 64))  # type: ignore[attr-defined]
        ends = [0]
        for at, picture in enumerate(pictures):
            image.seek(at)
            ends.append(ends[-1] + image.info["duration"])
            found = np.asarray(image.convert("RGB"))[::2, ::2].astype(int)
            assert np.abs(found - picture).mean() < 6
    assert np.abs(np.diff(ends) - 1000 / 30).max() < 10
    assert abs(ends[-1] - 7000 / 30) <= 5


@pytest.mark.parametrize("shape", [(32, 48), (31, 47)])
async def test_an_mp4_that_was_written_is_read(tmp_path: Path, shape: tuple[int, int]) -> None:
    pictures = moving(9, *shape)
    await filmed(tmp_path / "a.mp4", pictures, rate=24)
    async with open_video(tmp_path / "a.mp4") as video:
        assert (video.height, video.width, video.rate) == (32, 48, 24)
        found = [picture async for picture in video]
        assert video.statistics().frames == len(found) == 9
    for one, other in zip(found, pictures, strict=True):
        cut = one[: shape[0], : shape[1]].astype(int)
        assert np.abs(cut - other).mean() < 6  # colours have half the resolution


async def test_frames_of_a_simulation_make_a_film(device: Device, tmp_path: Path) -> None:
    source = np.zeros((16, 16))
    source[2:4, 6:10] = 20
    async with (
        open_fluid(device, (16, 16), source=source, buoyancy=2.0) as fluid,
        open_film(tmp_path / "a.gif", rate=10) as film,
    ):
        for _ in range(3):
            await fluid.step(0.1)
            await film.add(await fluid.snapshot())
        assert film.statistics().frames == 3
        assert film.statistics().seconds == pytest.approx(0.3)
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["a.gif", "a.mp4"])
async def test_a_film_that_fails_leaves_the_file_as_it_was(tmp_path: Path, name: str) -> None:
    path = await filmed(tmp_path / name, moving(3))
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        async with open_film(path) as film:
            await film.add(moving(1)[0])
            raise ZeroDivisionError
    with trio.move_on_after(60) as scope:
        async with open_film(path) as film:
            await film.add(moving(1)[0])
            scope.cancel()
            await trio.lowlevel.checkpoint()
    with pytest.raises(ValueError, match="a film must have a picture"):
        async with open_film(path):
            pass
    assert path.read_bytes() == before
    assert names(tmp_path) == [name]
    with pytest.raises(RuntimeError, match="a film must be open"):
        await film.add(moving(1)[0])


async def test_a_wrong_picture_is_refused_and_the_film_goes_on(tmp_path: Path) -> None:
    good = moving(2)
    async with open_film(tmp_path / "a.mp4") as film:
        await film.add(good[0])
        for wrong, kind, text in [
            ([1], TypeError, "picture must be a NumPy array, not list"),
            (good[0].astype(np.float32), TypeError, "picture must be uint8"),
            (good[0][:4], ValueError, "picture must have the height and width of the first"),
            (good[0][..., :2], ValueError, r"picture must have shape \(height, width\)"),
            (good[0][:0], ValueError, "picture must have shape"),
        ]:
            with pytest.raises(kind, match=text):
                await film.add(wrong)  # type: ignore[arg-type]
        await film.add(good[1])
    async with open_video(tmp_path / "a.mp4") as video:
        assert len([picture async for picture in video]) == 2


async def test_wrong_arguments_make_no_file(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], type[Exception], str]] = [
        ("a.avi", {}, ValueError, "path must end with .gif or .mp4"),
        ("none/a.gif", {}, FileNotFoundError, "path must be in a folder that is there"),
        ("a.gif", {"rate": 60}, ValueError, "rate must be at most 50 in a GIF"),
        ("a.mp4", {"rate": np.nan}, ValueError, "rate must be finite"),
        ("a.mp4", {"rate": 0}, ValueError, "rate must be from 0.01"),
        ("a.mp4", {"scale": 1.5}, TypeError, "scale must be an int"),
    ]
    for path, options, kind, text in cases:
        with pytest.raises(kind, match=text):
            await filmed(tmp_path / path, moving(1), **options)
    with pytest.raises(ValueError, match=r"path must end with \.png"):
        await save_picture(tmp_path / "a.jpg", moving(1)[0])
    with pytest.raises(TypeError, match="path must be a str or a Path"):
        await save_picture(3, moving(1)[0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path must be a str or a Path"):
        async with open_video(3):  # type: ignore[arg-type]
            pass
    assert names(tmp_path) == []


# --- broken videos ----------------------------------------------------------------------------


def damaged(whole: bytes, kind: str) -> bytes:
    """Return a file's bytes with damage in it."""
    if kind == "empty":
        return b""
    if kind == "text":
        return b"no video\n" * 50
    at = 9 * len(whole) // 10
    if kind == "cut":
        return whole[:at]
    noise = seeds.rng().integers(0, 256, 200).astype(np.uint8).tobytes()
    return whole[:at] + noise + whole[at + len(noise) :]


@pytest.mark.parametrize("kind", ["empty", "text", "cut", "noise"])
async def test_a_broken_video_is_told_after_its_good_pictures(tmp_path: Path, kind: str) -> None:
    path = await filmed(tmp_path / "a.mp4", moving(60))
    path.write_bytes(damaged(path.read_bytes(), kind))
    found = []
    with pytest.raises(BrokenVideo, match="must be a whole video") as caught:
        async with open_video(path) as video:
            async for picture in video:
                found.append(picture)  # noqa: PERF401 (those before the error count)
    assert caught.value.path == path
    assert caught.value.frames == len(found) < 60
    assert (kind in {"cut", "noise"}) == (len(found) > 0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.path, again.frames) == (str(caught.value), path, len(found))


async def test_a_file_that_ends_between_pictures_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(path, "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=30)
        stream.height, stream.width, stream.pix_fmt, stream.gop_size = 32, 48, "yuv420p", 1
        for picture in moving(40):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    whole = path.read_bytes()
    async with open_video(path) as video:
        assert len([picture async for picture in video]) == 40
    path.write_bytes(whole[: len(whole) // 2])
    count = 0
    with pytest.raises(BrokenVideo):
        async with open_video(path) as video:
            async for _ in video:
                count += 1
    assert 5 < count < 35


async def test_files_without_pictures_are_no_videos(tmp_path: Path) -> None:
    with av.open(tmp_path / "a.wav", "w") as container:
        stream: Any = container.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
    await filmed(tmp_path / "a.mp4", moving(2))
    (tmp_path / "a.m3u8").write_text(
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path}/a.mp4\n#EXT-X-ENDLIST\n"
    )
    for name in ("a.wav", "a.m3u8"):
        with pytest.raises(BrokenVideo):
            async with open_video(tmp_path / name) as video:
                await anext(video)
    with pytest.raises(FileNotFoundError):
        async with open_video(tmp_path / "none.mp4"):
            pass
    with pytest.raises(IsADirectoryError):
        async with open_video(tmp_path):
            pass


async def test_pictures_are_decoded_a_few_ahead_and_no_more(tmp_path: Path) -> None:
    path = await filmed(tmp_path / "a.mp4", moving(30))
    decoded = []
    async with open_video(path, ahead=3) as video:
        with trio.fail_after(60):
            while video.statistics().waiting < 2:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.01)
            decoded.append(video.statistics().waiting)
            await anext(video)
            assert video.statistics().frames == 1
    assert decoded == [2]  # and the third waits for room
    with pytest.raises(RuntimeError, match="a video must be open"):
        await anext(video)
