"""Analysis of frames in several passes: components, distances, and cells around components."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

import numpy as np

from ..actors import Place
from ..actors.blocks import opens
from ._checks import SceneParameter, whole
from ._frames import FrameScene
from .simulation import opened
from .wire.analysis import ANALYSIS

if TYPE_CHECKING:
    from .. import Device, GpuRef, Recording


class FrameAnalysis(FrameScene):
    """Components of frames; `open_frame_analysis` makes one.

    Its state are arrays of its shape: ``frame``; int32 ``labels``, the component of each pixel
    above the threshold, from 1 in the order of first pixels, and 0 elsewhere; float32 ``distance``,
    from a component's pixel to the nearest pixel of the background, exact, and infinite if there is
    none; int32 ``nearest``, the flat index of the component's pixel that is nearest, -1 without
    any; and int32 ``cells``, the component of ``nearest``. ``count`` has one number, that of
    components.
    """

    parameters: ClassVar[Mapping[str, SceneParameter]] = {
        "threshold": SceneParameter(0.5, -math.inf)
    }
    kernels = ANALYSIS

    def __init__(self, *args: Any, neighbours: int, **options: Any) -> None:
        super().__init__(*args, **options)
        if whole(neighbours, "neighbours", 4, 8) not in {4, 8}:
            raise ValueError(f"neighbours must be 4 or 8, not {neighbours}")
        self.neighbours: Final = neighbours
        """Neighbours of a pixel that its component goes on to."""

    def begin(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Return an empty frame and its results."""
        return {
            "frame": np.zeros(self.shape, np.float32),
            "labels": np.zeros(self.shape, np.int32),
            "count": np.zeros(1, np.int32),
            "distance": np.zeros(self.shape, np.float32),
            "nearest": np.full(self.shape, -1, np.int32),
            "cells": np.zeros(self.shape, np.int32),
        }

    def scratch(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Return the buffers of a step."""
        return {
            **dict.fromkeys(("parent", "roots", "first"), (self.shape, "int32")),
            "picture": ((*self.shape, 3), "uint8"),
        }

    def record(self, recording: Recording) -> None:
        """Record all passes."""
        s, r, (h, w) = self.state, self.room, self.shape
        n, parent = h * w, self.room["parent"]
        self.launch(recording, "begin", n, parent, s["frame"], self.values, n)
        self.launch(recording, "join", n, parent, h, w, int(self.neighbours == 8))
        self.launch(recording, "find_roots", n, r["roots"], r["first"], parent, n)
        numbers = recording.cub.inclusive_scan(r["first"])
        self.launch(recording, "number_parts", n, s["labels"], s["count"], r["roots"], numbers, n)
        # Scratch of components is free again.
        gap, spare = r["first"], r["roots"]
        self.launch(recording, "along_rows", h, gap, parent, h, w)
        self.launch(recording, "across_rows", n, s["distance"], gap, h, w)
        # The smallest steps once more find most of the cells that the first pass has missed.
        steps = [1 << k for k in range((max(h, w) - 1).bit_length() - 1, -1, -1)] + [2, 1]
        buffers = [s["nearest"], spare]
        self.launch(recording, "sow", n, buffers[len(steps) % 2], parent, n)
        for left in range(len(steps), 0, -1):
            out, known = buffers[(left - 1) % 2], buffers[left % 2]
            self.launch(recording, "flood", n, out, known, h, w, steps[-left])
        self.launch(recording, "divide", n, s["cells"], s["nearest"], s["labels"], n)

    def draw(self, recording: Recording) -> GpuRef:
        """Record components in their colours."""
        s, (h, w) = self.state, self.shape
        picture = self.room["picture"]
        self.launch(recording, "tint", h * w, picture, s["cells"], s["labels"], s["distance"], h, w)
        return picture


@opens
async def open_frame_analysis(
    device: Device,
    shape: tuple[int, int],
    *,
    threshold: float = 0.5,
    neighbours: int = 4,
    seed: int = 0,
    every: int = 60,
    **place: Unpack[Place],
) -> AsyncIterator[FrameAnalysis]:
    """Open an analysis of frames: connected components, distances and Voronoi cells.

    ``push(frame)`` takes a frame; ``read`` gives the results. Components are found by union-find
    and distances by two exact passes. Cells are found by jump flooding: a pixel's cell may be that
    of a component that is only nearly the nearest, for few pixels in a thousand at most.

    Pixels above ``threshold`` belong to components, and ``neighbours`` are 4, or 8 with diagonal
    ones. Other arguments are those of `open_frame_statistics`.
    """
    analysis = FrameAnalysis(
        device,
        shape,
        neighbours=neighbours,
        given={"threshold": threshold},
        seed=seed,
        every=every,
    )
    async with opened(analysis, **place) as running:
        yield running
