"""Hooks for whoever watches a pattern from outside."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..actors.util import check_instance

if TYPE_CHECKING:
    from ._retry import CircuitState

_log = logging.getLogger("atomr_accel.patterns")


class Observer:
    """Base of observers, which a pattern tells what happens in it.

    Override what you want to know. The methods are called in the middle of things, so they must
    be quick and must not wait. One that raises is logged, and the observer is not called again.
    A pattern without an observer does not look for one.

    Each request is ``submitted`` once, and then exactly one of ``answered``, ``failed`` and
    ``withdrawn`` is called for it. In between it is ``started`` each time it is tried.
    """

    def submitted(self, item: object) -> None:
        """A request was made. It may be refused yet."""

    def started(self, items: Sequence[object]) -> None:
        """A function is about to be called for these: a batch, or one alone."""

    def retried(self, items: Sequence[object], error: Exception) -> None:
        """Several requests failed together and are tried again, all at once or in parts."""

    def answered(self, item: object, seconds: float) -> None:
        """A request has its result, this number of seconds after it was made."""

    def failed(self, item: object, error: BaseException, seconds: float) -> None:
        """A request has an error for its answer: its own, or a refusal."""

    def withdrawn(self, item: object, seconds: float) -> None:
        """The caller of a request was cancelled."""

    def circuit_changed(self, state: CircuitState) -> None:
        """A circuit breaker opened, closed, or lets a try through."""


class _Guarded(Observer):
    """Another observer's methods, until one of them raises."""

    def __init__(self, observer: Observer) -> None:
        for name in vars(Observer):
            if not name.startswith("_"):
                setattr(self, name, self._guard(observer, name))

    def _guard(self, observer: Observer, name: str) -> object:
        method = getattr(observer, name)

        def call(*args: object) -> None:
            if name in vars(self):
                try:
                    method(*args)
                except Exception:  # noqa: BLE001 (logged)
                    _log.exception("%r failed and will not be called again", observer)
                    vars(self).clear()  # what is left are the methods of the base, which do nothing

        return call


def guarded(observer: Observer | None) -> Observer | None:
    """An observer that may be called without care; None stays None, and is not called."""
    if observer is None:
        return None
    check_instance("observer", observer, Observer)
    return _Guarded(observer)
