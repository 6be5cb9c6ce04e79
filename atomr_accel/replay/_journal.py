"""``open_journal``: records a program's calls to a device as they happen."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack, final, get_args

from .. import __version__
from ..actors import Place, Service, serving
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.service import in_place
from ..actors.util import check_instance, describe
from ..device import Device
from ..wire.options import count, flag
from ._entries import SCHEMA, Header
from ._notes import Notes
from ._reading import storage_of
from ._storage import JournalError
from ._writer import JournalWriter, WaitingEntry, WhenFull

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..device.core import DeviceCore
    from ._storage import Storage


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """A journal at one moment.

    Attributes:
        position: the number of the last recorded call; 0 before the first.
        waiting: entries that wait to be written.
        waiting_bytes: bytes that these take in memory.
        entries: entries that were written.
        entry_bytes: bytes that are kept of them, with their arrays.
        copies: outputs that are on their way from the device.
        error: why nothing is written any more; None if all is well.
    """

    position: int
    waiting: int
    waiting_bytes: int
    entries: int
    entry_bytes: int
    copies: int
    error: str | None


@final
class Journal(Service):
    """A journal that is being written. Made by ``open_journal``.

    It is an actor of its device's system. A restart by its supervisor does not interrupt it: it
    goes on with the same file. If it is stopped, no further calls are recorded.
    """

    def __init__(self, core: DeviceCore, writer: JournalWriter, notes: Notes) -> None:
        self._core: Final = core
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

    def statistics(self) -> JournalStatistics:
        """Return the statistics of this moment."""
        (waiting, waiting_bytes), (entries, entry_bytes) = self._writer.waiting, self._writer.kept
        return JournalStatistics(
            position=self.position,
            waiting=waiting,
            waiting_bytes=waiting_bytes,
            entries=entries,
            entry_bytes=entry_bytes,
            copies=self._notes.copies,
            error=None if self.error is None else describe(self.error),
        )

    def depth(self) -> int:
        """Entries that wait to be written, and outputs on their way from the device."""
        return self._writer.waiting[0] + self._notes.copies

    async def finish(self) -> None:
        """Wait until the outputs of all recorded calls have arrived."""
        await self._notes.settled()

    def ended(self, cause: BaseException | None) -> None:  # noqa: ARG002 (of no interest here)
        """Record no more calls."""
        self._notes.open = False
        if self._core.recorder is self._notes:
            self._core.recorder = None

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
    **place: Unpack[Place],
) -> AsyncIterator[Journal]:
    """Record the calls of a device for the length of a block.

    ::

        async with open_journal(device, "run.journal") as journal:
            ...

    Every public call of any task is recorded, including those in batches, in recordings and by
    requests. An entry has the method, its arguments, the state of a generator, and the outcome.
    Results of ``get`` are recorded by their hash. ``replay_journal`` makes the calls again and
    compares.

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
        **place: ``system=``, ``name=`` and ``parent=``: the journal's place in a tree of actors. By
            default it is ``/journal-1``, or a later number, in the device's system.

    Returns:
        A context manager. Leaving its block waits at most ten seconds until everything is written.

    Raises:
        JournalError: the device already has a journal; or the file cannot be created, as on a full
            disk, and is not left behind. Leaving the block also raises it if writing has failed and
            the block itself raises no error.
        FileExistsError: a journal of this name exists.
        Unsupported: ``path`` is a URL. Pass a ``RedisStorage`` or ``PostgresStorage`` for a
            database.
        TypeError, ValueError: a bound is not a positive whole number, ``contents`` or ``results``
            is not a bool, or ``when_full`` is another word.
    """
    most_entries, most_bytes = count(most_entries, "most_entries"), count(most_bytes, "most_bytes")
    if when_full not in get_args(WhenFull):
        raise ValueError(f'when_full must be "refuse" or "drop", not {when_full!r}')
    contents, results = flag(contents, "contents"), flag(results, "results")
    check_instance("device", device, Device)
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
    return _opened(device, writer, header, place)


def _paths() -> tuple[str, ...]:
    """Return the module search paths of this program, absolute, for programs in other folders."""
    paths = [os.fsdecode(each) for each in sys.path]
    try:
        return tuple(map(os.path.abspath, paths))
    except OSError:  # the working folder is gone, so relative paths have no base
        return tuple(each for each in paths if Path(each).is_absolute())


async def _opened(
    device: Device, writer: JournalWriter, header: Header, place: Place
) -> AsyncIterator[Journal]:
    core = device.core
    if core.recorder is not None:
        raise JournalError(f"{device.name} has a journal already; it has one at a time")
    async with PlainNursery() as nursery:
        calls = 0
        try:
            async with PlainNursery() as fetching:
                notes = Notes(core, writer, fetching, results=header.results)
                journal = Journal(core, writer, notes)
                try:
                    async with serving(journal, **in_place(place, device.system)):
                        writer.add(WaitingEntry(header))
                        nursery.start_soon(writer.run, name="journal")
                        await writer.opened.wait()
                        core.recorder = notes
                        yield journal
                finally:
                    fetching.cancel_scope.cancel()
                    calls = notes.position
        finally:
            writer.close(calls)
    if writer.error is not None:
        raise JournalError(
            f"the journal has ended early, at {type(writer.error).__name__}: {writer.error}"
        ) from writer.error
