"""Pickling with holes and with parts.

An object that stays behind is replaced by a number at every place in the pickle. Large arrays
become parts next to the pickle, by pickle's protocol 5, so an array is the same on the other side
for all sizes. Small data is one piece of bytes.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, final

import cloudpickle
import numpy as np
import numpy.rec  # the module of recarrays; classes of modules not imported are pickled by value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Bytes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]

INLINE: Final = 1 << 16
"""Bytes that travel in a message; what takes more is a part."""

_QUICK_OBJECTS: Final = 5000
"""Objects that are pickled in about a millisecond."""

_QUICK_BYTES: Final = 1 << 20
"""Bytes that one of them may copy meanwhile."""


class PackedObject(NamedTuple):
    """Pickled object.

    Attributes:
        data: the pickle; empty if that is the first of the parts.
        parts: bytes outside the message. They may be the object's own memory.
    """

    data: bytes
    parts: list[Bytes]


class TakesLong(Exception):
    """Signals that pickling takes too long to be done at once."""


class PickleTooLarge(Exception):
    """Signals that the pickle is larger than the limit."""


@final
class _PickleCollector:
    """The pickler's file: takes the bytes that it writes, and the parts next to them."""

    def __init__(self, most: int | None, *, quick: bool) -> None:
        self.most = most
        self.quick = quick
        self.parts: list[Bytes] = []
        self._pieces: list[memoryview] = []
        self._written = 0
        self._nbytes = 0

    def write(self, piece: Any) -> int:
        """Take collected bytes, or a large piece without a copy."""
        view = memoryview(piece)
        self._count(view.nbytes)
        self._written += view.nbytes
        if self.quick and self._written > INLINE:
            raise TakesLong
        self._pieces.append(view)
        return view.nbytes

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        """Make a buffer a part, or have it written."""
        view = buffer.raw()
        if view.nbytes < INLINE:
            return True
        self._count(view.nbytes)
        self.parts.append(np.frombuffer(view, np.uint8))
        return False

    def stream(self) -> Bytes:
        """The pickle. Large pieces are copied without the GIL."""
        stream = np.empty(self._written, np.uint8)
        at = 0
        for piece in self._pieces:
            np.copyto(stream[at : at + piece.nbytes], np.frombuffer(piece, np.uint8))
            at += piece.nbytes
        return stream

    def _count(self, nbytes: int) -> None:
        self._nbytes += nbytes
        if self.most is not None and self._nbytes > self.most:
            raise PickleTooLarge


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: _PickleCollector, take: Callable[[Any], int | None]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=file.take)
        self._most = file.most
        self._quick = file.quick
        self._take = take
        self._objects = 0

    def persistent_id(self, thing: Any) -> int | None:
        if self._quick:
            self._objects += 1
            if self._objects > _QUICK_OBJECTS:
                raise TakesLong
        if isinstance(thing, np.ndarray):
            self._look(thing.nbytes, is_part=_is_a_part(thing))
        elif type(thing) is str:
            self._look(len(thing), is_part=False)
        return self._take(thing)

    def _look(self, nbytes: int, *, is_part: bool) -> None:
        """Check the size of an object before it is copied as a whole."""
        if self._most is not None and nbytes > self._most:
            raise PickleTooLarge
        if self._quick and nbytes > _QUICK_BYTES and not is_part:
            raise TakesLong


def _is_a_part(array: np.ndarray[Any, Any]) -> bool:
    """Return whether pickling it copies nothing."""
    return type(array) is np.ndarray and array.flags.forc and not array.dtype.hasobject


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, parts: Iterator[Bytes], give: Callable[[int], Any]) -> None:
        super().__init__(file, buffers=parts)
        self._give = give

    def persistent_load(self, number: Any) -> Any:
        return self._give(number)


@final
class _Reader:
    """A pickle as a file that copies large pieces without the GIL."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._at = 0

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        return self._next(size).tobytes()

    def readinto(self, target: memoryview) -> int:
        """Fill ``target``."""
        part = self._next(target.nbytes)
        np.copyto(np.frombuffer(target, np.uint8)[: len(part)], part)
        return len(part)

    def readline(self) -> bytes:
        """Read a line, which old protocols need."""
        rest = self._data[self._at :]
        ends = np.flatnonzero(rest == ord("\n"))
        return self.read(int(ends[0]) + 1 if len(ends) else len(rest))

    def _next(self, size: int) -> Bytes:
        part = self._data[self._at : self._at + size]
        self._at += len(part)
        return part


def dumps(
    thing: Any,
    take: Callable[[Any], int | None],
    *,
    most: int | None = None,
    quick: bool = False,
) -> PackedObject:
    """Pickle ``thing``; objects that the other side cannot import are pickled by value.

    Args:
        thing: the object to pickle.
        take: called with everything inside; returns a number for an object that is not pickled.
        most: the limit of all bytes.
        quick: give up if it takes longer than about a millisecond.

    Raises:
        TakesLong: ``quick`` is set and it takes longer.
        TooMuch: it is more than ``most``; most of it was not copied.
    """
    file = _PickleCollector(most, quick=quick)
    _Pickler(file, take).dump(thing)
    stream = file.stream()
    if len(stream) > INLINE:
        return PackedObject(b"", [stream, *file.parts])
    return PackedObject(stream.tobytes(), file.parts)


def loads(data: bytes, parts: list[Bytes], give: Callable[[int], Any]) -> Any:
    """Undo ``dumps``; ``give`` returns the object for a number.

    Loaded arrays use the memory of ``parts``.
    """
    rest = iter(parts)
    file: Any = io.BytesIO(data) if data else _Reader(next(rest))
    return _Unpickler(file, rest, give).load()
