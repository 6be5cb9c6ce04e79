"""``open_journal``: records a program's calls to a device as they happen."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, final, get_args

from .. import __version__
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..wire.options import count
from ._entries import SCHEMA, Header
from ._notes import Notes
from ._reading import storage_of
from ._storage import JournalError
from ._writer import JournalWriter, WaitingEntry, WhenFull

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..device import Device
    from ._storage import Storage


@final
class Journal:
    """A journal that is being written. Made by ``open_journal``."""

    def __init__(self, writer: JournalWriter, notes: Notes) -> None:
        self._writer: Final = writer
        self._notes: Final = notes

    def __repr__(self) -> str:
        return f"<Journal at {self.position}>"

    @property
    def position(self) -> int:
        """Number of the last recorded call; 0 before the first."""
        return self._notes.position

    @property
    def error(self) -> Exception | None:
        """Why nothing is written any more, such as a full disk; None if all is well."""
        return self._writer.error

    async def flush(self) -> None:
        """Wait until all that was noted so far is stored.

        Raises:
            JournalError: it cannot be.
        """
        await self._notes.settled()
        await self._writer.drained()


@opens
def open_journal(
    device: Device,
    path: str | os.PathLike[str] | Storage,
    *,
    contents: bool = False,
    results: bool = False,
    most_entries: int = 1_000_000,
    most_bytes: int = 4 << 30,
    when_full: WhenFull = "refuse",
) -> AsyncIterator[Journal]:
    """Record the calls of a device for the length of a block.

    ::

        async with open_journal(device, "run.journal") as journal:
            ...

    Every public call of any task is recorded, including those in batches, in recordings and by
    requests. An entry has the method, its arguments, the state of a generator, and the outcome.
    Results of ``get`` are recorded by their hash. ``replay`` makes the calls again and compares.

    A thread writes the journal in transactions, and calls wait only if it is far behind. If the
    program is killed, its journal can be read up to the last moments. If the journal cannot be
    written, as on a full disk, it ends there, and the program goes on.

    Args:
        device: the device to record. It has at most one journal at a time.
        path: a new file for SQLite, or another storage.
        contents: whether to keep the arrays that the program passes and gets, and not only their
            hashes (BLAKE2b). Without them, a replay needs the arrays from elsewhere.
        results: whether to record the outputs of every op right after it. They are copied on the
            device and fetched in the background, which takes memory and time.
        most_entries: the most entries it may have. A call takes two or three, and the last call is
            recorded completely.
        most_bytes: the most bytes that entries and arrays may take.
        when_full: ``"refuse"`` further calls, which raise ``JournalFull`` and do nothing; or
            ``"drop"`` the oldest entries. Then a replay covers only the calls for which the kept
            entries suffice.

    Returns:
        A context manager. Leaving its block waits at most ten seconds until everything is written.

    Raises:
        JournalError: the device already has a journal; or the file cannot be created, as on a full
            disk, and is not left behind. Leaving the block also raises it if writing has failed and
            the block itself raises no error.
        FileExistsError: a journal of this name exists.
        Unsupported: ``path`` is a URL. Pass a ``RedisStorage`` or ``PostgresStorage`` for a
            database.
        TypeError, ValueError: a bound is not a positive whole number, or ``when_full`` is another
            word.
    """
    most_entries, most_bytes = count(most_entries, "most_entries"), count(most_bytes, "most_bytes")
    if when_full not in get_args(WhenFull):
        raise ValueError(f'when_full must be "refuse" or "drop", not {when_full!r}')
    storage = storage_of(path)
    writer = JournalWriter(
        storage,
        contents=contents,
        most_entries=most_entries,
        most_bytes=most_bytes,
        when_full=when_full,
    )
    header = Header(
        SCHEMA,
        __version__,
        device.backend,
        device.name,
        contents,
        results,
        when_full,
        _paths(),
    )
    return _opened(device, writer, header)


def _paths() -> tuple[str, ...]:
    """Return the module search paths of this program, absolute, for programs in other folders."""
    paths = [os.fsdecode(each) for each in sys.path]
    try:
        return tuple(map(os.path.abspath, paths))
    except OSError:  # the working folder is gone, so relative paths have no base
        return tuple(each for each in paths if Path(each).is_absolute())


async def _opened(device: Device, writer: JournalWriter, header: Header) -> AsyncIterator[Journal]:
    core = device.core
    if core.recorder is not None:
        raise JournalError(f"{device.name} has a journal already; it has one at a time")
    async with PlainNursery() as nursery:
        writer.add(WaitingEntry(header))
        nursery.start_soon(writer.run, name="journal")
        calls = 0
        try:
            await writer.opened.wait()
            async with PlainNursery() as fetching:
                notes = Notes(core, writer, fetching, results=header.results)
                core.recorder = notes
                try:
                    yield Journal(writer, notes)
                    await notes.settled()
                finally:
                    core.recorder = None
                    notes.open = False
                    fetching.cancel_scope.cancel()
                    calls = notes.position
        finally:
            writer.close(calls)
    if writer.error is not None:
        raise JournalError(
            f"the journal has ended early, at {type(writer.error).__name__}: {writer.error}"
        ) from writer.error
