"""Hooks for whoever watches a system of actors from outside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._messages import Message
    from ._ref import ActorRef

_log = logging.getLogger("atomr_accel.actors")


class Instrument:
    """Base of instruments, which a system tells what happens in it.

    Override what you want to know; the rest costs nothing, and a system without
    instruments does not even look for them. The methods are called in the middle of
    things, so they must be quick and must not wait. One that raises is logged, and the
    instrument it belongs to is not called again.

    The messages of one actor are handled one at a time, so what ``message_started``
    opens, the next ``message_finished`` of the same ref closes.
    """

    def actor_started(self, ref: ActorRef) -> None:
        """An actor has started, for the first time or again."""

    def actor_restarting(self, ref: ActorRef, cause: BaseException | None) -> None:
        """An actor is about to be started again, after a failure of its own or a sibling's."""

    def actor_stopped(self, ref: ActorRef, cause: BaseException | None) -> None:
        """An actor has ended for good, by a failure or without one."""

    def message_sent(self, ref: ActorRef, message: Message[Any]) -> None:
        """A message was sent, in the task of its sender. It may still have to wait for room."""

    def message_started(self, ref: ActorRef, message: Message[Any]) -> None:
        """An actor is about to handle a message."""

    def message_finished(
        self, ref: ActorRef, message: Message[Any], failure: BaseException | None
    ) -> None:
        """It has, or failed to, or was cancelled on the way."""

    def dead_letter(self, ref: ActorRef, message: Message[Any], reason: str) -> None:
        """A message that was told will not be handled."""


class Instruments:
    """The instruments of a system, by method: only those that override it are called."""

    def __init__(self, instruments: Iterable[Instrument]) -> None:
        self._methods: dict[str, list[tuple[Instrument, Callable[..., None]]]] = {}
        for instrument in instruments:
            if not isinstance(instrument, Instrument):
                raise TypeError(
                    f"an instrument must be an instance of Instrument, got {instrument!r}"
                )
            for name in vars(Instrument):
                method = getattr(type(instrument), name)
                if not name.startswith("_") and method is not getattr(Instrument, name):
                    calls = self._methods.setdefault(name, [])
                    calls.append((instrument, getattr(instrument, name)))

    def __call__(self, name: str, *args: object) -> None:
        """Call a method of all instruments that have it."""
        for instrument, method in tuple(self._methods.get(name, ())):
            try:
                method(*args)
            except Exception:  # noqa: BLE001 (logged)
                _log.exception("%r failed and will not be called again", instrument)
                for calls in self._methods.values():
                    calls[:] = [call for call in calls if call[0] is not instrument]
