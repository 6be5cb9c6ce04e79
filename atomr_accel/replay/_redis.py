"""Journals in Redis: a stream of records, and a hash of contents (package coredis)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final

from .._errors import LibraryMissing
from .._install import install_command
from ..actors._nursery import plain
from ._storage import Record, Stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

_PAGE: Final = 1000


@final
class RedisStorage:
    """A journal in a Redis server, such as one that outlives the program's machine.

    An append is a transaction (``MULTI``). What survives a crash of the server is a matter of its
    own configuration. Keys are the name with ``:records``, ``:contents`` and ``:last`` behind it.

    Args:
        url: such as ``"redis://localhost:6379"``.
        name: the journal's name there.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url: Final = url
        self._name: Final = name
        self._client: Any = None
        self._first = 1

    def __repr__(self) -> str:
        return f"RedisStorage({self._url!r}, {self._name!r})"

    @asynccontextmanager
    async def open(self, *, create: bool) -> AsyncIterator[None]:
        """Connect, for the length of a block; see ``Storage.open``.

        Raises:
            LibraryMissing: package coredis is not installed.
        """
        try:
            from coredis import Redis
        except ImportError as error:
            raise LibraryMissing(
                f"journals in Redis need package coredis: {install_command('redis')}",
                library="coredis",
            ) from error
        try:
            async with Redis.from_url(self._url) as client:
                there = bool(await client.exists([self._key("records")]))
                if create and there:
                    raise FileExistsError(f"there is a journal {self._name!r} in Redis already")
                if not create and not there:
                    raise FileNotFoundError(f"there is no journal {self._name!r} in Redis")
                self._client = client
                try:
                    yield
                finally:
                    self._client = None
        except BaseExceptionGroup as group:  # the client has a nursery
            raise plain(group) from None

    async def append(
        self, records: Sequence[Stored], contents: Mapping[bytes, bytes], first: int
    ) -> None:
        """Add records and contents in one transaction; see ``Storage.append``."""
        client = self._client
        stream, kept, last = map(self._key, ("records", "contents", "last"))
        gone: list[bytes] = []
        if first > 1:
            from coredis.tokens import PureToken

            old = await client.zrange(last, 0, first - 1, sortby=PureToken.BYSCORE)
            used = {key for each in records for key in each.contents}
            gone = [key for key in old if key not in used]
        async with client.pipeline(transaction=True) as pipe:
            for key, data in contents.items():
                pipe.hsetnx(kept, key, data)
            for (number, before, digest, data), keys in records:
                fields = {b"before": before, b"digest": digest, b"data": data}
                pipe.xadd(stream, field_values=fields, identifier=f"{number + 1}-0")
                if keys:
                    pipe.zadd(last, dict.fromkeys(keys, number))
            if first > self._first:
                pipe.xdel(stream, [f"{number + 1}-0" for number in range(self._first, first)])
            if gone:
                pipe.hdel(kept, gone)
                pipe.zrem(last, gone)
        self._first = max(self._first, first)

    async def records(self) -> list[Record]:
        """All records, in their order; see ``Storage.records``."""
        client = self._client
        found: list[Record] = []
        start = "-"
        while True:
            page = await client.xrange(self._key("records"), start=start, end="+", count=_PAGE)
            for entry in page:
                identifier, fields = entry.identifier, entry.field_values
                number = int(bytes(identifier).partition(b"-")[0]) - 1
                found.append(Record(number, fields[b"before"], fields[b"digest"], fields[b"data"]))
            if len(page) < _PAGE:
                break
            start = f"({number + 1}-0"
        return found

    async def content(self, key: bytes) -> bytes | None:
        """The array of a hash, if it is there."""
        client = self._client
        found: bytes | None = await client.hget(self._key("contents"), key)
        return found

    def _key(self, what: str) -> str:
        return f"{self._name}:{what}"
