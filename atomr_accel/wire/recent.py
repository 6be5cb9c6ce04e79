"""Tables of recently used objects, such as plans."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, ValuesView

_K = TypeVar("_K", bound="Hashable")
_V = TypeVar("_V")


@final
class Recent(Generic[_K, _V]):
    """A table with a limit: a new entry replaces the least recently used one.

    Keys must be of one type each: 1, 1.0 and True are the same key, so normalise what callers give
    before looking.

    Args:
        limit: the largest number of entries.
        drop: called with each removed value.
    """

    def __init__(self, limit: int, drop: Callable[[_V], object] | None = None) -> None:
        self._limit = limit
        self._drop = drop
        self._kept: OrderedDict[_K, _V] = OrderedDict()

    @property
    def limit(self) -> int:
        """Largest number of entries; a smaller limit removes entries."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._shrink(limit)

    def get(self, key: _K) -> _V | None:
        """Return the value of a key, and count that as a use."""
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
        return value

    def keep(self, key: _K, value: _V) -> _V:
        """Keep a value for a key, and drop the key's former value."""
        former = self._kept.pop(key, None)
        if former is not None and self._drop is not None:
            self._drop(former)
        self._shrink(self._limit - 1)
        self._kept[key] = value
        return value

    def clear(self) -> None:
        """Drop everything."""
        self._shrink(0)

    def _shrink(self, size: int) -> None:
        while len(self._kept) > size:
            _, oldest = self._kept.popitem(last=False)
            if self._drop is not None:
                self._drop(oldest)

    def values(self) -> ValuesView[_V]:
        """Return all kept values."""
        return self._kept.values()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[_K]:
        return iter(self._kept)
