"""Journals in databases whose calls wait: each is made in a worker thread, one after the other."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from .._errors import OutOfMemory
from ..device.data.in_turn import InTurn
from ._storage import JournalError

_UNMAKING: Final = 2.0
"""Limit in seconds for removing a journal after its creation was cancelled."""

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ._storage import Record, Stored

T = TypeVar("T")


class ThreadedStorage:
    """A ``Storage`` of functions that wait. Those that begin with ``_`` run in a thread."""

    def __init__(self) -> None:
        self._turns: Final = InTurn()
        self._connection: Any = None

    @asynccontextmanager
    async def open(self, *, create: bool) -> AsyncIterator[None]:
        """Open the journal, for the length of a block; see ``Storage.open``."""
        made = False
        try:
            await self._reach()
            await self._in_thread(self._create if create else self._open)
            made = create
            await trio.lowlevel.checkpoint_if_cancelled()  # which threads do not notice
        except OutOfMemory as error:  # nothing was begun
            raise JournalError(f"the journal cannot be opened: {error}") from error
        except BaseException:
            await self._end(unmake=made)
            raise
        try:
            yield
        finally:
            await self._end()

    async def _end(self, *, unmake: bool = False) -> None:
        with trio.CancelScope(shield=True):
            if unmake:
                with trio.move_on_after(_UNMAKING):
                    await self._in_thread(self._unmake)
            await self._in_thread(self._close)

    async def append(
        self, records: Sequence[Stored], contents: Mapping[bytes, bytes], first: int
    ) -> None:
        """Add records and contents in one transaction; see ``Storage.append``."""
        await self._in_thread(self._append, records, contents, first)

    async def records(self) -> list[Record]:
        """All records, in their order; see ``Storage.records``."""
        return await self._in_thread(self._records)

    async def content(self, key: bytes) -> bytes | None:
        """Return the array of a hash, or None."""
        return await self._in_thread(self._content, key)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await self._turns.run(function, *args)

    async def _reach(self) -> None:
        """Connect, if that is needed; it may be cancelled."""

    @abstractmethod
    def _create(self) -> None: ...

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _append(
        self, records: Sequence[Stored], contents: Mapping[bytes, bytes], first: int
    ) -> None: ...

    @abstractmethod
    def _records(self) -> list[Record]: ...

    @abstractmethod
    def _content(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def _unmake(self) -> None: ...

    def _opened(self) -> Any:
        if self._connection is None:
            raise JournalError(f"{self!r} is used outside of the block of its open()")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
