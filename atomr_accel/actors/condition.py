"""Actors at one moment: for trees and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ._mailbox import MailboxStatistics
    from ._supervision import ChildState
    from ._supervisor import SupervisorStatistics


@dataclass(frozen=True, slots=True)
class ActorStatistics:
    """An actor at one moment.

    Attributes:
        path: the actor's path.
        kind: the name of its class.
        state: the state of its life.
        restarts: restarts so far.
        handled: messages handled in all its lives, failures not included.
        failed: messages that a handler failed on.
        unhandled: messages for which the actor has no handler.
        mailbox: the mailbox's statistics.
        children: statistics of its children's supervisor; None without children in this life.
        generation: present generation of a device or one of its parts, else None.
        service: statistics of a service, or the exception that its ``statistics()`` raises; else
            None.
    """

    path: str
    kind: str
    state: ChildState
    restarts: int
    handled: int
    failed: int
    unhandled: int
    mailbox: MailboxStatistics
    children: SupervisorStatistics | None
    generation: int | None = None
    service: object = field(default=None, hash=False)


class Condition(NamedTuple):
    """State of an actor, as a tree shows it."""

    state: ChildState
    restarts: int
    depth: int
    generation: int | None = None
