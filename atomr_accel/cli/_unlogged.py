"""Faults that were asked for are no news."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .. import CpuFallbackWarning, StandbyWarning

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def unlogged() -> Iterator[None]:
    """Silence logs and warnings about devices in the block; the document reports them."""
    log, silence = logging.getLogger("atomr_accel"), logging.NullHandler()
    propagate, log.propagate = log.propagate, False
    log.addHandler(silence)  # or Python would print it for want of a handler
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CpuFallbackWarning)
            warnings.simplefilter("ignore", StandbyWarning)
            yield
    finally:
        log.removeHandler(silence)
        log.propagate = propagate
