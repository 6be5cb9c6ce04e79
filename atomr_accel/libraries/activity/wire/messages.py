"""Messages of the lane of activity tracing."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ....wire import Message
from ....wire.activity import ActivityKind, ActivityRecord


class ActivityPage(msgspec.Struct, frozen=True, array_like=True):
    """Some records.

    Attributes:
        records: in the order in which CUPTI delivered them.
        more: whether the host has further ones.
        lost: records that were dropped since the last page, because there were too many.
    """

    records: list[ActivityRecord]
    more: bool
    lost: int


class StartActivity(Message, frozen=True):
    """Begin to record.

    Attributes:
        kinds: the kinds of records that are wanted.
    """

    kinds: tuple[ActivityKind, ...]


class TakeActivity(Message, frozen=True):
    """Answer with records, which the host then forgets."""

    returns: ClassVar[Any] = ActivityPage


class StopActivity(Message, frozen=True):
    """End recording, if there is any. Records that are left wait for ``TakeActivity``."""
