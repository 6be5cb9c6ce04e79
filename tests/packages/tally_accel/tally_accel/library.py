"""The library: its lane, its facade and its descriptor."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel.ops import D, DeviceView, Facade, LaneSpec, Library, LibraryCheck, op_of

from .operations import CountNonzero

LANE: Final = LaneSpec("tally", {"cpu": "tally_accel.executors:TallyExecutor"})


class Tally(Facade[D]):
    """Counts elements."""

    def __init__(self, device: DeviceView) -> None:
        self.home = device

    nonzero: Final = op_of(CountNonzero, LANE)


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
