"""Where journals are kept: what a storage has to do, and the chain that tells damage."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from .._errors import AccelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

DIGEST: Final = 16
"""Bytes of a record's digest."""

START: Final = b"\0" * DIGEST
"""What stands for the digest of the record before the first."""


class JournalError(AccelError):
    """A journal cannot be written, read or replayed. What the message says."""


class JournalDamaged(JournalError):
    """What is in a journal is not what was written there.

    Attributes:
        record: the number of the first record that is not; everything before it is good.
    """

    def __init__(self, message: str, *, record: int) -> None:
        super().__init__(message)
        self.record = record


class JournalFull(JournalError):
    """A journal that refuses what is beyond its bounds has reached them; nothing was called."""


class Record(NamedTuple):
    """One entry as it is stored.

    Attributes:
        number: from 0 on, without gaps.
        before: the digest of the record before it.
        digest: of ``before``, the number and the data; see ``digest_of``.
        data: the entry, in msgpack.
    """

    number: int
    before: bytes
    digest: bytes
    data: bytes


class Stored(NamedTuple):
    """A record beside what only its storage goes by.

    Attributes:
        record: the record.
        contents: hashes of the arrays that it refers to.
    """

    record: Record
    contents: tuple[bytes, ...]


def check_name(name: str) -> str:
    """The name of a journal in a database.

    Raises:
        TypeError, ValueError: it is no text, or none that UTF-8 has a form for.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"name must be text without lone surrogates, not {name!r}") from None
    return name


def digest_of(before: bytes, number: int, data: bytes) -> bytes:
    """The digest of a record, which depends on all records before it."""
    return hashlib.blake2b(
        before + number.to_bytes(8, "little") + data, digest_size=DIGEST
    ).digest()


class Storage(Protocol):
    """Keeps one journal: records in their order, and arrays by their hashes.

    Its methods are called one at a time, and never block trio's thread. What they raise, such as
    ``OSError`` where a disk is full, ends the journal; the program goes on. Those that wait for
    others, such as a server, end soon after they are cancelled.
    """

    def open(self, *, create: bool) -> AbstractAsyncContextManager[None]:
        """Where the journal is open, for the length of a block; all the rest is called inside.

        Args:
            create: begin one where there is none; otherwise one is read that is there.

        Raises:
            FileExistsError: there is one already, and it should be made.
            FileNotFoundError: there is none, and it should be read.
            JournalError: what is there is no journal, or of another version; it cannot be
                reached; or one cannot be made.

        If it raises or is cancelled, nothing is left of a journal that was to be made.
        """

    async def append(
        self, records: Sequence[Stored], contents: Mapping[bytes, bytes], first: int
    ) -> None:
        """Add records and contents: all of it or nothing, also if the program is killed.

        Args:
            records: what is new.
            contents: arrays by their hashes; those that are there already stay as they are.
            first: what comes before the record of this number is to be forgotten, but for the
                record 0, with contents that no other record refers to.
        """

    async def records(self) -> list[Record]:
        """All records, in their order.

        Raises:
            JournalDamaged: the storage cannot be read.
        """

    async def content(self, key: bytes) -> bytes | None:
        """The array of a hash, if it is there."""


def check_chain(records: Sequence[Record], *, dropping: bool) -> None:
    """See that nothing was changed, added or taken out in the middle.

    Args:
        records: all of them.
        dropping: whether the oldest ones but for the first may have been dropped.

    Raises:
        JournalDamaged: at which record.
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
    """Whether it has the types of a record: who else writes there keeps to nothing."""
    number, *others = record
    return (
        type(number) is int
        and 0 <= number < 1 << 63
        and all(isinstance(each, bytes) for each in others)
    )
