"""Films that are read from files, by PyAV."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio

from .._errors import AccelError, said_of
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor
from ._checks import whole
from ._films import LARGEST, library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike
    from typing import BinaryIO, Self

Picture = np.ndarray[Any, np.dtype[np.uint8]]

_SLACK: Final = 2
"""Pictures that the end of a file may lack without being broken: containers round their lengths."""


class BrokenVideo(AccelError, ValueError):
    """A file is not a video, or ends or is damaged before its last picture.

    Attributes:
        path: the file.
        frames: pictures that were read before.
    """

    def __init__(self, message: str, *, path: Path, frames: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.frames = frames

    def __reduce__(self) -> Any:
        return _broken, (str(self), self.path, self.frames)


def _broken(message: str, path: Path, frames: int) -> BrokenVideo:
    return BrokenVideo(message, path=path, frames=frames)


@dataclass(frozen=True, slots=True)
class VideoStatistics:
    """A film that is being read, at one moment.

    Attributes:
        frames: pictures that were taken.
        waiting: pictures that are decoded and were not taken yet.
    """

    frames: int
    waiting: int


class _Decoder:
    """Decodes a file in threads, one call at a time."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        with library():
            import av

        self._errors: Final = av.FFmpegError
        self._path: Final = path
        self.frames: int = 0
        # Damage is an error instead of a grey picture. A playlist must open no other file.
        options = {"err_detect": "explode", "protocol_whitelist": "none"}
        with self._checked():
            self._container: Final = av.open(file, "r", options=options)
        try:
            if not self._container.streams.video:
                raise BrokenVideo(f"{path} must have a video stream, not only others", path=path)
            stream = self._container.streams.video[0]
            stream.codec_context.options = {"err_detect": "explode"}
            self.height: int = stream.height
            self.width: int = stream.width
            if not (0 < self.height <= LARGEST and 0 < self.width <= LARGEST):
                raise BrokenVideo(
                    f"{path} must have pictures of 1 to {LARGEST} pixels along a side, not "
                    f"{self.width} by {self.height}",
                    path=path,
                )
            self.rate: Fraction = Fraction(stream.average_rate or stream.guessed_rate or 30)
            self._length = self._told_length(stream)
        except BaseException:
            self._container.close()
            raise
        self._pictures = self._decoded(stream)

    def _told_length(self, stream: Any) -> Fraction | None:
        """Return what the file says of its length in seconds; None if it says nothing."""
        if stream.duration is not None and stream.time_base is not None:
            return Fraction(stream.duration * stream.time_base)
        if self._container.duration is not None and len(self._container.streams) == 1:
            return Fraction(self._container.duration, 1_000_000)
        return None

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (self._errors, OSError) as error:
            # FFmpeg seeks to places that a file lacks, and a disk fails by another number.
            if not isinstance(error, self._errors) and error.errno != errno.EINVAL:
                raise
            raise BrokenVideo(
                f"{self._path} must be a whole video, but after {self.frames} pictures it says: "
                f"{error.strerror}",
                path=self._path,
                frames=self.frames,
            ) from error

    def _decoded(self, stream: Any) -> Iterator[Picture]:
        begin = stream.start_time or 0
        end = Fraction(0)
        for packet in self._container.demux(stream):
            if packet.size and packet.pts is not None:
                end = max(end, (packet.pts + (packet.duration or 0) - begin) * packet.time_base)
            for frame in packet.decode():
                if (frame.height, frame.width) != (self.height, self.width):
                    raise BrokenVideo(
                        f"{self._path} must have pictures of one size, not {frame.width} by "
                        f"{frame.height} after {self.frames} of {self.width} by {self.height}",
                        path=self._path,
                        frames=self.frames,
                    )
                yield frame.to_ndarray(format="rgb24")
        if self._length is not None and end + _SLACK / self.rate < self._length:
            raise BrokenVideo(
                f"{self._path} must be a whole video of {float(self._length):.3g} s, as it says, "
                f"not of {float(end):.3g} s",
                path=self._path,
                frames=self.frames,
            )

    def next(self) -> Picture | None:
        """Return the next picture, or None after the last one."""
        with self._checked():
            picture = next(self._pictures, None)
        if picture is not None:
            self.frames += 1
        return picture

    def close(self) -> None:
        self._container.close()


class Video(metaclass=NoPublicConstructor):
    """A film that is being read, as an async iterator of pictures; `open_video` makes one.

    Attributes:
        path: the file.
        height: rows of a picture.
        width: columns of a picture.
        rate: pictures per second.
    """

    _made_by = "open_video(path)"

    def __init__(
        self, path: Path, reader: _Decoder, pictures: trio.MemoryReceiveChannel[Picture | Exception]
    ) -> None:
        self.path: Final = path
        self.height: Final[int] = reader.height
        self.width: Final[int] = reader.width
        self.rate: Final = float(reader.rate)
        self._pictures: Final = pictures
        self._taken = 0
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<Video {self.path.name}, {self.width} by {self.height}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Picture:
        """Return the next picture: uint8 of shape (height, width, 3).

        Raises:
            BrokenVideo: the file ends here or is damaged. The pictures before were right.
            RuntimeError: the video's block was left.
        """
        if self._error is not None:
            await trio.lowlevel.checkpoint()
            raise self._error
        try:
            picture = await self._pictures.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        except trio.ClosedResourceError:
            raise RuntimeError("a video must be open to be read, but its block was left") from None
        if isinstance(picture, Exception):
            self._error = picture
            raise picture
        self._taken += 1
        return picture

    def statistics(self) -> VideoStatistics:
        """Return how many pictures were taken and how many wait."""
        return VideoStatistics(self._taken, self._pictures.statistics().current_buffer_used)


async def _read(reader: _Decoder, send: trio.MemorySendChannel[Picture | Exception]) -> None:
    async with send:
        try:
            while (picture := await trio.to_thread.run_sync(reader.next)) is not None:
                await send.send(picture)
        except Exception as error:  # noqa: BLE001 (whoever takes the next picture gets it)
            await send.send(error)


@opens
async def open_video(path: str | PathLike[str], *, ahead: int = 4) -> AsyncIterator[Video]:
    """Read a video file, picture by picture.

    ::

        async with open_video("street.mp4") as video:
            async for picture in video:
                ...

    Pictures are decoded in a thread while earlier ones are used, a few ahead and no more. Of a file
    with several videos the first is read. Rotations that a file asks for are left out.

    Args:
        path: the file, of any format that PyAV's FFmpeg reads.
        ahead: pictures that are decoded before they are asked for.

    Raises:
        BrokenVideo: the file is not a video.
        LibraryMissing: PyAV is not installed.
        OSError: the file is not there or cannot be read.
    """
    if not isinstance(path, (str, Path)):
        raise TypeError(f"path must be a str or a Path, not {said_of(path)}")
    most = whole(ahead, "ahead", 1, 1024)
    place = Path(path)

    def start() -> tuple[_Decoder, BinaryIO]:
        file = place.open("rb")
        try:
            return _Decoder(place, file), file
        except BaseException:
            file.close()
            raise

    reader, file = await trio.to_thread.run_sync(start)
    try:
        async with PlainNursery() as nursery:
            send, receive = trio.open_memory_channel[Picture | Exception](most - 1)
            nursery.start_soon(_read, reader, send)
            with receive:
                yield Video.construct(place, reader, receive)
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(reader.close)
        file.close()
