"""What is kept of what was made before, such as plans, as long as it is in use."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, ValuesView

_K = TypeVar("_K", bound="Hashable")
_V = TypeVar("_V")


@final
class Recent(Generic[_K, _V]):
    """A table of so many entries: a new one takes the place of what was not used for longest.

    Keys must be of one type each: 1, 1.0 and True are the same key, so normalise what callers
    give before looking.

    Args:
        limit: how many entries there may be.
        drop: called with what goes.
    """

    def __init__(self, limit: int, drop: Callable[[_V], object] | None = None) -> None:
        self._limit = limit
        self._drop = drop
        self._kept: OrderedDict[_K, _V] = OrderedDict()

    @property
    def limit(self) -> int:
        """How many entries there may be; with fewer, what is too many goes."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._shrink(limit)

    def get(self, key: _K) -> _V | None:
        """What is kept for a key, which is in use."""
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
        return value

    def keep(self, key: _K, value: _V) -> _V:
        """Keep a value for a key, in the place of what was kept for it."""
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
        """All that is kept."""
        return self._kept.values()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[_K]:
        return iter(self._kept)
