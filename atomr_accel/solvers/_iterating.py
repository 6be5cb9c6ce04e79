"""Replays steps until they are enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..actors.nursery import PlainNursery
from ..arrays import GpuRef

if TYPE_CHECKING:
    from ..arrays.expressions import Expression
    from ..device import Device
    from ..device.batches.record import Recording

Callback = Callable[[int, float], object]
"""Called with the number of iterations so far, and the residual's norm."""


class Progress:
    """Progress of a solver, as numbers on the device.

    Attributes:
        status: the residual's norm and the number of iterations; float64.
        active: whether the solver continues.
    """

    def __init__(self, status: GpuRef, active: GpuRef, tolerance: float, most: int) -> None:
        self.status: Final = status
        self.active: Final = active
        self.tolerance: Final = tolerance
        self.most: Final = most

    @property
    def norm(self) -> GpuRef:
        """The residual's norm."""
        return self.status[:1]

    def begin(self, recording: Recording) -> None:
        """Begin a step: decide whether it changes anything."""
        more = (self.norm > self.tolerance) & (self.norm < np.inf)
        more = more & (self.status[1:] < float(self.most))
        recording.evaluate(more, out=self.active)

    def end(self, recording: Recording, norm: Any) -> None:
        """End a step, whose residual has this norm."""
        recording.evaluate(np.where(self.active, norm, self.norm), out=self.norm)
        recording.evaluate(self.status[1:] + self.active, out=self.status[1:])

    def keep(self, recording: Recording, target: GpuRef, value: Any) -> None:
        """Give a buffer another value, unless the solver has finished."""
        recording.evaluate(np.where(self.active, value, target), out=target)


async def progress(device: Device, norm: float, tolerance: float, most: int) -> Progress:
    """Return the progress of a solver that begins."""
    status = await device.put(np.array([norm, 0.0]))
    return Progress(status, await device.put(np.array([True])), tolerance, most)


async def iterate(
    device: Device, recording: Recording, state: Progress, callback: Callback | None
) -> tuple[float, int]:
    """Replay steps until the solver has finished.

    The next steps are sent while the program reads the progress of the last ones.

    Returns:
        The residual's norm, and the number of iterations.

    Raises:
        ContextPoisoned, GpuRefStale: a fault. It ends both the read and the steps, and is raised
            once.
    """
    seen = -1
    while True:
        found: list[Any] = []
        failure: Exception | None = None

        async def look(found: list[Any] = found) -> None:
            found.append(await device.get(state.status))

        try:
            async with PlainNursery() as nursery:
                nursery.start_soon(look)
                nursery.start_soon(recording.replay)
        except ExceptionGroup as both:
            failure = both.exceptions[0]
        if failure is not None:
            raise failure  # here, where the group is not its context
        norm, count = float(found[0][0]), int(found[0][1])
        if callback is not None and count != seen:
            callback(count, norm)
        seen = count
        if not state.tolerance < norm < math.inf or count >= state.most:
            return norm, count


def info_of(size: float, tolerance: float, most: int) -> int:
    """Return a solver's ``info``: 0 only if the residual's norm is small enough.

    NaN and infinity never are. The tolerance is infinite if ``b`` is.
    """
    return 0 if math.isfinite(size) and size <= tolerance else max(1, most)


def dot(x: GpuRef, y: GpuRef) -> Expression:
    """``conj(x) @ y``, of shape (1,)."""
    conjugated: Any = np.conj(x) if x.dtype.kind == "c" else x
    made: Expression = (conjugated * y).sum(keepdims=True)
    return made


def norm(x: Any) -> Any:
    """The Euclidean norm, of shape (1,), float64."""
    squares = np.square(np.abs(x).astype(np.float64))
    return np.sqrt(squares.sum(keepdims=True))


def ratio(one: Any, other: Any) -> Any:
    """Return ``one / other``; 0 if ``other`` is 0."""
    return np.where(other == 0, 0, one / np.where(other == 0, 1, other))
