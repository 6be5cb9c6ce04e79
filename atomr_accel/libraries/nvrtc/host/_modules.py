"""Modules that are loaded in a host, by number.

A module has variables, so there is one of each in a host, whichever lane has asked for it:
kernels launched one by one and those of recordings see the same memory.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wire.messages import Load, Unload

T = TypeVar("T")


@final
class _SharedModules:
    """Modules that lanes of a context have loaded, by number, with the number of users."""

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.modules: Final[dict[int, tuple[Any, int]]] = {}


_contexts: Final[WeakKeyDictionary[object, _SharedModules]] = WeakKeyDictionary()
_contexts_lock: Final = threading.Lock()


_numbered: Final[WeakKeyDictionary[object, dict[int, Any]]] = WeakKeyDictionary()


@final
class Numbered(Generic[T]):
    """Objects of a context by the program's numbers, shared by all of its lanes."""

    def __init__(self, context: object) -> None:
        with _contexts_lock:
            self._known: dict[int, T] = _numbered.setdefault(context, {})

    def add(self, number: int, thing: T) -> None:
        """Add an object."""
        self._known[number] = thing

    def get(self, number: int) -> T:
        """Return an object that exists."""
        return self._known[number]

    def find(self, number: int) -> T | None:
        """Return an object, or None if it does not exist."""
        return self._known.get(number)

    def pop(self, number: int) -> T | None:
        """Remove and return an object, or None if it does not exist."""
        return self._known.pop(number, None)


@final
class LaneModules(Generic[T]):
    """The modules that one lane has loaded."""

    def __init__(
        self, context: object, load: Callable[[Load], T], unload: Callable[[T], None]
    ) -> None:
        with _contexts_lock:
            self._shared = _contexts.setdefault(context, _SharedModules())
        self._make: Final = load
        self._release: Final = unload
        self._own: dict[int, T] = {}

    def share(self, other: LaneModules[T]) -> None:
        """Share the modules of another stream of the same lane."""
        self._own = other._own

    def get(self, number: int) -> T:
        """Return a loaded module."""
        return self._own[number]

    def load(self, message: Load) -> None:
        """Load a module, unless it is loaded."""
        if message.module in self._own:  # by another recording, which executes here too
            return
        with self._shared.lock:
            module, users = self._shared.modules.get(message.module, (None, 0))
            if module is None:
                module = self._make(message)
            self._shared.modules[message.module] = module, users + 1
        self._own[message.module] = module

    def unload(self, message: Unload) -> None:
        """Release one, if it is loaded."""
        self._drop(message.module)

    def close(self) -> None:
        """Release all, which all streams of the lane share."""
        while self._own:
            self._drop(next(iter(self._own)))

    def _drop(self, number: int) -> None:
        if self._own.pop(number, None) is None:
            return
        with self._shared.lock:
            module, users = self._shared.modules.pop(number)
            if users > 1:
                self._shared.modules[number] = module, users - 1
                return
        self._release(module)
