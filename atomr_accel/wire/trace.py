"""The trace context of a program and of the functions that it runs in hosts."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

traceparent: Final[ContextVar[str | None]] = ContextVar("traceparent", default=None)
"""The span that what runs here belongs to, as W3C Trace Context has it, or None.

``"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"``: version, trace, parent and flags in
hexadecimal digits. Set in the program around calls of ``device.run``, it is set in the host while
the function runs.
"""

_sources: Final[list[Callable[[], str | None]]] = []


def current_traceparent() -> str | None:
    """Return the trace context for functions called from here: set by hand, or from a tracer."""
    given = traceparent.get()
    if given is None:
        for source in _sources:
            given = source()
    return given


def add_source(source: Callable[[], str | None]) -> None:
    """Ask a tracer for the trace context if none is set by hand."""
    _sources.append(source)


def remove_source(source: Callable[[], str | None]) -> None:
    """End what ``add_source`` began."""
    _sources.remove(source)
