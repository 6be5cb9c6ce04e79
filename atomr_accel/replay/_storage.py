"""Storages of journals: the methods that a storage needs, and the chain that reveals damage."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from .._errors import AccelError
from ..wire.options import text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

DIGEST: Final = 16
"""Bytes of a record's digest."""

START: Final = b"\0" * DIGEST
"""Digest before the first record."""


class JournalError(AccelError):
    """A journal cannot be written, read or replayed. The message says why."""


class JournalDamaged(JournalError):
    """The data of a journal has changed since it was written.

    Attributes:
        record: the number of the first damaged record; all records before it are good.
    """

    def __init__(self, message: str, *, record: int) -> None:
        super().__init__(message)
        self.record = record


class JournalFull(JournalError):
    """A journal with ``when_full="refuse"`` has reached its bounds; the call did nothing."""


class Record(NamedTuple):
    """One stored entry.

    Attributes:
        number: its number, from 0 without gaps.
        before: the digest of the record before it.
        digest: the digest of ``before``, the number and the data; see ``digest_of``.
        data: the entry, in msgpack.
    """

    number: int
    before: bytes
    digest: bytes
    data: bytes


class Stored(NamedTuple):
    """A record, with data that only its storage uses.

    Attributes:
        record: the record.
        contents: the hashes of the arrays that it refers to.
    """

    record: Record
    contents: tuple[bytes, ...]


def check_name(name: str) -> str:
    """Check the name of a journal in a database, and return it."""
    return text(name, "name")


def digest_of(before: bytes, number: int, data: bytes) -> bytes:
    """Return the digest of a record, which depends on all records before it."""
    return hashlib.blake2b(
        before + number.to_bytes(8, "little") + data, digest_size=DIGEST
    ).digest()


class Storage(Protocol):
    """Keeps one journal: records in their order, and arrays by their hashes.

    Its methods are called one at a time, and never block trio's thread. An error that they raise,
    such as ``OSError`` for a full disk, ends the journal; the program goes on. Methods that wait
    for a server end soon after they are cancelled.
    """

    def open(self, *, create: bool) -> AbstractAsyncContextManager[None]:
        """Open the journal for the length of a block; the other methods are called inside.

        If creation fails or is cancelled, no part of a new journal is left.

        Args:
            create: whether to create a new journal, or to read an existing one.

        Raises:
            FileExistsError: the journal to be created already exists.
            FileNotFoundError: the journal to be read does not exist.
            JournalError: the storage holds other data or another version; it cannot be reached; or
                the journal cannot be created.
        """

    async def append(
        self, records: Sequence[Stored], contents: Mapping[bytes, bytes], first: int
    ) -> None:
        """Add records and contents in one transaction, also if the program is killed.

        Args:
            records: the new records.
            contents: new arrays by their hashes; existing ones stay unchanged.
            first: the number of the first record to keep. Earlier ones are removed, except record
                0, with contents that no other record refers to.
        """

    async def records(self) -> list[Record]:
        """All records, in their order.

        Raises:
            JournalDamaged: the storage cannot be read.
        """

    async def content(self, key: bytes) -> bytes | None:
        """Return the array of a hash, or None."""


def check_chain(records: Sequence[Record], *, dropping: bool) -> None:
    """See that nothing was changed, added or taken out in the middle.

    Args:
        records: all of them.
        dropping: whether the oldest ones but for the first may have been dropped.
    """
    before, number = START, 0
    for at, record in enumerate(records):
        if not _is_record(record):
            raise JournalDamaged(f"record {number} is not what was written", record=number)
        if dropping and at == 1:
            before, number = record.before, record.number
        if record.number != number:
            raise JournalDamaged(
                f"record {number} is missing: {record.number} is in its place", record=number
            )
        if record.before != before or record.digest != digest_of(before, number, record.data):
            raise JournalDamaged(f"record {number} is not what was written", record=number)
        before, number = record.digest, number + 1


def _is_record(record: Record) -> bool:
    """Return True if it has the types of a record, which other writers may not respect."""
    number, *others = record
    return (
        type(number) is int
        and 0 <= number < 1 << 63
        and all(isinstance(each, bytes) for each in others)
    )
