"""Records of failures: copies that keep no frame alive.

The traceback of a failure leads to the frames that it came through, and these have the actor, the
message and much else in them. Who handles a failure gets it whole: the asker, the log, the
supervisor. What an actor's ref keeps for later is a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_IDENTITY: Final = "_atomr_accel_identity"


def record_of(failure: BaseException) -> BaseException:
    """Return a copy of a failure and its causes, without tracebacks and contexts.

    A failure of a class that cannot be copied is returned unchanged.
    """
    first = _copy(failure)
    seen = {id(failure): first}
    copy = first
    while (cause := failure.__cause__) is not None:
        known = seen.get(id(cause))
        seen[id(cause)] = copy.__cause__ = known or _copy(cause)
        if known is not None or copy.__cause__ is cause:
            break
        failure, copy = cause, copy.__cause__
    return first


def answer_or_error(function: Callable[[], object]) -> object:
    """Return the result of a function, or a record of the exception that it raises."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 (of the program, which may do anything)
        return record_of(error)


def identity(failure: BaseException) -> int:
    """Return a number that a failure shares with its records, and with nothing else that lives."""
    return id(vars(failure).get(_IDENTITY, failure))


def _copy(failure: BaseException) -> BaseException:
    if isinstance(failure, BaseExceptionGroup):
        copy: BaseException = failure.derive([record_of(part) for part in failure.exceptions])
    else:
        # Neither `copy.copy` nor the class is called: its constructor may take anything.
        kind = type(failure)
        base = next(each for each in kind.__mro__ if each.__module__ == "builtins")
        try:
            copy = base.__new__(kind, *failure.args)
            base.__init__(copy, *failure.args)  # type: ignore[misc]
        except Exception:  # noqa: BLE001 (of a class of the program, which may do anything)
            return failure
    attributes = vars(failure)
    attributes.setdefault(_IDENTITY, object())
    vars(copy).update(attributes)
    copy.__suppress_context__ = True
    return copy
