"""Supervised actors on trio. Nothing in here knows of accelerators."""

from ._actor import Actor, ActorRef, Group, Restarted, Terminated
from ._errors import (
    ActorError,
    ActorRestarted,
    ActorStopped,
    ChildExited,
    ChildStopped,
    MailboxFull,
    MessageDropped,
    NameTaken,
    NoSuchActor,
    NoSuchChild,
    SupervisionFailed,
    SupervisorStopped,
    UnhandledMessage,
)
from ._mailbox import Mailbox, MailboxStatistics, Overflow
from ._policy import AutoShutdown, Backoff, ChildSpec, Intensity, RestartType, Strategy, Supervision
from ._supervision import ChildState, SupervisorState
from ._supervisor import ChildStatistics, Supervisor, SupervisorStatistics, open_supervisor
from .condition import ActorStatistics
from .deciders import Decider, Directive, decide_by_type, decide_device_faults, restart_always
from .instrument import Instrument
from .messages import GetStatistics, Message, handler
from .service import Call, Place, Service, serving
from .system import ActorSystem, ActorTree, SystemStatistics, open_actor_system

__all__ = [
    "Actor",
    "ActorError",
    "ActorRef",
    "ActorRestarted",
    "ActorStatistics",
    "ActorStopped",
    "ActorSystem",
    "ActorTree",
    "AutoShutdown",
    "Backoff",
    "Call",
    "ChildExited",
    "ChildSpec",
    "ChildState",
    "ChildStatistics",
    "ChildStopped",
    "Decider",
    "Directive",
    "GetStatistics",
    "Group",
    "Instrument",
    "Intensity",
    "Mailbox",
    "MailboxFull",
    "MailboxStatistics",
    "Message",
    "MessageDropped",
    "NameTaken",
    "NoSuchActor",
    "NoSuchChild",
    "Overflow",
    "Place",
    "RestartType",
    "Restarted",
    "Service",
    "Strategy",
    "Supervision",
    "SupervisionFailed",
    "Supervisor",
    "SupervisorState",
    "SupervisorStatistics",
    "SupervisorStopped",
    "SystemStatistics",
    "Terminated",
    "UnhandledMessage",
    "decide_by_type",
    "decide_device_faults",
    "handler",
    "open_actor_system",
    "open_supervisor",
    "restart_always",
    "serving",
]
