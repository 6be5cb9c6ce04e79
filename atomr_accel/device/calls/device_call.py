"""Calls of a device's own methods as messages: put, get, run and the like."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from ...actors import Message

if TYPE_CHECKING:
    from ...memory import MemoryMap

T = TypeVar("T")


class DeviceCall(Message[T], Generic[T], frozen=True):
    """A call of one of a device's methods, made by ``device.requests`` for ``device.ref``.

    Attributes:
        home: memory of the device.
        name: name of the method.
        ordered: whether it touches buffers of the program. It then runs after the submission of
            the requests before it, and those after it wait for its end.
        function: calls the method.
    """

    home: MemoryMap
    name: str
    ordered: bool
    function: Callable[[], Coroutine[Any, Any, T]]

    if not TYPE_CHECKING:  # to type checkers, it is nothing to be awaited

        def __await__(self) -> NoReturn:
            raise TypeError(
                f"{self.name} is a message, which is sent and not awaited itself; write "
                f"`await device.ref.ask(message)`, or `await device.{self.name}(...)`"
            )
