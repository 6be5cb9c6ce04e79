"""Pickling with holes: what stays behind is replaced by a number, wherever it is found."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Callable


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, take: Callable[[Any], int | None]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._take = take

    def persistent_id(self, thing: Any) -> int | None:
        return self._take(thing)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, give: Callable[[int], Any]) -> None:
        super().__init__(file)
        self._give = give

    def persistent_load(self, number: Any) -> Any:
        return self._give(number)


def dumps(thing: Any, take: Callable[[Any], int | None]) -> bytes:
    """Pickle ``thing``, by value what the other side cannot import.

    Args:
        thing: what to pickle.
        take: called with everything inside; a number stands for what is not to be pickled.
    """
    file = io.BytesIO()
    _Pickler(file, take).dump(thing)
    return file.getvalue()


def loads(data: bytes, give: Callable[[int], Any]) -> Any:
    """Undo ``dumps``; ``give`` tells what a number stands for."""
    return _Unpickler(io.BytesIO(data), give).load()
