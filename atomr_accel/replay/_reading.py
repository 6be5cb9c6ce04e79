"""Reading journals: entries, checked and put together call by call."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from .._dtypes import DTYPES
from .._errors import Unsupported, said_of
from ..actors.blocks import opens
from ._checks import check
from ._describe import digest
from ._entries import (
    SCHEMA,
    ArrayValue,
    Brought,
    CallEntry,
    ContentEntry,
    DoneEntry,
    DroppedEntry,
    End,
    Entry,
    Header,
    OutputEntry,
    Outside,
    decode,
)
from ._sqlite import SqliteStorage
from ._storage import JournalDamaged, JournalError, check_chain
from ._text import text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ._storage import Record, Storage


@final
@dataclass(slots=True)
class JournalCall:
    """A call of a journal, with the entries that belong to it.

    Attributes:
        call: the call.
        done: the end of the call; None if the program was killed before.
        outputs: the contents of its outputs, by their place in the call.
        brought: the buffers and facades that it uses and that no call made.
        dropped: buffers that were dropped before it.
        overlapped: whether other calls were under way at the same time.
    """

    call: CallEntry
    done: DoneEntry | None = None
    outputs: dict[str, ArrayValue] = field(default_factory=dict)
    brought: list[Outside | Brought] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    overlapped: bool = False

    def __str__(self) -> str:
        return text_of(self.call, self.done)


@final
class Recorded:
    """A journal that was read. Made by ``read_journal``.

    Attributes:
        backend: the backend of the recorded device.
        complete: whether it was closed; otherwise its program was killed, or could not write.
        first: the number of the first call that is kept; above 1 if older ones were dropped.
        calls: its calls, in the program's order.
    """

    def __init__(self, storage: Storage, entries: list[Any]) -> None:
        header = entries[0]
        self._storage: Final = storage
        self.header: Final[Header] = header
        self.backend: Final = header.backend
        self.complete: Final = isinstance(entries[-1], End)
        self.contents: Final[dict[int, ArrayValue]] = {}
        by_number: dict[int, JournalCall] = {}
        last = 0
        under_way: set[int] = set()
        brought: list[Outside | Brought] = []
        dropped: list[int] = []
        for entry in entries:
            if isinstance(entry, CallEntry):
                by_number[entry.number] = JournalCall(
                    entry, brought=brought, dropped=dropped, overlapped=bool(under_way)
                )
                under_way.add(entry.number)
                brought, dropped, last = [], [], entry.number
            elif isinstance(entry, Outside | Brought):
                brought.append(entry)
            elif isinstance(entry, DroppedEntry):
                dropped += entry.ids
            elif isinstance(entry, ContentEntry):
                self.contents[entry.id] = entry.array
            elif isinstance(entry, DoneEntry | OutputEntry) and entry.call in by_number:
                if isinstance(entry, DoneEntry):
                    by_number[entry.call].done = entry
                    by_number[entry.call].overlapped |= entry.call != last
                    under_way.discard(entry.call)
                else:
                    by_number[entry.call].outputs[entry.where] = entry.array
        self.calls: Final = tuple(by_number.values())
        self.first: Final = self.calls[0].call.number if self.calls else 1

    def __repr__(self) -> str:
        return f"<Recorded {len(self.calls)} calls on {self.backend}>"

    async def array(self, array: ArrayValue) -> np.ndarray[Any, Any] | None:
        """Return the content of an array, or None if only its hash is known.

        Raises:
            JournalDamaged: the content has another hash, or is missing from a journal of contents.
        """
        data = await self._storage.content(array.hash)
        if data is None:
            if self.header.contents and array.hash:
                raise JournalDamaged("the content of an array is missing", record=0)
            return None
        dtype = DTYPES[array.dtype]
        size = int(np.prod(array.shape, dtype=np.int64)) * dtype.itemsize
        if digest(data) != array.hash or len(data) != size:
            raise JournalDamaged("the content of an array is not what was written", record=0)
        return np.frombuffer(data, dtype).reshape(array.shape)


@opens
async def reading(source: str | os.PathLike[str] | Storage) -> AsyncIterator[Recorded]:
    """Open a journal for reading, for the length of a block.

    Args:
        source: the journal's file or storage.
    """
    storage = storage_of(source)
    async with storage.open(create=False):
        records = await storage.records()
        if not records:
            raise JournalError(f"{storage!r} has ended before anything was written: it is empty")
        check_chain(records[:1], dropping=False)  # before its header is trusted
        dropping = _header(storage, records).when_full == "drop"
        check_chain(records, dropping=dropping)
        yield Recorded(storage, [_decoded(record) for record in records])


def storage_of(source: str | os.PathLike[str] | Storage) -> Storage:
    """Return the storage of a journal, given as a path or a storage."""
    if isinstance(source, str) and "://" in source:
        raise Unsupported(
            f"{source!r} is a URL, and journals are files of SQLite: give a path, or "
            "RedisStorage(url, name), or PostgresStorage(url, name). Whatever has the methods of "
            "Storage is a storage"
        )
    if isinstance(source, str | os.PathLike):
        return SqliteStorage(source)
    if not hasattr(source, "records"):
        raise TypeError(f"a journal must be a path or a storage, not {said_of(source)}")
    return source


def _header(storage: Storage, records: list[Record]) -> Header:
    header = _decoded(records[0])
    if not isinstance(header, Header) or header.schema != SCHEMA:
        raise JournalError(f"{storage!r} holds no journal of version {SCHEMA}")
    return header


def _decoded(record: Record) -> Entry:
    try:
        entry = decode(record.data)
        check(entry)
        return entry
    except Exception as error:
        raise JournalDamaged(
            f"record {record.number} is not what was written", record=record.number
        ) from error


async def read_journal(source: str | os.PathLike[str] | Storage) -> list[str]:
    """Return the calls of a journal as text, one line each.

    Args:
        source: the journal's file or storage.

    Returns:
        Lines such as ``"7 blas.gemm(#1, #2, alpha=2.0) -> #3"``, where ``#1`` is a buffer.
    """
    async with reading(source) as recorded:
        return [str(recall) for recall in recorded.calls]
