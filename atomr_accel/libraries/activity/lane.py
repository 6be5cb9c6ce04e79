"""The requests of activity tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...ops import LaneSpec, Request, Submission
from .wire.messages import StartActivity, StopActivity, TakeActivity

if TYPE_CHECKING:
    from ...ops import Preparer
    from ...wire.activity import ActivityKind
    from .wire.messages import ActivityPage

LANE: Final = LaneSpec(
    "activity",
    {"cuda": "atomr_accel.libraries.activity.host.cupti_records:CuptiRecords"},
    watched=False,
    own_thread=True,
)


def starting(kinds: tuple[ActivityKind, ...]) -> Request[None]:
    """The request that begins to record."""
    return _request("activity.start", StartActivity(kinds))


def taking() -> Request[ActivityPage]:
    """The request of records."""
    return _request("activity.take", TakeActivity())


def stopping() -> Request[None]:
    """The request that ends recording."""
    return _request("activity.stop", StopActivity())


def _request(name: str, message: Any) -> Request[Any]:
    def prepare(_preparer: Preparer) -> Submission[Any]:
        return Submission(message, (), ())

    return Request(LANE, name, prepare)
