"""Caches of embeddings: each is computed once, and those that are asked for often are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack, final

import numpy as np
import trio

from .. import Device
from .._dtypes import number_kind
from .._errors import check_awaitable, said_of
from ..actors import Message, Place, Service, handler, serving
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..arrays import GpuRef
from ..patterns import Closed, Retry
from ..wire.options import count, real

if TYPE_CHECKING:
    from theine_core import TlfuCore

_MOST: Final = 1 << 30
"""Values of a cache; the policy needs memory for their number at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingCacheStatistics:
    """Statistics of an embedding cache, at one moment.

    Attributes:
        entries: values that are kept.
        hits: calls that were answered at once.
        joined: calls that waited for a computation which another had begun.
        computed: computations that were begun.
        failed: computations that raised.
        evicted: values that made room for others.
        expired: values that became too old.
        stale: values of the device that a fault took.
        waiting: calls that wait for a computation.
    """

    entries: int
    hits: int
    joined: int
    computed: int
    failed: int
    evicted: int
    expired: int
    stale: int
    waiting: int


class GetEmbedding(Message[Any]):
    """A call by message; see `EmbeddingCache`."""

    key: Any


@dataclass(slots=True)
class _KeptValue:
    """A value, the moment it was made, and its number in the policy."""

    value: Any
    made: float
    number: int


class _Computing:
    """A computation, and those that wait for it."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.result: Any = None
        self.waiting = 0


_within: ContextVar[tuple[_Computing, ...]] = ContextVar("_within", default=())
"""Computations that this task is a part of, which must not wait for themselves."""


@final
class EmbeddingCache(Service, metaclass=NoPublicConstructor):
    """Computed values by key, as `open_embedding_cache` returns it.

    ``await cache(key)`` returns the value of a key: an array that cannot be written to, or a buffer
    of the cache's device, which all callers share and must not write to.

    Computations belong to the cache. Each goes on while any caller waits for it, and is cancelled
    when none does. If it raises, all that wait get the error, and nothing is kept.

    Raises:
        TypeError: the key cannot be hashed, or the function returned something else.
        ValueError: the function returned a buffer of another device.
        RuntimeError: the value of a key needs itself.
    """

    _made_by = "open_embedding_cache"

    def __init__(
        self,
        compute: Callable[[Any], Awaitable[Any]],
        policy: TlfuCore,
        spread: Callable[[int], int],
        ttl: float | None,
        device: Device | None,
    ) -> None:
        self._compute = compute
        self._policy = policy
        self._spread = spread
        self._ttl = ttl
        self._device = device
        self._retry = Retry(attempts=5)
        self._kept: dict[Hashable, _KeptValue] = {}  # the oldest first
        self._keys: dict[int, Hashable] = {}
        self._computing: dict[Hashable, _Computing] = {}
        self._running: set[_Computing] = set()  # with those whose keys were forgotten meanwhile
        self._nursery: trio.Nursery | None = None
        names = ("hits", "joined", "computed", "failed", "evicted", "expired", "stale")
        self._counts = dict.fromkeys(names, 0)

    def __len__(self) -> int:
        self._expire()
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        self._expire()
        return key in self._kept and not self._is_stale(self._kept[key].value)

    async def __call__(self, key: Hashable) -> Any:
        """Return the value of a key."""
        await trio.lowlevel.checkpoint()
        _check_key(key)
        found = self._found(key)
        if found is not None:
            return found.value
        while (computing := self._computing.get(key)) and computing.scope.cancel_called:
            await computing.done.wait()
        if computing is None:
            computing = self._begin(key)
        elif computing in _within.get():
            raise RuntimeError(f"the value of a key must not need itself, as that of {key!r} does")
        else:
            self._counts["joined"] += 1
        computing.waiting += 1
        try:
            await computing.done.wait()
        finally:
            computing.waiting -= 1
            if not computing.waiting:
                computing.scope.cancel()
        if computing.result is None:
            raise Closed("the cache's block was left, or the cache is started again")
        if isinstance(computing.result, Exception):
            raise computing.result
        return computing.result

    async def get_many(self, keys: Iterable[Hashable]) -> list[Any]:
        """Return the values of several keys, computed side by side where they are missing.

        Raises:
            TypeError, Closed: as a call.
            BaseException: what the first failing computation raised; callers of their own get
                theirs.
        """
        wanted = list(keys)
        for key in wanted:
            _check_key(key)
        found: dict[int, Any] = {}
        failed: list[Exception] = []

        async def get(at: int, key: Hashable, scope: trio.CancelScope) -> None:
            try:
                found[at] = await self(key)
            except Exception as error:  # noqa: BLE001 (raised below)
                failed.append(error)
                scope.cancel()

        await trio.lowlevel.checkpoint()
        async with PlainNursery() as nursery:
            for at, key in enumerate(wanted):
                nursery.start_soon(get, at, key, nursery.cancel_scope)
        if failed:
            raise failed[0]
        return [found[at] for at in range(len(wanted))]

    async def forget(self, key: Hashable) -> bool:
        """Forget the value of a key. Later calls compute it anew.

        One that is being computed goes to those that wait for it, and is not kept.

        Returns:
            Whether there was one.
        """
        await trio.lowlevel.checkpoint()
        _check_key(key)
        self._expire()
        self._computing.pop(key, None)
        return self._drop(key)

    async def clear(self) -> None:
        """Forget all values, as `forget` does."""
        await trio.lowlevel.checkpoint()
        self._computing.clear()
        for key in tuple(self._kept):
            self._drop(key)

    # --- what is kept -----------------------------------------------------------------------

    def _found(self, key: Hashable) -> _KeptValue | None:
        self._expire()
        kept = self._kept.get(key)
        if kept is None:
            return None
        if self._is_stale(kept.value):
            self._counts["stale"] += 1
            self._drop(key)
            return None
        self._policy.access([kept.number])
        self._counts["hits"] += 1
        return kept

    def _is_stale(self, value: Any) -> bool:
        return isinstance(value, GpuRef) and value.is_stale

    def _expire(self) -> None:
        """Forget values that are too old. All live equally long, so these are the first ones."""
        if self._ttl is None:
            return
        now = trio.current_time()
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if now - kept.made < self._ttl:
                return
            self._counts["expired"] += 1
            self._drop(key)

    def _keep(self, key: Hashable, value: Any) -> None:
        self._expire()
        self._drop(key)
        number = self._spread(hash(key))
        while number in self._keys:  # another key with this hash
            number = (number + 1) % 2**64
        self._keys[number] = key
        self._kept[key] = _KeptValue(value, trio.current_time(), number)
        for gone in self._policy.set([(number, 0)]):
            self._counts["evicted"] += 1
            del self._kept[self._keys.pop(gone)]

    def _drop(self, key: Hashable) -> bool:
        kept = self._kept.pop(key, None)
        if kept is None:
            return False
        del self._keys[kept.number]
        self._policy.remove(kept.number)
        return True

    # --- computations -----------------------------------------------------------------------

    def _begin(self, key: Hashable) -> _Computing:
        if self._nursery is None:
            raise Closed("the cache's block was left, or the cache is started again")
        computing = self._computing[key] = _Computing()
        self._running.add(computing)
        self._counts["computed"] += 1
        self._nursery.start_soon(self._run, key, computing)
        return computing

    async def _run(self, key: Hashable, computing: _Computing) -> None:
        _within.set((*_within.get(), computing))
        try:
            with computing.scope:
                try:
                    value = await self._retry(self._value, key)
                except Exception as error:  # noqa: BLE001 (its callers get it)
                    self._counts["failed"] += 1
                    computing.result = error
                else:
                    computing.result = value
                    if self._computing.get(key) is computing:
                        self._keep(key, value)
        finally:
            self._running.discard(computing)
            if self._computing.get(key) is computing:
                del self._computing[key]
            computing.done.set()

    async def _value(self, key: Hashable) -> Any:
        awaitable = self._compute(key)
        check_awaitable("compute", awaitable)
        made = await awaitable
        if isinstance(made, GpuRef):
            if self._device is None:
                raise TypeError(
                    "the function must return an array, not a buffer, for a cache on the host; "
                    "give device=..."
                )
            if made.block.memory is not self._device.core.memory:
                raise ValueError(
                    f"the function must return a buffer of the cache's device, not of {made.device}"
                )
            return made
        array = np.asarray(made)
        if number_kind(array.dtype) not in "biufc":
            raise TypeError(f"the function must return an array of numbers, not {said_of(made)}")
        if self._device is not None:
            return await self._device.put(array)
        array = array.copy()
        array.setflags(write=False)
        return array

    # --- the service ------------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Compute until the block is left."""
        async with PlainNursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None  # in the block: past its end the nursery refuses tasks

    async def call(self, item: Any, **options: Any) -> Any:
        """Return the value of the key of a `Call`."""
        return await self(item, **options)

    async def finish(self) -> None:
        """Wait for the computations in progress, and begin no more."""
        self._nursery = None
        await trio.lowlevel.checkpoint()
        while self._running:
            await next(iter(self._running)).done.wait()

    def ended(self, cause: BaseException | None) -> None:  # noqa: ARG002 (callers get `Closed`)
        """Begin no more computations, and let go of all values."""
        self._nursery = None
        for key in tuple(self._kept):
            self._drop(key)

    def depth(self) -> int:
        """Calls that wait for a computation."""
        return sum(each.waiting for each in self._running)

    def statistics(self) -> EmbeddingCacheStatistics:
        """Return the statistics of this moment."""
        return EmbeddingCacheStatistics(
            entries=len(self._kept), waiting=self.depth(), **self._counts
        )

    @handler
    async def _on_get(self, message: GetEmbedding) -> Any:
        return await self(message.key)


def _check_key(key: Any) -> None:
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(f"a key must be hashable, not {said_of(key)}") from error


@opens
async def open_embedding_cache(
    compute: Callable[[Any], Awaitable[Any]],
    *,
    size: int,
    ttl: float | None = None,
    device: Device | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[EmbeddingCache]:
    """Open a cache of what a function computes: ``embedding = await cache(key)``.

    The policy is W-TinyLFU of ``theine``: values of rare keys do not displace those of keys that
    are often asked for. Keys are compared in full, as a dict does. A key that many ask for
    at a time is computed once.

    Args:
        compute: an async function of a key. It returns an array of any shape and dtype of numbers,
            or a buffer of ``device``. A batcher computes many keys at once:
            ``async with open_batcher(embed) as batcher, open_embedding_cache(batcher, size=...)``.
            If a fault of the device interrupts it, it is called again.
        size: the number of values to keep, up to ``2**30``.
        ttl: seconds for which a value is kept, on trio's clock; no limit by default.
        device: keeps values in its memory. Values that a fault takes are computed again when they
            are asked for. By default values are arrays of the host.
        **place: ``system=``, ``name=`` and ``parent=``, which make the cache an actor. It answers
            `GetEmbedding`.

    Raises:
        ModuleNotFoundError: ``theine`` is not installed; the extra ``agents`` has it.
    """
    if not callable(compute):
        raise TypeError(f"compute must be an async function of a key, not {compute!r}")
    most = count(size, "size", most=_MOST)
    lifetime = None if ttl is None else real(ttl, "ttl", least=0)
    if lifetime == 0:
        raise ValueError("ttl must be above 0 seconds, not 0; leave it out for no limit")
    if device is not None:
        check_instance("device", device, Device)
    from theine_core import TlfuCore, spread

    cache: EmbeddingCache = EmbeddingCache.construct(
        compute, TlfuCore(most), spread, lifetime, device
    )
    async with serving(cache, **place):
        yield cache
