"""Effects for videos: graphs of recorded filters that each picture goes through."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Unpack

import numpy as np
import trio

from .._errors import said_of
from ..actors import Place, serving
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import check_instance
from ..arrays import GpuRef
from ..device import Device
from ._checks import shape_of
from ._films import LARGEST, open_film, picture_of
from ._turns import TakesTurns
from ._video import open_video

if TYPE_CHECKING:
    from os import PathLike

Picture: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class EffectStatistics:
    """An effect at one moment.

    Attributes:
        frames: pictures that have gone through it.
        faults: faults after which its graph was made again.
        waiting: pictures that wait for their turn or are in it.
    """

    frames: int
    faults: int
    waiting: int


class Effect(TakesTurns):
    """Filters that each picture goes through; `open_effect` makes one.

    Methods may be called by any task. They take turns. In a tree of actors a picture is also sent
    by ``await ref.ask(Call(picture))``.
    """

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int],
        build: Callable[..., object],
        *,
        feedback: bool,
    ) -> None:
        super().__init__(device, "effect")
        self.shape: Final = shape_of(shape, "shape", (2,))
        if max(self.shape) > LARGEST:
            raise ValueError(f"shape must be of at most {LARGEST} pixels, not {self.shape}")
        if inspect.iscoroutinefunction(build) or not callable(build):
            raise TypeError(
                f"build must be a function that is not async, not {said_of(build)}; await weights "
                "before it"
            )
        check_instance("feedback", feedback, bool)
        self._build: Final = build
        self._feedback: Final = feedback
        self._last: Picture | None = None
        self._generation = 0
        self._frames = self._faults = 0

    async def apply(self, picture: np.ndarray[Any, Any]) -> Picture:
        """Return what the effect makes of the next picture.

        After a fault of the device the graph is made again, and the picture goes through it once
        more. The effect's memory stays whole.

        Args:
            picture: uint8 of the effect's shape (height, width), or (height, width, 3).

        Returns:
            uint8 of shape (height, width) or (height, width, 3). Brightness is rounded, and limited
            to 0 to 255; NaN becomes 0.

        Raises:
            ContextPoisoned, DeviceLost: the device does not come back, or every attempt fails.
            RuntimeError: the effect's block was left.
            TypeError, ValueError: a picture that does not fit. The effect does not change.
        """
        checked = picture_of(picture)
        if checked.shape[:2] != self.shape:
            raise ValueError(f"picture must be of shape {self.shape}, not {checked.shape[:2]}")
        if checked.ndim == 2:
            checked = np.repeat(checked[..., None], 3, 2)
        async with self._turn():
            return await self.device.retry(self._applied, np.ascontiguousarray(checked))

    async def call(self, item: Any, **options: Any) -> Picture:
        """Answer `Call`, as `apply`."""
        return await self.apply(item, **options)

    async def convert(
        self, source: str | PathLike[str], target: str | PathLike[str], *, scale: int = 1
    ) -> int:
        """Make a film of a video.

        One picture is decoded, one on the device and one encoded at the same time. None waits for
        more than a few others, however long the video is.

        Args:
            source: the video's file.
            target: the film's file, which ends with ``.gif`` or ``.mp4``. It appears when it is
                complete. If anything fails, a file of that name does not change.
            scale: pixels along the sides of the square that each pixel becomes.

        Returns:
            The number of pictures.

        Raises:
            BrokenVideo: the source is not a video or is damaged. The effect has seen the pictures
                before the damage, and goes on.
            OSError: a file cannot be read or written.
            ValueError: the source's pictures are not of the effect's shape, or there are none.
            ContextPoisoned, DeviceLost, LibraryMissing, RuntimeError: as for `apply` and
                `open_film`.
        """
        async with open_video(source) as video:
            if (video.height, video.width) != self.shape:
                raise ValueError(
                    f"source must have pictures of shape {self.shape}, not "
                    f"{(video.height, video.width)}"
                )
            async with open_film(target, rate=video.rate, scale=scale) as film:
                send, receive = trio.open_memory_channel[Picture](1)

                async def write() -> None:
                    async for made in receive:
                        await film.add(made)

                async with PlainNursery() as nursery:
                    nursery.start_soon(write)
                    async with send:
                        async for picture in video:
                            await send.send(await self.apply(picture))
                return film.statistics().frames

    def statistics(self) -> EffectStatistics:
        """Return numbers of the effect so far."""
        return EffectStatistics(self._frames, self._faults, self.depth())

    # --- inside ----------------------------------------------------------------------------

    async def _applied(self, picture: Picture) -> Picture:
        await self._revive()
        # What was replayed is also read, so that the memory here is the device's.
        with trio.CancelScope(shield=True):
            await self.device.put(picture, out=self._given)
            await self._program.replay()
            made: Picture = await self.device.get(self._made)
            self._last = made
            self._frames += 1
        return made

    async def _revive(self) -> None:
        """Record the graph, unless it is there."""
        if self._generation == self.device.generation:
            await trio.lowlevel.checkpoint()
            return
        self._faults += self._generation > 0
        self._generation = 0
        generation = self.device.generation
        self._given = await self.device.zeros((*self.shape, 3), np.uint8)
        before: list[GpuRef] = []
        if self._feedback:
            last = self._last if self._last is not None else np.zeros((*self.shape, 3))
            before.append(await self.device.put(last.astype(np.float32)))
        async with self.device.record(shared=True) as program:
            image = program.evaluate(self._given.astype(np.float32))
            made = self._checked(self._build(program, image, *before))
            limited = np.where(made > 0, np.minimum(made, 255), 0)  # NaN is not more than 0
            self._made = program.evaluate(np.rint(limited).astype(np.uint8))
            for each in before:
                program.evaluate(self._made.astype(np.float32), out=each)
        self._program = program
        self._generation = generation

    def _checked(self, made: object) -> GpuRef:
        if not isinstance(made, GpuRef):
            raise TypeError(f"build must return a GpuRef, not {said_of(made)}; use on.evaluate")
        if made.dtype != np.float32:
            raise TypeError(f"build must return a float32 image, not {made.dtype}")
        wanted = {(*self.shape, 3)} if self._feedback else {made.shape[:2], (*made.shape[:2], 3)}
        if made.shape not in wanted or made.ndim < 2:
            raise ValueError(
                "build must return an image of shape "
                f"{(*self.shape, 3) if self._feedback else '(height, width) or (height, width, 3)'}"
                f", not {made.shape}"
            )
        return made


@opens
async def open_effect(
    device: Device,
    shape: tuple[int, int],
    build: Callable[..., GpuRef],
    *,
    feedback: bool = False,
    **place: Unpack[Place],
) -> AsyncIterator[Effect]:
    """Open an effect for the pictures of a video.

    ::

        filters = await Filters.load(device)
        weights = await filters.gaussian(9)


        def soft(on, image):
            return filters.separable(on, image, weights, weights)


        async with open_effect(device, (720, 1280), soft) as effect:
            await effect.convert("street.mp4", "soft.mp4")

    ``build`` is called once for each generation of the device, and records the graph. Weights that
    it uses must be sealed, as those of `Filters` are.

    Args:
        device: the device.
        shape: height and width of the pictures.
        build: a function of a recording and an image, float32 of shape (height, width, 3) from 0
            to 255, which returns another float32 image.
        feedback: whether ``build`` gets a third argument, what the effect has made of the picture
            before: trails and differences are made of it. It begins with black. The result then has
            the image's shape.
        **place: a place in the tree of actors.

    Raises:
        TypeError, ValueError: an argument of a wrong type or value, or ``build`` returns no image.
        Exception: what ``build`` raises.
    """
    effect = Effect(device, shape, build, feedback=feedback)
    async with serving(effect, **place) as running:
        yield running
