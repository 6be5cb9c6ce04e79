"""Scenes that take frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import trio

from .. import GpuRef
from ._checks import array_of, shape_of
from .simulation import Simulation

if TYPE_CHECKING:
    from .. import Device

_LONGEST: Final = 30_000
"""Most rows or columns, whose squares' sum is an int32."""


class FrameScene(Simulation):
    """Base of scenes that take frames: float32 arrays of one shape, the state's ``frame``."""

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int],
        *,
        given: Mapping[str, object],
        seed: int,
        every: int,
    ) -> None:
        super().__init__(device, seed=seed, every=every, given=given)
        self.shape: Final = shape_of(shape, "shape", (2,))
        if max(self.shape) > _LONGEST:
            raise ValueError(f"shape must be at most {_LONGEST} along each axis, not {shape!r}")

    @final
    async def push(self, frame: object, *, dt: float = 1.0) -> float:
        """Take a frame, and make a step with it.

        A frame that a fault meets is taken again. Frames since the last checkpoint are lost by it,
        so the scene is as if they had never come.

        Args:
            frame: finite numbers of the scene's shape, or a float32 ref of this shape on the
                scene's device, which may have any numbers.
            dt: seconds of the scene that the frame is for.

        Returns:
            The scene's time in seconds.

        Raises:
            TypeError, ValueError: a frame that does not fit, or a wrong ``dt``. The scene does not
                change.
            ContextPoisoned, DeviceLost, RuntimeError: as for `step`. Also after a fault, if the
                frame was a ref, which the fault has taken.
        """
        step = self._check_step(dt)
        if isinstance(frame, GpuRef):
            if frame.dtype != np.float32:
                raise TypeError(f"frame must be of float32, not of {frame.dtype}")
            if frame.shape != self.shape:
                raise ValueError(f"frame must have shape {self.shape}, not {frame.shape}")
            made: Any = frame
        else:
            made = array_of(frame, "frame", self.shape)

        async def take() -> None:
            await self._revive()
            with trio.CancelScope(shield=True):
                if isinstance(made, GpuRef):
                    await self.device.copy(made, self.state["frame"])
                else:
                    await self.device.put(made, out=self.state["frame"])
                await self._advance(step)

        async with self._turn():
            await self.device.retry(take)
        return self.time
