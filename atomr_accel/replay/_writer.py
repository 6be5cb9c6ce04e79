"""A writer that runs next to the program: it keeps the order of entries, and does not block."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

import numpy as np
import trio

from ._describe import digest
from ._entries import ArrayValue, End, Entry, encode
from ._storage import START, JournalError, JournalFull, Record, Stored, digest_of

if TYPE_CHECKING:
    from ._storage import Storage

WhenFull: TypeAlias = Literal["drop", "refuse"]
"""Policy of a journal at its bounds: drop the oldest entries, or refuse further calls."""

SMALL: Final = 1 << 19
"""Limit in bytes for copying an array at once; a call waits until a larger one is written."""

_MOST_WAITING: Final = 64 << 20
"""Limit of bytes that wait to be written; above it, calls wait too."""

_MOST_ENTRIES_WAITING: Final = 4096
_MOST_AT_ONCE: Final = 1024
_ENTRY: Final = 200
"""Assumed bytes of an entry, without its arrays, while it waits."""

_GATHERING: Final = 0.01
"""Seconds in which entries are gathered before they are written, because one thread call per entry
would take longer than the calls. A killed program loses the entries of that time."""

_GRACE: Final = 10.0
"""Limit in seconds for writing the remaining entries when the block is left."""


@final
class WaitingEntry:
    """An entry that waits to be written.

    Attributes:
        entry: the entry.
        arrays: arrays in it, with their bytes, or none if they were lost.
        nbytes: its size in the count of waiting bytes.
        written: set once the writer no longer reads the program's own memory.
    """

    __slots__ = ("arrays", "entry", "nbytes", "written")

    def __init__(
        self, entry: Entry, arrays: tuple[tuple[ArrayValue, np.ndarray[Any, Any]], ...] = ()
    ) -> None:
        self.entry: Final[Entry] = entry
        self.arrays: Final[tuple[tuple[ArrayValue, np.ndarray[Any, Any]], ...]] = arrays
        self.nbytes: Final[int] = _ENTRY + sum(data.nbytes for _, data in arrays)
        self.written: Final[trio.Event] = trio.Event()


@final
class JournalWriter:
    """Writes entries, and bounds those that wait and those that are kept.

    Without ``contents`` only hashes of arrays are kept. ``most_bytes`` counts entries and arrays.

    Attributes:
        opened: set once the journal is open.
        error: the reason why writing has ended; None while it goes on.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        contents: bool,
        most_entries: int,
        most_bytes: int,
        when_full: WhenFull,
    ) -> None:
        self._storage: Final = storage
        self._contents: Final = contents
        self._most_entries: Final = most_entries
        self._most_bytes: Final = most_bytes
        self._when_full: Final = when_full
        self._waiting: Final[deque[WaitingEntry]] = deque()
        self._bytes_waiting = 0
        self._some = trio.Event()
        self._hurry = trio.Event()
        self._less: Final = trio.lowlevel.ParkingLot()
        self._closing = False
        self._scope: Final = trio.CancelScope(shield=True)
        self._number = 0
        self._before = START
        self._sizes: Final[deque[int]] = deque()  # of the records that are kept, but for the first
        self._first = 1
        self._kept_bytes = 0
        self._written = self._written_bytes = 0  # without the entries being written now
        self._kept_contents: Final[dict[bytes, tuple[int, int]]] = {}  # size, last record
        self.opened: Final = trio.Event()
        self.error: Exception | None = None

    @property
    def waiting(self) -> tuple[int, int]:
        """Entries that wait to be written, and their bytes."""
        return len(self._waiting), self._bytes_waiting

    @property
    def kept(self) -> tuple[int, int]:
        """Entries that were written, and the bytes that are kept of them."""
        return self._written, self._written_bytes

    def add(self, waiting: WaitingEntry) -> None:
        """Have an entry written; its arrays are not to be changed before they are."""
        if self.error is not None:
            waiting.written.set()
            return
        self._waiting.append(waiting)
        self._bytes_waiting += waiting.nbytes
        self._some.set()

    async def room(self) -> None:
        """Wait until few enough entries and bytes wait to be written."""
        self.require_room()
        while self.error is None and (
            self._bytes_waiting > _MOST_WAITING or len(self._waiting) > _MOST_ENTRIES_WAITING
        ):
            self._hurry.set()
            await self._less.park()

    def require_room(self) -> None:
        """Raise an error if the journal is full and refuses calls."""
        if self._when_full != "refuse" or self.error is not None:
            return
        entries = self._written + len(self._waiting)
        taken = self._written_bytes + self._bytes_waiting
        if entries >= self._most_entries or taken >= self._most_bytes:
            raise JournalFull(
                f"the journal has {entries} entries of {self._most_entries} and {taken} bytes of "
                f"{self._most_bytes}: nothing was called. Close it, or open one with more room or "
                'with when_full="drop"'
            )

    async def drained(self) -> None:
        """Wait until all that was added so far is written."""
        if self._waiting:
            await self.written(self._waiting[-1])
        else:
            await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise JournalError(f"the journal has ended early: {self.error}") from self.error

    async def written(self, waiting: WaitingEntry) -> None:
        """Wait until an entry is written, or never will be."""
        self._hurry.set()
        await waiting.written.wait()

    async def run(self) -> None:
        """Open the journal and write entries until ``close`` is called, even if cancelled.

        Only ``close`` ends this task. Its owner therefore starts it by ``start_soon``, waits for
        ``opened``, and always calls ``close``. A cancelled ``Nursery.start`` would leave no code to
        call it.

        Raises:
            FileExistsError: the journal already exists. Other errors of the storage's ``open`` are
                raised too.
        """
        with self._scope:  # around the storage too, which may have its own tasks
            async with self._storage.open(create=True):
                self.opened.set()
                while not self._closing or self._waiting:
                    if not self._waiting:
                        self._some = trio.Event()
                        await self._some.wait()
                    with trio.move_on_after(0 if self._closing else _GATHERING):
                        await self._hurry.wait()
                    self._hurry = trio.Event()
                    if self._waiting:
                        await self._write()
        if self._scope.cancelled_caught:
            self._fail(TimeoutError(f"the end was not written within {_GRACE} seconds"))

    def close(self, calls: int) -> None:
        """Write the remaining entries and the end of the journal, within some seconds.

        A journal that is not open yet is not opened.
        """
        if not self.opened.is_set():
            self._scope.cancel()
            return
        self.add(WaitingEntry(End(calls)))
        self._closing = True
        self._hurry.set()
        self._scope.deadline = trio.current_time() + _GRACE
        self._some.set()

    async def _write(self) -> None:
        """Write some of the waiting entries."""
        some = [self._waiting[at] for at in range(min(len(self._waiting), _MOST_AT_ONCE))]
        try:
            records, contents = await trio.to_thread.run_sync(self._sealed, some)
            await self._storage.append(records, contents, self._first)
        except Exception as error:  # noqa: BLE001 - the journal ends, and the program goes on
            self._fail(error)
            return
        for waiting in some:
            self._waiting.popleft()
            self._bytes_waiting -= waiting.nbytes
            waiting.written.set()
        self._written, self._written_bytes = self._number, self._kept_bytes
        self._less.unpark_all()

    def _fail(self, error: Exception) -> None:
        self.error = error
        for waiting in self._waiting:
            waiting.written.set()
        self._waiting.clear()
        self._bytes_waiting = 0
        self._less.unpark_all()

    def _sealed(self, some: list[WaitingEntry]) -> tuple[list[Stored], dict[bytes, bytes]]:
        """Entries as records, and the contents that are new; in a thread."""
        records: list[Stored] = []
        contents: dict[bytes, bytes] = {}
        for waiting in some:
            keys: list[bytes] = []
            for array, data in waiting.arrays:
                raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
                array.hash = digest(raw)
                if self._contents:
                    keys.append(array.hash)
                    if array.hash not in self._kept_contents:
                        contents[array.hash] = bytes(raw)
                        self._kept_bytes += len(raw)
                    self._kept_contents[array.hash] = len(raw), self._number
            data_ = encode(waiting.entry)
            sealed = digest_of(self._before, self._number, data_)
            records.append(Stored(Record(self._number, self._before, sealed, data_), tuple(keys)))
            if self._number:
                self._sizes.append(len(data_))
                self._kept_bytes += len(data_)
            self._before, self._number = sealed, self._number + 1
        if self._when_full == "drop":
            self._drop()
            # Entries to drop at once are not written, because they would take room.
            records = [each for each in records if not 0 < each.record.number < self._first]
            contents = {key: contents[key] for key in contents.keys() & self._kept_contents.keys()}
        return records, contents

    def _drop(self) -> None:
        """Remove the oldest records beyond the limits, and contents that only they use."""
        before = self._first
        while self._sizes and (
            len(self._sizes) >= self._most_entries or self._kept_bytes > self._most_bytes
        ):
            self._kept_bytes -= self._sizes.popleft()
            self._first += 1
            if self._kept_bytes > self._most_bytes:
                self._forget_contents()
        if self._first != before:
            self._forget_contents()

    def _forget_contents(self) -> None:
        for key, (size, last) in list(self._kept_contents.items()):
            if last < self._first:
                del self._kept_contents[key]
                self._kept_bytes -= size
