"""Lanes that dawdle, so that an order which nothing enforces does not come about by luck."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ..actors.blocks import enters
from ..wire.options import count

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIABLE: Final = "ATOMR_LANE_DELAY"


@enters
def lane_delays(microseconds: int, seed: int = 0) -> Iterator[None]:
    """Have every lane that starts inside this block wait now and then before it launches.

    Half the launches wait, for a pseudo-random time. The lanes of a device drift apart by
    that, and ops whose order is left to chance run out of order. It works in both
    isolations and on every backend, because it is the environment's
    ``ATOMR_LANE_DELAY=seed:microseconds`` that a host looks at when it starts a lane.

    Args:
        microseconds: the longest wait.
        seed: of the pseudo-random times; each lane has its own sequence.
    """
    microseconds, seed = count(microseconds, "microseconds", 0), count(seed, "seed", 0)
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = f"{seed}:{microseconds}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
