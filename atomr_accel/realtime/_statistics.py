"""Statistics over a stream of frames."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

import numpy as np

from ..actors import Place
from ..actors.blocks import opens
from ._checks import SceneParameter, number, shape_of, whole
from ._frames import FrameScene
from .simulation import opened
from .wire.statistics import STATISTICS, TOTALS

if TYPE_CHECKING:
    from .. import Device, GpuRef, Recording

    Array = np.ndarray[Any, Any]

_MOST_BINS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class FrameSummary:
    """Statistics of all frames so far.

    Attributes:
        frames: the frames' weight: their number, unless ``forgetting`` is more than 0.
        minimum: the smallest value of all; infinite before the first frame, like ``maximum``.
        maximum: the largest value of all.
        mean: the mean of all values.
        variance: the variance of all values, divided by their number.
        histogram: float64, the weight of values in each bin.
        edges: float64, the bins' edges. The highest one and values outside are in no bin.
        recent: float32 of shape (n, 4): minimum, maximum, mean and variance of each of the last
            frames, the oldest first.
    """

    frames: float
    minimum: float
    maximum: float
    mean: float
    variance: float
    histogram: Array
    edges: Array
    recent: Array


class FrameStatistics(FrameScene):
    """Statistics over frames; `open_frame_statistics` makes one.

    Its state has for each pixel float32 ``minimum`` and ``maximum``, float64 ``mean``, and
    ``squares``, the float64 sum of squares of deviations from the mean, which divided by the
    number of frames is the variance. `summary` has the statistics of all pixels together.
    """

    parameters: ClassVar[Mapping[str, SceneParameter]] = {
        "forgetting": SceneParameter(0.0, 0.0, 1.0)
    }
    kernels = STATISTICS

    def __init__(
        self,
        *args: Any,
        bins: int,
        low: float,
        high: float,
        history: int,
        image: tuple[int, int],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._bins: Final = whole(bins, "bins", 1, _MOST_BINS)
        self._low, self._high = number(low, "low", -1e30, 1e30), number(high, "high", -1e30, 1e30)
        if self._low >= self._high:
            raise ValueError(f"low must be less than high, which is {high}, not {low}")
        self._history: Final = whole(history, "history", 1, 1 << 20)
        self._image: Final = shape_of(image, "image", (2,))

    def begin(self) -> Mapping[str, Array]:
        """Return the state before the first frame."""
        return {
            "frame": np.zeros(self.shape, np.float32),
            "minimum": np.full(self.shape, np.inf, np.float32),
            "maximum": np.full(self.shape, -np.inf, np.float32),
            "mean": np.zeros(self.shape),
            "squares": np.zeros(self.shape),
            "histogram": np.zeros(self._bins),
            "totals": np.array([0, 0, np.inf, -np.inf, 0, 0], np.float64),
            "recent": np.zeros((self._history, 4), np.float32),
            "place": np.zeros(1, np.int32),
        }

    def scratch(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Return the buffers of a step."""
        return {
            "deviations": (self.shape, "float32"),
            "picture": ((*self._image, 3), "uint8"),
        }

    def record(self, recording: Recording) -> None:
        """Record reductions of the frame, and their addition to those before."""
        s, values = self.state, self.values
        frame, n = s["frame"], s["frame"].size
        low, high = recording.cub.reduce(frame, "minimum"), recording.cub.reduce(frame, "maximum")
        total = recording.cub.reduce(frame, dtype=np.float64)
        self.launch(recording, "deviate", n, self.room["deviations"], frame, total, n)
        squares = recording.cub.reduce(self.room["deviations"], dtype=np.float64)
        self.launch(
            *(recording, "merge", 1, s["totals"], s["recent"], s["place"], low, high),
            *(total, squares, values, n, self._history),
        )
        self.launch(
            *(recording, "accumulate", n, s["minimum"], s["maximum"], s["mean"], s["squares"]),
            *(frame, s["totals"], values, n),
        )
        counts = recording.cub.histogram_even(frame, self._bins, self._low, self._high)
        self.launch(recording, "count_bins", self._bins, s["histogram"], counts, values, self._bins)

    def draw(self, recording: Recording) -> GpuRef:
        """Record bars of the histogram, with the mean and the deviation from it."""
        s, (height, width) = self.state, self._image
        picture = self.room["picture"]
        tallest = recording.cub.reduce(s["histogram"], "maximum")
        self.launch(
            *(recording, "plot", height * width, picture, s["histogram"], tallest, s["totals"]),
            *(self._bins, height, width, self._low, self._high),
        )
        return picture

    async def summary(self) -> FrameSummary:
        """Return statistics of all pixels of all frames."""

        async def get() -> tuple[Array, ...]:
            await self._revive()
            names = ("totals", "histogram", "recent", "place")
            found = [await self.device.get(self.state[name]) for name in names]
            return tuple(found)

        async with self._turn():
            totals, histogram, recent, place = await self.device.retry(get)
        known = dict(zip(TOTALS, totals.tolist(), strict=True))
        count = min(int(place[0]), self._history)
        rows = np.roll(recent, -int(place[0]), axis=0)[self._history - count :]
        return FrameSummary(
            frames=known["frames"],
            minimum=known["minimum"],
            maximum=known["maximum"],
            mean=known["mean"],
            variance=known["squares"] / known["pixels"] if known["pixels"] else 0.0,
            histogram=histogram,
            edges=np.linspace(self._low, self._high, self._bins + 1),
            recent=rows,
        )


@opens
async def open_frame_statistics(
    device: Device,
    shape: tuple[int, int],
    *,
    bins: int = 256,
    low: float = 0.0,
    high: float = 256.0,
    forgetting: float = 0.0,
    history: int = 256,
    image: tuple[int, int] = (128, 256),
    seed: int = 0,
    every: int = 60,
    **place: Unpack[Place],
) -> AsyncIterator[FrameStatistics]:
    """Open statistics over frames: minimum, maximum, mean, variance and histogram.

    ``push(frame)`` adds a frame: to the statistics of each pixel over time, and to those of all
    pixels together. Means and variances do not cancel, however large the mean is. Frames are
    reduced by CUB in float64.

    Args:
        device: the device.
        shape: rows and columns of frames, at most 30000 of each.
        bins: bins of the histogram, up to 65536.
        low: the lowest edge.
        high: the highest edge.
        forgetting: share of the weight of all earlier frames that each frame takes away. Minimum
            and maximum forget nothing.
        history: number of last frames whose own statistics are kept.
        image: rows and columns of the picture, which shows the histogram.
        seed: unused, since nothing here is random.
        every: frames from one checkpoint to the next.
        **place: a place in the tree of actors.
    """
    statistics = FrameStatistics(
        device,
        shape,
        bins=bins,
        low=low,
        high=high,
        history=history,
        image=image,
        given={"forgetting": forgetting},
        seed=seed,
        every=every,
    )
    async with opened(statistics, **place) as running:
        yield running
