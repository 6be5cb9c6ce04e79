"""Journals in Redis: a stream of records, and a hash of contents (package coredis)."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .._errors import LibraryMissing
from .._install import install_command
from ..actors.nursery import plain
from ._storage import JournalDamaged, JournalError, Record, Stored, check_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

_PAGE: Final = 1000

_SCHEMES: Final = ("redis", "rediss", "unix")

_CLAIM: Final = """
    if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
    redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '$', 'MKSTREAM')
    return 1
"""
"""Makes a stream without entries. The name of its consumer group shows which program made it."""

_UNMAKE: Final = """
    if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('XLEN', KEYS[1]) > 0 then return 0 end
    if redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1]) == 1 then redis.call('DEL', KEYS[1]) end
    return 1
"""

_UNMAKING: Final = 2.0
"""Limit in seconds for removing a journal after its creation was cancelled."""


@final
class RedisStorage:
    """A journal in a Redis server, such as one that outlives the program's machine.

    An append is a transaction (``MULTI``). What survives a crash of the server is a matter of its
    own configuration. Keys are the name with ``:records``, ``:contents`` and ``:last`` behind it.

    Args:
        url: such as ``"redis://localhost:6379"``.
        name: the journal's name there.

    Raises:
        ValueError: a URL of another kind, or a name that UTF-8 has no form for.
    """

    def __init__(self, url: str, name: str) -> None:
        scheme, _, rest = url.partition("://")
        if scheme not in _SCHEMES or not rest:
            raise ValueError(f"url must begin with redis://, rediss:// or unix://, not {url!r}")
        self._url: Final = url
        self._name: Final = check_name(name)
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
        body: BaseException | None = None
        try:
            async with Redis.from_url(self._url) as client:
                if create:
                    await self._claim(client)
                elif not await client.exists([self._key("records")]):
                    raise FileNotFoundError(f"there is no journal {self._name!r} in Redis")
                self._client = client
                try:
                    yield
                except BaseException as raised:
                    body = raised
                    raise
                finally:
                    self._client = None
        except BaseException as raised:  # in a group, since the client has a nursery
            failure = plain(raised) if isinstance(raised, BaseExceptionGroup) else raised
            if failure is raised is body:
                raise
            with nullcontext() if failure is body else self._errors_told("opened"):
                raise failure from failure.__cause__

    async def _claim(self, client: Any) -> None:
        """Make the stream, unless it exists."""
        stream, token = self._key("records"), uuid.uuid4().hex
        try:
            made = await client.eval(_CLAIM, [stream], [token])
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:  # which may have come before the answer
            await self._unmake(stream, token)
            raise
        if not made:
            raise FileExistsError(f"there is a journal {self._name!r} in Redis already")

    async def _unmake(self, stream: str, token: str) -> None:
        from coredis import Redis

        # With a separate client, because the other one has been cancelled too.
        with trio.move_on_after(_UNMAKING, shield=True):
            try:
                async with Redis.from_url(self._url) as client:
                    await client.eval(_UNMAKE, [stream], [token])
            except Exception:  # noqa: BLE001, S110 - the server has gone
                pass

    @contextmanager
    def _errors_told(self, what: str) -> Iterator[None]:
        from coredis.exceptions import RedisError

        try:
            yield
        except (FileExistsError, FileNotFoundError):
            raise
        except (RedisError, OSError, ValueError) as error:
            why = f"the journal {self._name!r} cannot be {what} in Redis: {error}"
            raise JournalError(why) from error

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
        with self._errors_told("read"):
            while True:
                page = await client.xrange(self._key("records"), start=start, end="+", count=_PAGE)
                found += [self._record(entry, len(found)) for entry in page]
                if len(page) < _PAGE:
                    return found
                start = f"({found[-1].number + 1}-0"

    def _record(self, entry: Any, place: int) -> Record:
        number, _, more = bytes(entry.identifier).partition(b"-")
        fields = entry.field_values
        if fields.keys() != {b"before", b"digest", b"data"} or more != b"0":
            raise JournalDamaged(
                f"entry {place} of the stream {self._key('records')!r} is no record", record=place
            )
        return Record(int(number) - 1, fields[b"before"], fields[b"digest"], fields[b"data"])

    async def content(self, key: bytes) -> bytes | None:
        """Return the array of a hash, or None."""
        with self._errors_told("read"):
            found: bytes | None = await self._client.hget(self._key("contents"), key)
        return found

    def _key(self, what: str) -> str:
        return f"{self._name}:{what}"
