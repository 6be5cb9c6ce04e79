"""The fencing store: four calls that decide about holders, and about effects that count.

The decisions are functions of rows, without I/O. All stores share them: that of one program here,
SQLite's and PostgreSQL's.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar, final

import trio
from sortedcontainers import SortedDict

from ..actors.util import check_instance
from ._errors import EpochOver, VersionConflict

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreLease:
    """A lease as the store knows it.

    Attributes:
        key: the key of the lease.
        holder: the holder; None for a free lease.
        epoch: number of times that the lease changed hands. It never falls.
        seconds: until it expires, by the store's clock; 0 if it has.
    """

    key: str
    holder: str | None
    epoch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A key of the store at one moment.

    Attributes:
        key: the key.
        value: its value; None if it has none.
        version: of the value; 0 if there never was one.
        holder: the holder of the key's lease; None if it is free or has expired.
        epoch: epoch of the lease.
    """

    key: str
    value: bytes | None
    version: int
    holder: str | None
    epoch: int


class FencingStore(Protocol):
    """Interface of a store for clusters. Each call happens as a whole, or not at all.

    A call that gets no answer raises `StoreUnavailable`. The store's clock alone decides when a
    lease has expired.
    """

    async def lease(self, keys: Sequence[str], holder: str, seconds: float) -> list[StoreLease]:
        """Take the leases that are free, have expired, or are the holder's already.

        A lease that changes hands gets the next epoch. Others do not change.

        Args:
            keys: the keys.
            holder: whoever takes them.
            seconds: until they expire.

        Returns:
            The leases of all keys, in their order, also those that others hold.
        """

    async def renew(self, leases: Sequence[StoreLease], seconds: float) -> list[bool]:
        """Renew leases, or release them with 0 seconds.

        Args:
            leases: what ``lease`` returned.
            seconds: until they expire, from now.

        Returns:
            Whether each is still the holder's, in their order. Others do not change.
        """

    async def compare_and_set(
        self, key: str, value: bytes | None, *, version: int, fence: StoreLease | None = None
    ) -> int:
        """Set a value, if it is of the expected version and the fence stands.

        Args:
            key: the key.
            value: the new value; None removes it.
            version: the expected version; 0 for a key without a value ever.
            fence: a lease, also of another key, that must be the holder's with this epoch.

        Returns:
            The new version.

        Raises:
            EpochOver: the fence does not stand. Nothing has changed.
            VersionConflict: the value is of another version. Nothing has changed.
        """

    def watch(
        self, prefix: str
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[StoreEntry, ...]]]:
        """Watch all keys that begin with a prefix.

        The block gets an iterator. It gives the present entries, sorted by key, and again after
        each change, also when a lease has expired. Several changes may arrive as one.

        Args:
            prefix: first characters of the keys; all of a key to read that alone.
        """


@dataclass(frozen=True, slots=True)
class StoreRow:
    """A row as stores keep it.

    Attributes:
        expires: when the lease ends, by the store's clock.
    """

    key: str
    value: bytes | None = None
    version: int = 0
    holder: str | None = None
    epoch: int = 0
    expires: float = -math.inf

    def entry(self, now: float) -> StoreEntry:
        """Return what watchers see."""
        holder = self.holder if self.expires > now else None
        return StoreEntry(self.key, self.value, self.version, holder, self.epoch)


class Rows(Protocol):
    """Rows inside of one transaction. Many are read and written at once."""

    def now(self) -> float:
        """Return the store's time in seconds."""

    def get(self, keys: Sequence[str]) -> dict[str, StoreRow]:
        """Return the rows of those keys that have one."""

    def put(self, rows: Sequence[StoreRow]) -> None:
        """Write rows of different keys."""


def take(rows: Rows, keys: Sequence[str], holder: str, seconds: float) -> list[StoreLease]:
    """Do ``lease``."""
    now, found = rows.now(), rows.get(keys)
    taken, written = [], {}
    for key in keys:
        row = found.get(key) or StoreRow(key)
        live = row.holder is not None and row.expires > now
        if not live or row.holder == holder:
            epoch = row.epoch if live else row.epoch + 1
            row = replace(row, holder=holder, epoch=epoch, expires=now + seconds)
            found[key] = written[key] = row
        taken.append(StoreLease(key, row.holder, row.epoch, row.expires - now))
    rows.put([*written.values()])
    return taken


def extend(rows: Rows, leases: Sequence[StoreLease], seconds: float) -> list[bool]:
    """Do ``renew``."""
    now, found = rows.now(), rows.get([lease.key for lease in leases])
    kept, written = [], {}
    for lease in leases:
        row = found.get(lease.key)
        held = stands(row, lease)
        kept.append(held)
        if row is not None and held:
            holder = lease.holder if seconds > 0 else None
            row = replace(row, holder=holder, expires=now + seconds)
            found[lease.key] = written[lease.key] = row
    rows.put([*written.values()])
    return kept


def swap(rows: Rows, key: str, value: bytes | None, version: int, fence: StoreLease | None) -> int:
    """Do ``compare_and_set``."""
    found = rows.get([key] if fence is None else [key, fence.key])
    if fence is not None and not stands(found.get(fence.key), fence):
        raise EpochOver(f"epoch {fence.epoch} of {fence.key} is over: {fence.holder} lost it")
    row = found.get(key) or StoreRow(key)
    if row.version != version:
        raise VersionConflict(
            f"{key} has version {row.version} in place of {version}", version=row.version
        )
    rows.put([replace(row, value=value, version=version + 1)])
    return version + 1


def differs(before: StoreRow | None, row: StoreRow) -> bool:
    """Return whether watchers see a row that was written: more has changed than its expiry."""
    return (
        before is None
        or before.version != row.version
        or before.epoch != row.epoch
        or before.holder != row.holder
    )


def stands(row: StoreRow | None, lease: StoreLease) -> bool:
    """Return whether a lease is still its holder's: no other holder has taken it since."""
    return row is not None and row.holder == lease.holder and row.epoch == lease.epoch


def check_lease(keys: Iterable[object], seconds: object) -> None:
    """Raise a TypeError or ValueError for bad arguments of ``lease``."""
    for key in keys:
        check_instance("a key", key, str)
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise ValueError(f"seconds must be a finite number from 0 on, not {seconds!r}")


@final
class Snapshots:
    """Iterator of a watch: reads again when something may have changed.

    Args:
        read: returns the rows and the store's time.
        wait: returns when something may have changed.
    """

    def __init__(
        self,
        read: Callable[[], object],
        wait: Callable[[], object],
    ) -> None:
        self._read: Final = read
        self._wait: Final = wait
        self._seen: tuple[StoreEntry, ...] | None = None
        self._expiry = math.inf
        self._made: dict[str, tuple[StoreRow, bool, StoreEntry]] = {}

    def __aiter__(self) -> Snapshots:
        return self

    async def __anext__(self) -> tuple[StoreEntry, ...]:
        while True:
            if self._seen is not None:
                with trio.move_on_after(self._expiry):
                    await self._wait()  # type: ignore[misc]
            rows, now = await self._read()  # type: ignore[misc]
            before, self._made, first = self._made, {}, math.inf
            for row in rows:
                live = row.holder is not None and row.expires > now
                if live and row.expires < first:
                    first = row.expires
                made = before.get(row.key)
                if (
                    made is None
                    or made[1] is not live
                    or (made[0] is not row and differs(made[0], row))
                ):
                    made = row, live, row.entry(now)
                self._made[row.key] = made
            self._expiry = first - now + 0.001
            entries = tuple([made[2] for made in self._made.values()])
            if entries != self._seen:
                self._seen = entries
                return entries


@dataclass(eq=False)
class _MemoryWatch:
    prefix: str
    changed: trio.Event = field(default_factory=trio.Event)


class StoreOfRows:
    """Base of stores: their calls, each a function of the rows in one transaction."""

    async def lease(self, keys: Sequence[str], holder: str, seconds: float) -> list[StoreLease]:
        """Take leases; see `FencingStore`."""
        check_lease(keys, seconds)
        return await self._done(lambda rows: take(rows, keys, holder, seconds))

    async def renew(self, leases: Sequence[StoreLease], seconds: float) -> list[bool]:
        """Renew or release leases; see `FencingStore`."""
        check_lease((), seconds)
        return await self._done(lambda rows: extend(rows, leases, seconds))

    async def compare_and_set(
        self, key: str, value: bytes | None, *, version: int, fence: StoreLease | None = None
    ) -> int:
        """Set a value; see `FencingStore`."""
        return await self._done(lambda rows: swap(rows, key, value, version, fence))

    @abstractmethod
    async def _done(self, function: Callable[[Rows], T]) -> T:
        """Call a function of the rows, which no other call changes meanwhile."""


@final
class MemoryStore(StoreOfRows):
    """A fencing store inside of one program: for tests, and clusters of one program.

    All nodes share the instance. It is gone with the program.
    """

    def __init__(self) -> None:
        self._rows: SortedDict[str, StoreRow] = SortedDict()
        self._watches: set[_MemoryWatch] = set()

    def now(self) -> float:
        """Return the time in seconds, by trio's clock."""
        return trio.current_time()

    def get(self, keys: Sequence[str]) -> dict[str, StoreRow]:
        """Return the rows of those keys that have one."""
        return {key: self._rows[key] for key in keys if key in self._rows}

    def put(self, rows: Sequence[StoreRow]) -> None:
        """Write rows, and wake watchers of those of which more has changed than the expiry."""
        changed = [row.key for row in rows if differs(self._rows.get(row.key), row)]
        self._rows.update((row.key, row) for row in rows)
        for watch in self._watches if changed else ():
            if any(key.startswith(watch.prefix) for key in changed):
                watch.changed.set()

    async def _done(self, function: Callable[[Rows], T]) -> T:
        await trio.lowlevel.checkpoint()
        return function(self)

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[tuple[StoreEntry, ...]]]:
        """Watch keys; see `FencingStore`."""
        watch = _MemoryWatch(prefix)

        async def read() -> tuple[list[StoreRow], float]:
            await trio.lowlevel.checkpoint()
            watch.changed = trio.Event()
            keys = [*self._rows.irange(prefix, prefix + "\U0010ffff")]
            return [self._rows[key] for key in keys], self.now()

        async def wait() -> None:
            if watch in self._watches:
                await watch.changed.wait()
            else:  # most reads are never followed by another one
                self._watches.add(watch)
                await trio.lowlevel.checkpoint()

        try:
            yield Snapshots(read, wait)
        finally:
            self._watches.discard(watch)


async def read_entries(store: FencingStore, prefix: str) -> tuple[StoreEntry, ...]:
    """Return the present entries of all keys that begin with a prefix."""
    async with store.watch(prefix) as snapshots:
        return await anext(snapshots)
