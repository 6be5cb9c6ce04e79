"""Consequences of failures for a device, and the errors that report them."""

from __future__ import annotations

import errno
from typing import Final

from .._errors import AccelError, ContextPoisoned, OutOfMemory
from ..wire import SHORTAGES

_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


def is_passing(error: BaseException) -> bool:
    """Return True if a context that ended with ``error`` may be followed by one that works.

    It may after faults, and after a shortage of memory, processes, threads or descriptors.
    """
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    return isinstance(error, (AccelError, MemoryError))


def short_of(error: Exception, what: str) -> Exception:
    """Return ``OutOfMemory`` for an error that means a shortage at a start; else the error."""
    if not isinstance(error, OSError) or error.errno not in SHORTAGES:
        return error
    short = OutOfMemory(f"{what} cannot be started: {error}", requested=0)
    short.__cause__ = error
    return short


def is_short(error: Exception | None) -> bool:
    """Return True if an error of a start means a shortage of memory or descriptors."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    return isinstance(error, OutOfMemory)


def lacks_descriptors(error: BaseException | None) -> bool:
    """Return True if an error, or its cause, means that there are no descriptors left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
            return True
        error = error.__cause__
    return False


def told(error: BaseException) -> str:
    """A failure in one line."""
    if isinstance(error, BaseExceptionGroup):
        return f"{error.message}: " + "; ".join(map(told, error.exceptions))
    return str(error) if isinstance(error, AccelError) else f"{type(error).__name__}: {error}"


def named(what: str) -> str:
    """Return an op's name in quotes, and other work, such as "the batch", unchanged."""
    is_op = not what.startswith(("the ", "starting ", "opening "))
    return f"op {what!r}" if is_op else what


def restarted(what: str, name: str, generation: int) -> ContextPoisoned:
    """Return the error for ops and calls that were unfinished when their device was restarted."""
    return ContextPoisoned(
        f"{named(what)} did not finish: {name} is restarted by its supervisor",
        generation=generation,
        status=0,
        status_name="restarted",
        op=what,
    )


def taken_down(name: str, fault: ContextPoisoned, seq: int = 0) -> ContextPoisoned:
    """The error for an op that was in flight when its context failed.

    ``seq`` is its place in the program's order, 0 for other work.
    """
    # One of its own for each op, because a traceback belongs to one task; the fault they
    # share is the cause of all.
    error = type(fault)(
        f"{named(name)} did not finish: {fault}",
        generation=fault.generation,
        status=fault.status,
        status_name=fault.status_name,
        op=fault.op,
    )
    report = error.report = fault.report
    if report is not None and report.certain and report.op is not None:
        error.culprit = report.op.seq == seq
    error.__cause__ = fault
    return error
