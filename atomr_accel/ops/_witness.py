"""Observers of a program's calls, such as a journal that records them."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio

from .._calling import clarify

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ..memory import Block
    from ._request import Request

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")


class CallRecorder(Protocol):
    """Carries calls out and notes them, between the call and the device.

    Every call of a facade looks for a recorder, as ``device.recorder``; None means that nothing
    observes the calls. The arguments are those of the call, before any conversion.
    """

    def awaited(
        self,
        make: Callable[..., Request[T]],
        facade: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Coroutine[Any, Any, T]:
        """Carry out an op that is awaited."""

    def collected(
        self,
        make: Callable[..., Request[T]],
        facade: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        collector: Any = None,
    ) -> T:
        """Make an op in a batch or a recording, by default the facade's own one."""

    def described(
        self,
        request: Request[T],
        make: Callable[..., Request[T]],
        facade: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Request[T]:
        """Make a request that reports when it is carried out."""

    def method(
        self,
        method: Callable[..., Coroutine[Any, Any, T]],
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Coroutine[Any, Any, T]:
        """Carry out an async method of a device or a recording that does not make an op."""

    def submitted(self) -> None:
        """Note that an op has its place in the program's order; it may belong to such a method."""

    def lost(self, block: Block) -> None:
        """Note that a durable buffer is stale from here on."""

    def step(
        self,
        method: Callable[..., T],
        collector: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        """Carry out a method of a batch or a recording that does not make an op."""

    def entered(self, collector: Any) -> None:
        """Note that the block of a batch or a recording begins."""

    def left(self, collector: Any, error: BaseException | None, *, body: bool) -> None:
        """Note that the block of a batch or a recording has ended, and with which error."""

    def chosen(self, collector: Any, kind: str, flag: Any) -> None:
        """Note that a section of a recording begins that depends on a flag."""

    def section_ended(self, collector: Any) -> None:
        """Note that the last section that began has ended."""


def recorded_call(method: F) -> F:
    """Return a method that reports its calls to the recorder; it must not make an op.

    The recorder is that of the device, which the method's object has as ``core``.
    """
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def told_async(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            recorder: CallRecorder | None = self.core.recorder
            try:
                if recorder is None:
                    return await method(self, *args, **kwargs)
                return await recorder.method(method, self, args, kwargs)
            except TypeError as error:
                clarify(error, method, (self, *args), kwargs)
                raise

        function: Any = told_async
    else:

        @functools.wraps(method)
        def told(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            recorder: CallRecorder | None = self.core.recorder
            try:
                if recorder is None:
                    return method(self, *args, **kwargs)
                return recorder.step(method, self, args, kwargs)
            except TypeError as error:
                clarify(error, method, (self, *args), kwargs)
                raise

        function = told
    marked: F = trio.lowlevel.enable_ki_protection(function)
    return marked
