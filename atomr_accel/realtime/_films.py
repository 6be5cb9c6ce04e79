"""Pictures and films in files: PNG by Pillow, GIF by Pillow, MP4 by PyAV."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import trio

from .._errors import LibraryMissing, said_of
from .._install import install_command
from ..actors.blocks import opens
from ..actors.util import NoPublicConstructor
from ._checks import number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from PIL import Image

    Picture = np.ndarray[Any, np.dtype[np.uint8]]

LARGEST: Final = 16384
"""Pixels along a side of a picture."""

_LARGEST_GIF: Final = 1 << 28
"""Bytes of a GIF's pictures, which wait in memory for its end."""

_SHORTEST_GIF: Final = 20
"""Milliseconds: browsers show pictures that are shorter for 100."""


@contextmanager
def library() -> Iterator[None]:
    """Say how to install a package that is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise LibraryMissing(
            f"pictures and films need {error.name}: {install_command('realtime')}",
            library=str(error.name),
        ) from error


def picture_of(picture: object, name: str = "picture") -> Picture:
    """Return a picture after checks: uint8 of shape (height, width) or (height, width, 3)."""
    if not isinstance(picture, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {said_of(picture)}")
    if picture.dtype != np.uint8:
        raise TypeError(f"{name} must be uint8, not {picture.dtype}; use astype(np.uint8)")
    if picture.ndim not in {2, 3} or picture.shape[2:] not in {(), (3,)} or not picture.size:
        raise ValueError(
            f"{name} must have shape (height, width) or (height, width, 3), not {picture.shape}"
        )
    if max(picture.shape) > LARGEST:
        raise ValueError(
            f"{name} must have at most {LARGEST} pixels along a side, not {max(picture.shape)}"
        )
    return picture


def _enlarged(picture: Picture, scale: int) -> Picture:
    """Return a picture of three channels, with squares for pixels."""
    made = picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, 2)
    if scale > 1:
        made = made.repeat(scale, 0).repeat(scale, 1)
    return np.ascontiguousarray(made)


def _path_of(path: object, kinds: tuple[str, ...]) -> Path:
    if not isinstance(path, (str, Path)):
        raise TypeError(f"path must be a str or a Path, not {said_of(path)}")
    made = Path(path)
    if made.suffix.lower() not in kinds:
        raise ValueError(f"path must end with {' or '.join(kinds)}, not {made.name!r}")
    if not made.parent.is_dir():
        raise FileNotFoundError(f"path must be in a folder that is there, not in {made.parent}")
    return made


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """Give a name beside a file that the new one has until it is complete."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield draft
        draft.replace(path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


async def save_picture(
    path: str | PathLike[str], picture: np.ndarray[Any, Any], *, scale: int = 1
) -> None:
    """Write a picture to a PNG file.

    A file of that name is replaced when the new one is complete.

    Args:
        path: the file, which ends with ``.png``.
        picture: uint8 of shape (height, width) or (height, width, 3).
        scale: pixels along the sides of the square that each pixel becomes.

    Raises:
        LibraryMissing: Pillow is not installed.
        OSError: the file cannot be written.
    """
    target = _path_of(path, (".png",))
    checked = picture_of(picture)
    times = _scale_of(scale, checked)
    with library():
        from PIL import Image

    def write() -> None:
        with _replaced(target) as draft:
            Image.fromarray(_enlarged(checked, times)).save(draft, "PNG", optimize=True)

    await trio.to_thread.run_sync(write)


def _scale_of(scale: object, picture: Picture) -> int:
    return whole(scale, "scale", 1, LARGEST // max(picture.shape[:2]))


class _Writer(Protocol):
    """A file that gets the pictures of a film. Its methods are called in threads, in turn."""

    def add(self, picture: Picture) -> None: ...

    def close(self) -> None:
        """Complete the file."""

    def drop(self) -> None:
        """Release the file, which is not complete."""


class _Gif:
    """A GIF. Pillow wants all of its pictures at once, so they wait as 256 colours."""

    def __init__(self, path: Path, rate: Fraction) -> None:
        with library():
            from PIL import Image as pillow  # noqa: N813 (Image is what it says to checkers)

        if rate > 1000 // _SHORTEST_GIF:
            raise ValueError(
                f"rate must be at most {1000 // _SHORTEST_GIF} in a GIF, not {float(rate):g}; "
                "browsers play no quicker one"
            )
        self._image: Final = pillow
        self._path: Final = path
        self._rate: Final = rate
        self._pictures: list[Image.Image] = []
        self._nbytes = 0

    def add(self, picture: Picture) -> None:
        self._nbytes += picture.size // 3
        if self._nbytes > _LARGEST_GIF:
            raise ValueError(
                f"a GIF must have at most {_LARGEST_GIF} pixels in all, not more; write an .mp4"
            )
        image = self._image.fromarray(picture)
        self._pictures.append(image.quantize(256, method=self._image.Quantize.MEDIANCUT))

    def close(self) -> None:
        # Durations are hundredths of a second: each ends at the one that is nearest.
        ends = [round(100 * at / self._rate) for at in range(len(self._pictures) + 1)]
        times = [10 * (end - begin) for begin, end in pairwise(ends)]
        first, *others = self._pictures
        first.save(self._path, "GIF", save_all=True, append_images=others, duration=times, loop=0)

    def drop(self) -> None:
        self._pictures.clear()


class _Mp4:
    """An MP4 with H.264. Its sides are even, by a row or a column that is there twice."""

    def __init__(self, path: Path, rate: Fraction) -> None:
        with library():
            import av

        self._av: Final = av
        # The index in front, so that players begin before they have it all.
        options = {"movflags": "faststart"}
        self._container: Final = av.open(path, "w", format="mp4", options=options)
        self._rate: Final = rate
        self._stream: Any = None
        self._count = 0

    def add(self, picture: Picture) -> None:
        height, width = picture.shape[:2]
        if height % 2 or width % 2:
            picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
        if self._stream is None:
            stream: Any = self._container.add_stream("libx264", rate=self._rate)
            stream.height, stream.width = picture.shape[:2]
            stream.pix_fmt = "yuv420p"  # what all players know
            stream.options = {"crf": "18"}
            self._stream = stream
        frame = self._av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts, frame.time_base = self._count, 1 / self._rate
        self._count += 1
        for packet in self._stream.encode(frame):
            self._container.mux(packet)

    def close(self) -> None:
        for packet in self._stream.encode():
            self._container.mux(packet)
        self._container.close()

    def drop(self) -> None:
        with suppress(self._av.FFmpegError):
            self._container.close()


@dataclass(frozen=True, slots=True)
class FilmStatistics:
    """A film at one moment.

    Attributes:
        frames: pictures that are in it.
        seconds: its length.
    """

    frames: int
    seconds: float


class Film(metaclass=NoPublicConstructor):
    """A film that is being written; `open_film` makes one."""

    _made_by = "open_film(path)"

    def __init__(self, writer: _Writer, rate: Fraction, scale: int) -> None:
        self._writer: Final = writer
        self._rate: Final = rate
        self._scale: Final = scale
        self._lock: Final = trio.StrictFIFOLock()
        self._shape: tuple[int, ...] = ()
        self._count = 0
        self._over = False

    async def add(self, picture: np.ndarray[Any, Any]) -> None:
        """Append a picture, and wait until it is encoded.

        Args:
            picture: uint8 of shape (height, width) or (height, width, 3), as `Simulation.snapshot`
                gives it. All have the first one's height and width.

        Raises:
            OSError: the file cannot be written.
            RuntimeError: the film's block was left.
            TypeError, ValueError: a picture of another dtype or shape. The film goes on without it.
        """
        checked = picture_of(picture)
        async with self._lock:
            if self._over:
                raise RuntimeError("a film must be open to get pictures, but its block was left")
            if self._shape and checked.shape[:2] != self._shape:
                raise ValueError(
                    f"picture must have the height and width of the first one, {self._shape}, not "
                    f"{checked.shape[:2]}"
                )
            scale = _scale_of(self._scale, checked)
            await trio.to_thread.run_sync(lambda: self._writer.add(_enlarged(checked, scale)))
            self._shape = checked.shape[:2]
            self._count += 1

    def statistics(self) -> FilmStatistics:
        """Return the numbers of pictures and seconds so far."""
        return FilmStatistics(self._count, float(self._count / self._rate))

    async def _end(self, *, complete: bool) -> None:
        with trio.CancelScope(shield=True):
            async with self._lock:
                self._over = True
                await trio.to_thread.run_sync(self._writer.close if complete else self._writer.drop)


def rate_of(rate: object) -> Fraction:
    """Return pictures per second as a fraction that files can have."""
    if isinstance(rate, Fraction):
        rate = float(rate)
    return Fraction(number(rate, "rate", 0.01, 1000.0)).limit_denominator(1001)


@opens
async def open_film(
    path: str | PathLike[str], *, rate: float = 30.0, scale: int = 1
) -> AsyncIterator[Film]:
    """Write a GIF or an MP4, picture by picture.

    ::

        async with open_film("smoke.mp4") as film:
            for _ in range(90):
                await fluid.step(1 / 30)
                await film.add(await fluid.snapshot())

    The file appears under its name when the block ends. If an exception or a cancellation leaves
    the block, a file of that name does not change. An MP4 has H.264, and even sides: if need be,
    its last row or column is there twice. A GIF waits in memory, by a byte for each pixel.

    Args:
        path: the file, which ends with ``.gif`` or ``.mp4``.
        rate: pictures per second, from 0.01 to 1000; at most 50 for a GIF.
        scale: pixels along the sides of the square that each pixel becomes.

    Raises:
        LibraryMissing: Pillow or PyAV is not installed.
        OSError: the file cannot be written.
        TypeError, ValueError: an argument of a wrong type or value, or a block without a picture.
    """
    target = _path_of(path, (".gif", ".mp4"))
    times = whole(scale, "scale", 1, LARGEST)
    speed = rate_of(rate)
    kind = _Gif if target.suffix.lower() == ".gif" else _Mp4
    with _replaced(target) as draft:
        film = Film.construct(await trio.to_thread.run_sync(kind, draft, speed), speed, times)
        complete = False
        try:
            yield film
            if not film.statistics().frames:
                raise ValueError("a film must have a picture at least, not none")
            complete = True
        finally:
            await film._end(complete=complete)
