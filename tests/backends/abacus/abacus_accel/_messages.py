from __future__ import annotations

from typing import Any, ClassVar

from atomr_accel.wire import Message


class Count(Message, frozen=True):
    """Number of beads in a vector of int64."""

    returns: ClassVar[Any] = int

    address: int
    count: int
