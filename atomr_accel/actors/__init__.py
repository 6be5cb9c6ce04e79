"""Supervised actors on trio. Nothing in here knows of accelerators."""

from ._errors import (
    ActorError,
    ChildExited,
    ChildStopped,
    NameTaken,
    NoSuchChild,
    SupervisionFailed,
    SupervisorStopped,
)
from ._supervision import (
    AutoShutdown,
    Backoff,
    ChildSpec,
    ChildState,
    Decider,
    Directive,
    Intensity,
    RestartType,
    Strategy,
    SupervisorState,
    decide_by_type,
)
from ._supervisor import (
    ChildStatistics,
    Supervisor,
    SupervisorStatistics,
    open_supervisor,
)

__all__ = [
    "ActorError",
    "AutoShutdown",
    "Backoff",
    "ChildExited",
    "ChildSpec",
    "ChildState",
    "ChildStatistics",
    "ChildStopped",
    "Decider",
    "Directive",
    "Intensity",
    "NameTaken",
    "NoSuchChild",
    "RestartType",
    "Strategy",
    "SupervisionFailed",
    "Supervisor",
    "SupervisorState",
    "SupervisorStatistics",
    "SupervisorStopped",
    "decide_by_type",
    "open_supervisor",
]
