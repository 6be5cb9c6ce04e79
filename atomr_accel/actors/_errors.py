"""The errors of the actor runtime: one branch of the package's tree.

    AccelError
    └── ActorError
        ├── ActorStopped            the actor has ended for good
        ├── ActorRestarted          the actor was restarted while it handled the message
        ├── UnhandledMessage        the actor has no handler for the message (a TypeError)
        ├── MailboxFull             no room for one more message (a trio.WouldBlock)
        ├── MessageDropped          the message was dropped to make room for another
        ├── NoSuchActor             no actor has that path (a LookupError)
        ├── NoSuchChild             no child has that name (a LookupError)
        ├── NameTaken               two children of one parent cannot share a name (a ValueError)
        ├── SupervisionFailed       a supervisor gave up; its cause says over what
        ├── SupervisorStopped       a child was to be started where none are started now
        ├── ChildStopped            a child was stopped before it had started
        └── ChildExited             a child returned where it should have started or gone on

An exception of a handler reaches its asker unchanged, not wrapped in any of these.
"""

from __future__ import annotations

import trio

from .._errors import AccelError


class ActorError(AccelError):
    """Base of the errors of the actor runtime."""


class _AboutAnActor(ActorError):
    """An error that says which actor it is about.

    Attributes:
        path: the actor's path, such as ``"/device-0/context"``.
    """

    _fields = ("path",)

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class ActorStopped(_AboutAnActor):
    """The actor has ended for good: it was stopped, or its supervisor let it end.

    You get it for messages that were waiting or in progress at that moment, and for
    any sent later. ``__cause__`` is the failure that ended the actor, if one did. You
    don't get it while an actor is being restarted: messages wait for that.
    """


class ActorRestarted(_AboutAnActor):
    """The actor was restarted, because of a sibling, while it handled the message.

    The message may have had some of its effects and is not delivered again. If the
    message itself brought the actor down, you get what its handler raised instead.
    """


class UnhandledMessage(_AboutAnActor, TypeError):
    """The actor has no handler for the message. The actor is unharmed and continues.

    You get it from ``ask``. A message sent by ``tell`` becomes a dead letter.
    """


class MailboxFull(_AboutAnActor, trio.WouldBlock):
    """The mailbox has no room, and the call does not wait for it.

    You get it from ``tell``, and where the mailbox's policy is to reject, from ``send``
    and ``ask`` as well. The message was not sent.
    """


class MessageDropped(_AboutAnActor):
    """The message waited in a mailbox that drops its oldest, and was the oldest.

    The actor has not seen it.
    """


class NoSuchActor(_AboutAnActor, LookupError):
    """No actor has this path, or the actor has ended."""


class NoSuchChild(ActorError, LookupError):
    """The supervisor has no child of that name."""


class NameTaken(ActorError, ValueError):
    """The parent already has a child of that name."""


class SupervisionFailed(ActorError):
    """A supervisor gave up: it escalated a failure, or restarted too often.

    You get it when it leaves the ``async with`` of
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
    """A child was to be started under a supervisor that does not run.

    It is stopping, has stopped, or is an actor that is itself being restarted.
    """


class ChildStopped(ActorError):
    """A child was stopped before its first start was complete.

    ``start_child`` and ``spawn`` raise it when another task stopped the child, or the
    whole supervisor, meanwhile. Your own cancellation is a `trio.Cancelled` as ever.
    """


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
