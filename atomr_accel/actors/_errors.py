"""The errors of the actor runtime: one branch of the package's tree.

AccelError
└── ActorError
    ├── SupervisionFailed       a supervisor gave up; its cause says over what
    ├── SupervisorStopped       a child was to be started where none are any more (or not yet)
    ├── ChildExited             a child returned where it should have started or gone on
    ├── ChildStopped            a child was stopped before it had started
    ├── NameTaken               two children of one parent cannot share a name (a ValueError)
    └── NoSuchChild             no child of that name (a LookupError)
"""

from __future__ import annotations

from .._errors import AccelError


class ActorError(AccelError):
    """Base of the errors of the actor runtime."""


class SupervisionFailed(ActorError):
    """A supervisor gave up: it escalated a failure, or restarted too often.

    You get it inside the exception group that leaves the ``async with`` of
    ``open_supervisor``, after all children have been stopped. ``__cause__`` is the
    failure that was one too many. You don't get it for failures that a restart dealt
    with, nor for `KeyboardInterrupt` and `SystemExit`, which leave as themselves.

    Attributes:
        supervisor: the supervisor's name.
        child: the name of the child that failed last.
    """

    _fields = ("supervisor", "child")

    def __init__(self, message: str, *, supervisor: str, child: str) -> None:
        super().__init__(message)
        self.supervisor = supervisor
        self.child = child


class SupervisorStopped(ActorError):
    """A child was to be started under a supervisor that is stopping or has stopped."""


class ChildExited(ActorError):
    """A child returned although it should have gone on, or before it had started.

    It is the failure on record for a child that raised nothing: one that returned
    without calling ``task_status.started()``, or a permanent one that returned so
    often that its supervisor gave up.

    Attributes:
        child: the child's name.
    """

    _fields = ("child",)

    def __init__(self, message: str, *, child: str) -> None:
        super().__init__(message)
        self.child = child


class ChildStopped(ActorError):
    """A child was stopped before its first start was complete.

    ``start_child`` raises it when another task stopped the child, or the whole
    supervisor, meanwhile. Your own cancellation is a `trio.Cancelled` as ever.
    """


class NameTaken(ActorError, ValueError):
    """The parent already has a child of that name."""


class NoSuchChild(ActorError, LookupError):
    """The parent has no child of that name."""
