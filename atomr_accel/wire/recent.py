"""Tables of recently used objects, such as plans."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, ValuesView

_K = TypeVar("_K", bound="Hashable")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A snapshot of a cache.

    Attributes:
        name: the cache's name, which begins with that of its library: ``"fft.plans"``.
        entries: number of entries.
        limit: largest number of entries; a new one then replaces the least recently used.
        hits: calls that found a usable entry.
        misses: calls that did not.
        evictions: entries that were dropped, by the limit or because the cache was cleared.
    """

    name: str
    entries: int
    limit: int
    hits: int
    misses: int
    evictions: int


@final
class Recent(Generic[_K, _V]):
    """A table with a limit: a new entry replaces the least recently used one.

    Keys must be of one type each: 1, 1.0 and True are the same key, so normalise what callers give
    before looking. Threads may call ``get`` while another one, which holds a lock, adds entries.

    Args:
        limit: the largest number of entries.
        drop: called with each removed value.
        name: its name in ``device.statistics().caches``, after that of its library.

    Attributes:
        hits: number of calls that found a usable value.
        misses: number of calls that did not.
    """

    __slots__ = ("_drop", "_evictions", "_kept", "_limit", "hits", "misses", "name")

    def __init__(
        self, limit: int, drop: Callable[[_V], object] | None = None, *, name: str = ""
    ) -> None:
        self._limit = limit
        self._drop = drop
        self.name: Final = name
        self._kept: OrderedDict[_K, _V] = OrderedDict()
        self.hits: int = 0
        self.misses: int = 0
        self._evictions = 0

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
            self.hits += 1
            try:
                self._kept.move_to_end(key)
            except KeyError:
                return value  # which another thread has dropped just now
        return value

    def peek(self, key: _K) -> _V | None:
        """Return the value of a key without counting a use."""
        return self._kept.get(key)

    def discount(self) -> None:
        """Count no use for the last lookup, because the value that it found is not usable."""
        self.hits -= 1

    def add(self, key: _K, value: _V) -> _V:
        """Keep a value that a call has not found, and count a miss."""
        self.misses += 1
        return self.keep(key, value)

    def keep(self, key: _K, value: _V) -> _V:
        """Keep a value for a key, and drop the key's former value."""
        former = self._kept.pop(key, None)
        if former is not None and former is not value and self._drop is not None:
            self._drop(former)
        self._shrink(self._limit - 1)
        self._kept[key] = value
        return value

    def remove(self, key: _K) -> None:
        """Remove the value of a key, if there is one, without a call of ``drop``."""
        self._kept.pop(key, None)

    def clear(self) -> None:
        """Drop everything."""
        self._shrink(0)

    def statistics(self, name: str) -> CacheStatistics:
        """Return a snapshot under a name."""
        return CacheStatistics(
            name, len(self._kept), self._limit, self.hits, self.misses, self._evictions
        )

    def _shrink(self, size: int) -> None:
        while len(self._kept) > size:
            _, oldest = self._kept.popitem(last=False)
            self._evictions += 1
            if self._drop is not None:
                self._drop(oldest)

    def values(self) -> ValuesView[_V]:
        """Return all kept values."""
        return self._kept.values()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[_K]:
        return iter(self._kept)
