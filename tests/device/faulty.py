"""Functions that end their host, or its context, in different ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


def exits(_x: object) -> None:
    import os

    os._exit(3)


def aborts(_x: object) -> None:
    import os

    os.abort()


def reads_nowhere(_x: object) -> None:
    import ctypes

    ctypes.string_at(0)


def is_killed(_x: object) -> None:
    """End like a process that the kernel has chosen because memory is short."""
    import os
    import signal
    import time

    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal comes to any thread, in its own time


def is_sticky(_x: object) -> None:
    from atomr_accel.wire import StickyFault

    raise StickyFault("a fault", status=700, status_name="CUDA_ERROR_ILLEGAL_ADDRESS")


def is_harmless(_x: object) -> None:
    pass


DEATHS: Final[dict[str, Callable[[object], None]]] = {
    "exit": exits,
    "abort": aborts,
    "segmentation fault": reads_nowhere,
    "kill": is_killed,
    "sticky": is_sticky,
}

TELLING: Final = frozenset(DEATHS) - {"kill"}
"""Deaths after which the op is certain."""
