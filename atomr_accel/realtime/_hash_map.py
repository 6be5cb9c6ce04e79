"""A hash map on a device, which survives faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

import numpy as np
import trio

from .. import OutOfMemory
from ..actors import Place, serving
from ..actors.blocks import opens
from ..device import Device
from ._checks import whole
from ._kernels import KernelSet
from ._turns import TakesTurns
from .wire.hash_map import EMPTY, GONE, HASH_MAP

if TYPE_CHECKING:
    from .. import GpuRef, Snapshot

    Array = np.ndarray[Any, Any]

T = TypeVar("T")

_FILLED: Final = 0.6
"""Share of slots that may be taken."""


@dataclass(frozen=True, slots=True)
class HashMapStatistics:
    """A hash map at one moment.

    Attributes:
        entries: keys that it holds.
        slots: slots of its table.
        deleted: slots of deleted entries, which the next rebuild frees.
        rebuilds: how often the table was made anew, larger or of the same size.
        faults: faults that it has survived.
        journal: changes since the last checkpoint, which a fault has it make again.
    """

    entries: int
    slots: int
    deleted: int
    rebuilds: int
    faults: int
    journal: int


class HashMap(TakesTurns):
    """A map from int64 keys to int64 values on a device; `open_hash_map` makes one.

    Calls of several tasks take turns. Each works on many keys side by side. If the device does not
    come back after a fault, they raise ``ContextPoisoned`` or ``DeviceLost``.
    """

    def __init__(self, device: Device, capacity: int, *, limit: int, every: int) -> None:
        super().__init__(device, "hash map")
        self.limit: Final = whole(limit, "limit", 1, 2**30)
        self.every: Final = whole(every, "every", 1)
        self._slots = _slots_for(whole(capacity, "capacity", 0, self.limit))
        self._entries = self._used = self._rebuilds = self._faults = 0
        self._generation = 0
        self._kept: tuple[Snapshot, int, int, int] | None = None
        self._journal: list[tuple[Array, Array | None]] = []

    # --- what programs call ----------------------------------------------------------------

    async def insert(self, keys: object, values: object) -> None:
        """Set the values of keys. Of equal keys in one call the last one counts, as in a dict.

        Args:
            keys: int64 of shape (n,); the two smallest int64 are not keys.
            values: int64 of shape (n,).

        Raises:
            TypeError, ValueError: arrays of another dtype or shape, or no keys.
            OutOfMemory: more entries than the map's limit, or the device is full. The map is as
                before.
        """
        given, content = _keys(keys), _whole(values, "values")
        if given.shape != content.shape:
            raise ValueError(f"values must have shape {given.shape}, not {content.shape}")

        async def change() -> None:
            await self._make_room(given.size)
            await self._insert(given, content)

        await self._changing(given, content, change)

    async def find(self, keys: object) -> tuple[Array, Array]:
        """Return values of keys as int64, 0 for absent ones; and as bool which keys are there."""
        given = _keys(keys)

        async def look() -> tuple[Array, Array]:
            await self._revive()
            values, found, _ = await self._find(given)
            return await self.device.get(values), (await self.device.get(found)).astype(bool)

        async with self._turn():
            if not given.size:
                return np.zeros(0, np.int64), np.zeros(0, bool)
            return await self.device.retry(look)

    async def delete(self, keys: object) -> int:
        """Delete keys, and return how many were there."""
        given = _keys(keys)
        return await self._changing(given, None, lambda: self._delete(given))

    async def items(self) -> tuple[Array, Array]:
        """Return all keys and their values, in no order."""

        async def read() -> tuple[Array, Array]:
            await self._revive()
            keys, values = await self.device.get(self._table), await self.device.get(self._values)
            there = (keys != EMPTY) & (keys != GONE)
            return keys[there], values[there]

        async with self._turn():
            return await self.device.retry(read)

    async def resize(self, capacity: int) -> None:
        """Make the table anew for ``capacity`` entries, without slots of deleted ones.

        Raises:
            ValueError: the map has more entries, or ``capacity`` is more than its limit.
        """
        wanted = whole(capacity, "capacity", 0, self.limit)

        async def rebuild() -> None:
            await self._revive()
            await self._rebuild(_slots_for(wanted))

        async with self._turn():
            if wanted < self._entries:
                raise ValueError(f"capacity must be at least {self._entries}, not {wanted}")
            with trio.CancelScope(shield=True):
                await self.device.retry(rebuild)

    def __len__(self) -> int:
        return self._entries

    def statistics(self) -> HashMapStatistics:
        """Return numbers of the map."""
        return HashMapStatistics(
            entries=self._entries,
            slots=self._slots,
            deleted=self._used - self._entries,
            rebuilds=self._rebuilds,
            faults=self._faults,
            journal=len(self._journal),
        )

    # --- the service -----------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Make the table, or take it up again after a restart."""
        self._launch = (await KernelSet.load(self.device, HASH_MAP)).launch
        await super().serve(task_status=task_status)

    # --- inside ----------------------------------------------------------------------------

    async def _changing(
        self, keys: Array, values: Array | None, change: Callable[[], Awaitable[T]]
    ) -> T:
        """Make a change once, whatever happens to the device, and note it."""

        async def attempt() -> T:
            await self._revive()
            result = await change()
            # From here on the change counts: a fault must not undo it.
            self._journal.append((keys, values))
            return result

        async with self._turn():
            with trio.CancelScope(shield=True):
                result = await self.device.retry(attempt)
                if len(self._journal) >= self.every:
                    await self.device.retry(self._keep)
            return result

    async def _keep(self) -> None:
        await self._revive()
        snapshot = await self.device.snapshot([self._table, self._values])
        await snapshot.wait()
        if self._kept is not None:
            self._kept[0].close()
        self._kept = snapshot, self._slots, self._entries, self._used
        self._journal.clear()

    async def _revive(self) -> None:
        """Make the table if it is not there: from the last checkpoint and the changes after it."""
        if self._generation == self.device.generation:
            await trio.lowlevel.checkpoint()
            return
        again = self._generation > 0
        generation = self.device.generation
        if self._kept is None:
            await self._clear(self._slots)
        else:
            snapshot, self._slots, self._entries, self._used = self._kept
            self._table, self._values = await self.device.restore(snapshot)
            self._owner = await self.device.zeros(self._slots, np.int32)
        for keys, values in self._journal:
            if values is None:
                await self._delete(keys)
            else:
                await self._make_room(keys.size)
                await self._insert(keys, values)
        self._generation = generation
        self._faults += again

    async def _clear(self, slots: int) -> None:
        self._table = await self.device.full(slots, EMPTY, np.int64)
        self._values = await self.device.zeros(slots, np.int64)
        self._owner = await self.device.zeros(slots, np.int32)
        self._slots, self._entries, self._used = slots, 0, 0

    async def _make_room(self, count: int) -> None:
        if self._used + count <= self._slots * _FILLED:
            return
        wanted = self._entries + count
        if wanted > self.limit:
            raise OutOfMemory(
                f"{wanted} entries must be at most the map's limit of {self.limit}; delete some, "
                "or open it with a larger limit",
                requested=_slots_for(wanted) * 20,
            )
        await self._rebuild(max(_slots_for(wanted), self._slots))

    async def _rebuild(self, slots: int) -> None:
        keys, values = self._table, self._values
        old = self._slots, self._entries, self._used, self._owner
        try:
            await self._clear(slots)
            await self._fill(keys, values)
        except OutOfMemory:
            self._slots, self._entries, self._used, self._owner = old
            self._table, self._values = keys, values
            raise
        self._rebuilds += 1

    async def _insert(self, keys: Array, values: Array) -> None:
        if keys.size:
            await self._fill(await self.device.put(keys), await self.device.put(values))

    async def _fill(self, keys: GpuRef, values: GpuRef) -> None:
        n = keys.size
        used = await self.device.zeros(1, np.int32)
        async with self.device.batch() as batch:
            slots = batch.empty(n, np.int32)
            self._launch(
                batch, "claim", n, self._table, self._owner, slots, used, keys, n, self._slots - 1
            )
            self._launch(batch, "store", n, self._values, self._owner, slots, values, n)
            self._launch(batch, "release", n, self._owner, slots, n)
        new = int((await self.device.get(used))[0])
        self._entries += new
        self._used += new

    async def _find(self, keys: Array) -> tuple[GpuRef, GpuRef, GpuRef]:
        n, given = keys.size, await self.device.put(keys)
        async with self.device.batch() as batch:
            values, found = batch.empty(n, np.int64), batch.empty(n, np.uint8)
            slots = batch.empty(n, np.int32)
            self._launch(
                *(batch, "find", n, values, found, slots, self._table, self._values, given, n),
                self._slots - 1,
            )
        return values, found, slots

    async def _delete(self, keys: Array) -> int:
        if not keys.size:
            return 0
        _, _, slots = await self._find(keys)
        erased = await self.device.zeros(1, np.int32)
        async with self.device.batch() as batch:
            self._launch(batch, "erase", keys.size, self._table, erased, slots, keys.size)
        count = int((await self.device.get(erased))[0])
        self._entries -= count
        return count


def _slots_for(entries: int) -> int:
    return 1 << max(6, int(entries / _FILLED).bit_length())


def _whole(value: object, name: str) -> Array:
    made = np.asarray(value)
    if made.size == 0:
        made = made.astype(np.int64)
    if made.dtype.kind not in "iu" or made.dtype == np.uint64:
        raise TypeError(f"{name} must be an array of int64, not of {made.dtype}")
    if made.ndim != 1 or made.size >= 2**31:
        raise ValueError(f"{name} must have shape (n,), not {made.shape}")
    return np.array(made, np.int64)  # the journal's own


def _keys(value: object) -> Array:
    made = _whole(value, "keys")
    if made.size and made.min() <= GONE:
        raise ValueError(f"keys must be more than {GONE}, not {made.min()}")
    return made


@opens
async def open_hash_map(
    device: Device,
    capacity: int = 0,
    *,
    limit: int = 2**28,
    every: int = 64,
    **place: Unpack[Place],
) -> AsyncIterator[HashMap]:
    """Open a map from int64 to int64 on a device.

    It grows by itself. Nothing is lost by a fault: the table comes back from the last checkpoint,
    and the changes after it are made again.

    Args:
        device: the device.
        capacity: entries to have room for from the beginning.
        limit: the largest number of entries, up to 2**30.
        every: changes from one checkpoint to the next.
        **place: a place in the tree of actors.
    """
    async with serving(HashMap(device, capacity, limit=limit, every=every), **place) as running:
        yield running
