"""Events that measure times, to choose the fastest of several functions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ..backends.cuda.host.driver import check, driver

if TYPE_CHECKING:
    from collections.abc import Iterator

_EVENT_DEFAULT: Final = 0


@contextmanager
def timing_events(count: int = 2) -> Iterator[list[Any]]:
    """Events with times for the length of a block (``cuEventCreate``), whatever fails in it."""
    events: list[Any] = []
    try:
        events.extend(
            check("cuEventCreate", driver.cuEventCreate(_EVENT_DEFAULT)) for _ in range(count)
        )
        yield events
    finally:
        for event in events:
            check("cuEventDestroy", driver.cuEventDestroy(event))
