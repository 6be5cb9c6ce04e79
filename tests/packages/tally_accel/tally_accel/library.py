"""The library: its lane, its facade and its descriptor."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel import GpuRef
from atomr_accel.ops import (
    D,
    DeviceView,
    Facade,
    LaneSpec,
    Library,
    LibraryCheck,
    Preparer,
    Request,
    Submission,
    op,
    require_readable,
    require_writable,
)

from .messages import CountNonzero

LANE: Final = LaneSpec("tally", {"cpu": "tally_accel.executors:TallyExecutor"})
INT64: Final = np.dtype(np.int64)


class Tally(Facade[D]):
    """Counts elements."""

    def __init__(self, device: DeviceView) -> None:
        self.home = device

    @op
    def nonzero(self, x: GpuRef) -> Request[GpuRef]:
        """Count the elements that are not zero.

        Args:
            x: any shape, float32 or float64.

        Returns:
            An int64 scalar on the device.

        Raises:
            TypeError: another dtype.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            block = require_readable(x, preparer.memory, "x")
            if x.dtype.name not in {"float32", "float64"}:
                raise TypeError(f"x must have dtype float32 or float64, not {x.dtype.name}")
            result = preparer.output((), INT64)
            to = require_writable(result, preparer.memory, "result")
            message = CountNonzero(block.address, to.address, x.size, x.dtype.name)
            return Submission(message, (block,), (to,), result)

        return Request(LANE, "tally.nonzero", prepare)


async def check(device: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Count random zeros and ones."""
    x = rng.integers(0, 2, 10_000).astype(np.float32)
    counted = await device.get(await device.tally.nonzero(await device.put(x)))
    return counted, np.array(np.count_nonzero(x))


LIBRARY: Final = Library(
    name="tally",
    summary="counts of elements",
    facade="tally_accel.library:Tally",
    lanes=(LANE,),
    check=LibraryCheck("nonzero of 10,000 float32", 0.0, check),
)
