"""Deciders: functions from a failure to a directive."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from .._errors import ContextPoisoned, DeviceLost, EventStale, GpuRefStale, OutOfMemory
from .util import check_member


class Directive(enum.Enum):
    """Action after a failure."""

    RESUME = "resume"
    """Go on. An actor keeps its state and takes its next message. A child whose task
    has ended has nothing to resume: it is started again alone, whatever the strategy.
    That counts as a restart, for nothing restarts for ever."""
    RESTART = "restart"
    """Start the child again, with its siblings as the strategy has it."""
    STOP = "stop"
    """Let the child end for good. Its siblings go on."""
    ESCALATE = "escalate"
    """Stop all children and raise in the supervisor's nursery."""


Decider: TypeAlias = Callable[[BaseException, str], Directive]
"""Maps a failure, and the name of the child that failed, to a directive. It gets leaves of
exception groups, one by one, and only `Exception` instances: anything else, such as
`KeyboardInterrupt`, escalates."""


def restart_always(failure: BaseException, child: str) -> Directive:  # noqa: ARG001 (a `Decider`)
    """Return `Directive.RESTART` for any failure: the default decider."""
    return Directive.RESTART


def decide_by_type(
    table: Mapping[type[BaseException], Directive], *, default: Directive = Directive.RESTART
) -> Decider:
    """A decider from a table of exception types.

    The nearest base class of the failure that is in the table decides, so the order of
    the table does not matter.

    Args:
        table: exception classes and their directives.
        default: the directive for everything else.
    """
    known = dict(table)
    for kind, directive in known.items():
        given: object = kind
        if not isinstance(given, type) or not issubclass(given, BaseException):
            raise TypeError(
                f"argument of decide_by_type must be a table of exception classes, not {given!r}"
            )
        check_member(f"the directive for {given.__name__}", directive, Directive)
    check_member("default", default, Directive)

    def decide(failure: BaseException, child: str) -> Directive:  # noqa: ARG001 (a `Decider`)
        for base in type(failure).__mro__:
            if base in known:
                return known[base]
        return default

    return decide


_by_fault = decide_by_type(
    {
        ContextPoisoned: Directive.RESTART,
        GpuRefStale: Directive.RESTART,
        EventStale: Directive.RESTART,
        OutOfMemory: Directive.RESUME,
        DeviceLost: Directive.STOP,
    },
    default=Directive.ESCALATE,
)


def decide_device_faults(failure: BaseException, child: str) -> Directive:
    """A decider for actors that use a device.

    ==================================================  ============
    `ContextPoisoned`, `GpuRefStale`, `EventStale`      ``RESTART``: the device is being rebuilt,
                                                        and the next life makes its buffers again
    `OutOfMemory`                                       ``RESUME``: what the actor has is intact
    `DeviceLost`                                        ``STOP``: no restart brings the device back
    anything else                                       ``ESCALATE``
    ==================================================  ============

    A decider of your own can treat some children differently, and leave the rest to this one::

        def decide(failure: BaseException, child: str) -> Directive:
            if child == "cache":
                return Directive.RESTART
            return decide_device_faults(failure, child)

    Args:
        failure: the failure of the child.
        child: the name of the child, which makes no difference here.
    """
    return _by_fault(failure, child)


_SEVERITY = (Directive.RESUME, Directive.RESTART, Directive.STOP, Directive.ESCALATE)


def leaves(failure: BaseException) -> Iterator[BaseException]:
    """The exceptions inside an exception group, however deep, or the exception itself."""
    if isinstance(failure, BaseExceptionGroup):
        for part in failure.exceptions:
            yield from leaves(part)
    else:
        yield failure


def judge(decider: Decider, failure: BaseException, child: str) -> Directive:
    """The most severe directive among those for the leaves of a child's failure."""
    worst = 0
    for leaf in leaves(failure):
        if not isinstance(leaf, Exception):
            return Directive.ESCALATE
        directive = decider(leaf, child)
        if not isinstance(directive, Directive):
            raise TypeError(
                f"a decider must return a Directive, not {directive!r} from {decider!r}"
            )
        worst = max(worst, _SEVERITY.index(directive))
    return _SEVERITY[worst]
