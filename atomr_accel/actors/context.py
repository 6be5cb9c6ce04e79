"""Context variables cross mailboxes: a handler sees those of the sender of its message.

So do functions that the handler calls and tasks that it starts. In this way a trace, an account or
a log's fields follow a request through actors. Packages that keep their state in a context
variable, such as OpenTelemetry, need no support for actors. A handler's own changes stay with its
actor.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, Token
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MISSING: Final = object()
_staying: Final[set[ContextVar[Any]]] = set()

Entered = list[tuple[ContextVar[Any], Token[Any]]]


def stays(variable: ContextVar[T]) -> ContextVar[T]:
    """Have a variable cross no mailbox: it is about a task, not about what that asks for."""
    _staying.add(variable)
    return variable


def enter(context: Context) -> Entered:
    """Set here what another context has set; for ``leave``."""
    return [
        (variable, variable.set(value))
        for variable, value in context.items()
        if variable.get(_MISSING) is not value and variable not in _staying
    ]


def leave(entered: Entered) -> None:
    """Restore the variables."""
    while entered:
        variable, token = entered.pop()
        variable.reset(token)
