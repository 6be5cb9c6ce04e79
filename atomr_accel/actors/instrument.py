"""Hooks for whoever watches a system of actors from outside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import trio

if TYPE_CHECKING:
    from ._actor import ActorRef
    from .messages import Message

_log = logging.getLogger("atomr_accel.actors")


class Instrument:
    """Base of instruments, which a system calls when something happens in it.

    Override the methods that you need. The others cost nothing, and a system without instruments
    does not even look for them. The methods are called in the middle of other work, so they must be
    quick and must not wait. An error of a method is logged, and its instrument is not called again.

    An actor handles its messages one at a time. So each ``message_started`` is followed by
    ``message_finished`` of the same ref before the next one. (Libraries of devices handle theirs
    side by side.)

    A class that adds methods for others to call passes ``hooks=True``, as in ``class
    DeviceInstrument(Instrument, hooks=True)``.
    """

    _hooks: ClassVar[dict[str, Callable[..., None]]] = {}

    def __init_subclass__(cls, *, hooks: bool = False) -> None:
        super().__init_subclass__()
        if hooks:
            cls._hooks = {**cls._hooks, **_declared(cls)}

    def actor_started(self, ref: ActorRef) -> None:
        """An actor has started, for the first time or again."""

    def actor_restarting(self, ref: ActorRef, cause: BaseException | None) -> None:
        """An actor is about to be started again, after a failure of its own or a sibling's."""

    def actor_stopped(self, ref: ActorRef, cause: BaseException | None) -> None:
        """An actor has ended for good, by a failure or without one."""

    def message_sent(self, ref: ActorRef, message: Message[Any]) -> None:
        """A message was sent, in the task of its sender. It may still have to wait for room."""

    def ask_ended(self, ref: ActorRef, message: Message[Any]) -> None:
        """An ask ended: with an answer, an error or a cancellation. Runs in the asker's task."""

    def message_started(self, ref: ActorRef, message: Message[Any]) -> None:
        """An actor is about to handle a message."""

    def message_finished(
        self, ref: ActorRef, message: Message[Any], failure: BaseException | None
    ) -> None:
        """An actor has handled a message, has failed to, or was cancelled."""

    def dead_letter(self, ref: ActorRef, message: Message[Any], reason: str) -> None:
        """A message without an asker will not be handled."""


def _declared(cls: type) -> dict[str, Callable[..., None]]:
    """The methods that a class declares, which do nothing there."""
    return {
        name: method
        for name, method in vars(cls).items()
        if callable(method) and not name.startswith("_")
    }


Instrument._hooks = _declared(Instrument)


class Instruments:
    """The instruments of a system, by method. Only those that override a method are called.

    Instruments come and go while the system runs. Callers check ``active`` first, so a system
    without instruments has no other cost.

    Attributes:
        active: whether there are any instruments.
        each_op: whether an instrument has methods for each op of a device, named ``op_...`` or
            ``ops_...``.
        sampled: whether all of those accept the times of only some ops.
        methods: the functions to call, by method name. If there are many names, check here first.
    """

    __slots__ = ("_followers", "_instruments", "_late", "active", "each_op", "methods", "sampled")

    def __init__(self, instruments: Iterable[Instrument] = ()) -> None:
        self.active: bool = False
        self.each_op: bool = False
        self.sampled: bool = False
        self._instruments: list[Instrument] = []
        self.methods: dict[str, tuple[tuple[Instrument, Callable[..., None]], ...]] = {}
        self._followers: list[Callable[[], None]] = []
        self._late: list[Callable[[], None]] = []
        for instrument in instruments:
            self.add(instrument)

    def __iter__(self) -> Iterator[Instrument]:
        return iter(tuple(self._instruments))

    def add(self, instrument: Instrument) -> None:
        """Tell one more, from now on."""
        if not isinstance(instrument, Instrument):
            raise TypeError(f"an instrument must be an instance of Instrument, not {instrument!r}")
        self.tell()
        self._instruments.append(instrument)
        self._sort()
        self._tell_followers()

    def remove(self, instrument: Instrument) -> None:
        """Tell one no more, if it is still told."""
        self.tell()
        if self._drop(instrument):
            self._tell_followers()

    def follow(self, changed: Callable[[], None]) -> None:
        """Have a function called whenever instruments come or go."""
        self._followers.append(changed)

    def unfollow(self, changed: Callable[[], None]) -> None:
        """End what ``follow`` began, if it has not ended."""
        if changed in self._followers:
            self._followers.remove(changed)

    def tell(self) -> None:
        """Have all told that has happened so far, by those who tell of some things later."""
        for told in tuple(self._late):
            told()

    def tell_late(self, told: Callable[[], None]) -> None:
        """Register a function that ``tell`` calls to deliver late events."""
        self._late.append(told)

    def tell_no_more(self, told: Callable[[], None]) -> None:
        """End what ``tell_late`` began, if it has not ended."""
        if told in self._late:
            self._late.remove(told)

    def wants(self, *names: str) -> bool:
        """Return True if an instrument overrides one of these methods."""
        return any(name in self.methods for name in names)

    def _drop(self, instrument: Instrument) -> bool:
        left = [one for one in self._instruments if one is not instrument]
        dropped = len(left) < len(self._instruments)
        self._instruments = left
        self._sort()
        return dropped

    def _tell_followers(self) -> None:
        for changed in tuple(self._followers):
            changed()

    def _sort(self) -> None:
        methods: dict[str, tuple[tuple[Instrument, Callable[..., None]], ...]] = {}
        for instrument in self._instruments:
            for name, nothing in instrument._hooks.items():
                method = getattr(instrument, name)
                if getattr(method, "__func__", None) is not nothing:
                    methods[name] = (*methods.get(name, ()), (instrument, method))
        self.methods = methods
        self.active = bool(methods)
        of_ops = [name for name in methods if name.startswith(("op_", "ops_"))]
        self.each_op = bool(of_ops)
        told = [one for name in of_ops for one, _ in methods[name]]
        self.sampled = bool(told) and all(getattr(one, "sampled", False) for one in told)

    def __call__(self, name: str, *args: object) -> None:
        """Call a method of all instruments that have it."""
        for instrument, method in self.methods.get(name, ()):
            try:
                method(*args)
            except Exception:  # noqa: BLE001 (logged)
                self._drop(instrument)
                if trio.lowlevel.in_trio_run():
                    # Followers do things of their own, such as submitting ops, and whoever tells
                    # is in the middle of something.
                    trio.lowlevel.current_trio_token().run_sync_soon(self._tell_followers)
                _log.exception("%r failed and will not be called again", instrument)
