"""Replicas and versions: functions that run in callers' tasks and may end during a call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

import trio

from .._errors import DeviceLost
from ._calls import unprotected
from ._errors import Dropped, Overloaded, ReplicaLost
from ._retry import is_transient

In = TypeVar("In")
Out = TypeVar("Out")

Factory: TypeAlias = Callable[[], AbstractAsyncContextManager[Callable[[In], Awaitable[Out]]]]
"""Makes an async context manager that gives a coroutine function of one argument.

What the function needs and owns, such as a device, lives as long as the block. ``open_batcher`` and
the like give such context managers. For a function that owns nothing,
``lambda: nullcontext(function)`` is a factory.
"""


def is_fault(error: BaseException) -> bool:
    """Return True if an error is only a device's fault, without effects outside the device."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_fault, error.exceptions))
    return is_transient(error) or isinstance(error, DeviceLost)


def is_for_member(error: Exception) -> bool:
    """Return True if a failure counts against the replica or version where it happened.

    All failures do, except those that blame the request (`ValueError`, `TypeError`) and those that
    report a lack of room.
    """
    return not isinstance(error, (ValueError, TypeError, Overloaded, Dropped))


class MemberFunction:
    """A function that its owner may take away, and the calls of it that are in progress."""

    __slots__ = ("_idle", "_scopes", "call", "in_flight", "name", "what")

    def __init__(self, kind: str, name: str) -> None:
        self.name: str = name
        self.what: str = f"{kind} {name!r}"
        self.call: Callable[[Any], Awaitable[Any]] | None = None
        self.in_flight: int = 0
        self._scopes: set[trio.CancelScope] = set()
        self._idle = trio.Event()

    async def serve(self, retire: Callable[[], Awaitable[None]]) -> None:
        """Serve calls until ``retire`` returns, then end the calls in progress and wait for them.

        So no call uses the member's resources when they are closed.
        """
        try:
            await retire()
        finally:
            self.call = None
            for scope in self._scopes:
                scope.cancel()
            with trio.CancelScope(shield=True):
                await self.until_idle()

    def take(self) -> None:
        """One request more; whoever takes one also leaves."""
        self.in_flight += 1

    def leave(self) -> None:
        """One request less."""
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()
            self._idle = trio.Event()

    async def until_idle(self) -> None:
        """Wait until it has no requests."""
        if self.in_flight:
            await self._idle.wait()

    async def ask(self, item: Any) -> Any:
        """Call it, for a request that was taken."""
        await trio.lowlevel.checkpoint_if_cancelled()
        call = self.call
        if call is None:  # in the turn in which it was chosen
            raise self._lost()
        scope = trio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                return await unprotected(call, item)
            raise self._lost()
        except Exception as error:
            if scope.cancel_called and not isinstance(error, ReplicaLost) and not is_fault(error):
                raise self._lost() from error
            raise
        finally:
            self._scopes.discard(scope)

    def _lost(self) -> ReplicaLost:
        return ReplicaLost(
            f"{self.what} ended while it had the request, which may have been done; requests that "
            "are idempotent are asked elsewhere",
            replica=self.name,
        )


def opened(factory: Factory[In, Out], what: str) -> AbstractAsyncContextManager[Any]:
    """Call a factory, and return its context manager."""
    made: object = factory()
    if not hasattr(made, "__aenter__"):
        raise TypeError(
            f"the factory of {what} must make an async context manager, not {made!r}; "
            "lambda: nullcontext(function) is one for a function that owns nothing"
        )
    return made  # type: ignore[return-value]


def check_factory(factory: object) -> None:
    """Raise a `TypeError` unless it can be called."""
    if not callable(factory):
        raise TypeError(
            f"a factory must be a function that makes an async context manager, not {factory!r}"
        )
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise TypeError(
            f"a factory must take no arguments, unlike {factory!r} ({error}); "
            "lambda: nullcontext(function) is one for a function that owns nothing"
        ) from None
    except ValueError:
        pass  # nobody knows what it takes


def check_call(call: object, what: str) -> None:
    """Raise `TypeError` unless the opened object can be called."""
    if not callable(call):
        raise TypeError(f"{what} must open as a coroutine function, not {call!r}")
