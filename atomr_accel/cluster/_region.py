"""The entities of this node: the leases of their shards, their instances and their messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import trio

from ..actors import ActorStopped, MailboxFull
from ..actors.nursery import PlainNursery
from ._entity import Delivery, Entity, EntityPlace, EntitySeat, delivery
from ._errors import EntityMoved, EpochOver, StoreUnavailable, VersionConflict
from ._placement import shard_of
from ._settings import MARGIN
from ._store import read_entries

if TYPE_CHECKING:
    from ..actors import ActorRef, Message
    from ._peer import MessageTurn
    from ._settings import ClusterSettings
    from ._store import FencingStore, StoreLease

_log = logging.getLogger("atomr_accel.cluster")

SINGLETON: Final = "singleton"
"""Key of the only entity of a type."""


_TURNS: Final = 4
"""Shards that are handed over at a time."""

_QUICK: Final = 0.25
"""Seconds for which a shard with messages in progress holds up those behind it."""

_SWEEP: Final = 1.0
"""Seconds between looks for instances that had no message for long."""


@dataclass(eq=False)
class _Shard:
    number: int
    lease: StoreLease | None = None
    trusted: float = 0.0
    moving: bool = False
    leaving: bool = False
    waiting: int = 0
    in_flight: int = 0
    places: dict[tuple[str, str], EntityPlace] = field(default_factory=dict)
    changed: trio.Event = field(default_factory=trio.Event)

    def change(self) -> None:
        """Wake all who wait for another condition."""
        self.changed.set()
        self.changed = trio.Event()

    def end(self) -> None:
        """Have no lease any more: the instances count no more."""
        self.lease, self.leaving = None, True
        for place in self.places.values():
            if place.seat is not None:
                place.seat.broken = True
        self.change()

    def place(self, kind: type[Entity[Any]], key: str) -> EntityPlace:
        """Return the place of an entity."""
        place = self.places.get((kind.__name__, key))
        if place is None:
            place = self.places[kind.__name__, key] = EntityPlace(kind, key, trio.Lock())
        return place


class Region:
    """Shards of entities on this node.

    ``life`` is this run of the node, the holder of leases. Singletons run without being asked.
    ``clock`` is in seconds.

    Attributes:
        assigned: shards that this node should hold.
        handed: shards that were handed over.
        dropped: shards whose lease was lost.
    """

    def __init__(
        self,
        store: FencingStore,
        prefix: str,
        life: str,
        settings: ClusterSettings,
        kinds: dict[str, type[Entity[Any]]],
        singletons: frozenset[str],
        spawn: Callable[[type[Entity[Any]], EntitySeat], Awaitable[ActorRef]],
        clock: Callable[[], float],
    ) -> None:
        self.assigned: frozenset[int] = frozenset()
        self.handed = 0
        self.dropped = 0
        self._store = store
        self._prefix = prefix
        self._life = life
        self._settings = settings
        self._kinds = kinds
        self._singletons = singletons
        self._spawn = spawn
        self._clock = clock
        self._shards: dict[int, _Shard] = {}
        self._turns: Final = trio.Semaphore(_TURNS)
        self._swept = -math.inf
        self._orphans: list[ActorRef] = []  # instances whose lease was lost, to be stopped

    # --- what is there

    @property
    def held(self) -> dict[int, StoreLease]:
        """The leases that this node holds, by shard."""
        return {each.number: each.lease for each in self._shards.values() if each.lease is not None}

    @property
    def entities(self) -> int:
        """Number of instances."""
        places = (place for shard in self._shards.values() for place in shard.places.values())
        return sum(place.active for place in places)

    @property
    def depth(self) -> int:
        """Messages on their way."""
        return sum(shard.in_flight for shard in self._shards.values())

    def shard_key(self, number: int) -> str:
        """Return the key of a shard's lease."""
        return f"{self._prefix}/shard/{number:05d}"

    def _folder(self, kind: str, number: int) -> str:
        return f"{self._prefix}/entity/{kind}/{number:05d}/"

    def _trusts(self, shard: _Shard, lease: StoreLease | None) -> bool:
        return lease is not None and shard.lease is lease and self._clock() < shard.trusted

    # --- leases

    def assign(self, shards: Iterable[int]) -> None:
        """Set the shards that this node should hold; those that wait for others are let go."""
        self.assigned = frozenset(shards)
        for shard in [*self._shards.values()]:
            if shard.lease is None and shard.number not in self.assigned:
                del self._shards[shard.number]
                shard.leaving = True
                shard.change()

    def missing(self) -> list[int]:
        """Return the shards that are assigned and not held."""
        return sorted(self.assigned - self.held.keys())

    def surplus(self) -> list[int]:
        """Return the shards that are held, not assigned, and whose turn is not awaited."""
        return [
            shard.number
            for shard in self._shards.values()
            if shard.lease is not None and not shard.moving
            if shard.number not in self.assigned
        ]

    async def acquire(self, nursery: trio.Nursery) -> None:
        """Take the missing leases that are free."""
        missing, start = self.missing(), self._clock()
        if not missing:
            return
        keys = [self.shard_key(number) for number in missing]
        leases = await self._store.lease(keys, self._life, self._settings.lease)
        for number, lease in zip(missing, leases, strict=True):
            if lease.holder != self._life:
                continue
            shard = self._shards.setdefault(number, _Shard(number))
            shard.lease = lease
            shard.trusted = start + self._settings.lease * MARGIN
            shard.change()
            nursery.start_soon(self._wake_remembered, shard)

    def renewed(self, start: float, leases: Iterable[tuple[StoreLease, bool]]) -> None:
        """Take note of a renewal that began at ``start``."""
        kept = {lease.key: held for lease, held in leases}
        for shard in [*self._shards.values()]:
            if shard.lease is None or (held := kept.get(shard.lease.key)) is None:
                continue
            if held:
                shard.trusted = start + self._settings.lease * MARGIN
            else:
                self.drop(shard.number, shard.lease)

    def drop(self, number: int, lease: StoreLease | None) -> None:
        """Give up a shard whose lease is lost: its instances count no more."""
        shard = self._shards.get(number)
        if shard is None or lease is None or shard.lease is not lease:
            return
        _log.warning("the lease of shard %d was lost", number)
        del self._shards[number]
        self.dropped += 1
        shard.end()
        self._orphans.extend(place.ref for place in shard.places.values() if place.ref is not None)

    async def tidy(self) -> None:
        """Stop instances that were lost, or had no message for long."""
        while self._orphans:
            await _stop(self._orphans.pop())
        now = trio.current_time()
        if now - self._swept < _SWEEP:
            return
        self._swept = now
        for shard in [*self._shards.values()]:
            for name, place in [*shard.places.items()]:
                limit = place.kind.passivate_after
                if place.users or (limit is None and place.ref is not None):
                    continue
                if name[0] in self._singletons and place.active:
                    continue
                if place.ref is None or (limit is not None and now - place.used >= limit):
                    shard.places.pop(name, None)
                    if place.ref is not None:
                        await _stop(place.ref)

    async def hand_over(self, number: int) -> None:
        """Let a shard go: answer messages in progress, stop the instances, release the lease.

        Some shards at a time go, so that each is away for a short while, however many move.
        """
        shard = self._shards.get(number)
        if shard is None or shard.lease is None or shard.moving:
            return  # another task does it, or the lease was lost
        shard.moving = True
        async with self._turns:
            if self._shards.get(number) is not shard or number in self.assigned:
                shard.moving = False  # the lease was lost, or the shard is to stay
                return
            shard.leaving = True
            idle = await self._idle(shard, min(_QUICK, self._settings.lease))
            if idle:
                await self._let_go(shard)
        if not idle:  # one whose messages take long holds up no other
            await self._idle(shard, self._settings.lease)
            await self._let_go(shard)

    async def _idle(self, shard: _Shard, seconds: float) -> bool:
        """Wait until a shard has answered its messages; return whether it has."""
        with trio.move_on_after(seconds):
            while shard.in_flight:
                await shard.changed.wait()
        return not shard.in_flight

    async def _let_go(self, shard: _Shard) -> None:
        lease = shard.lease
        if lease is None:
            return  # it was lost meanwhile
        async with PlainNursery() as nursery:
            for place in shard.places.values():
                if place.ref is not None:
                    nursery.start_soon(_stop, place.ref)
        if self._shards.get(shard.number) is shard:
            del self._shards[shard.number]
        shard.lease = None
        shard.change()
        self.handed += 1
        try:
            await self._store.renew([lease], 0.0)
        except StoreUnavailable:
            _log.warning("shard %d was not released, and expires by itself", shard.number)

    def reset(self) -> None:
        """Forget all shards: their instances end with this life of the node."""
        self.assigned = frozenset()
        shards, self._shards = [*self._shards.values()], {}
        self._orphans.clear()
        for shard in shards:
            shard.end()

    # --- messages

    async def deliver(
        self, kind_name: str, key: str, message: Message[Any], turn: MessageTurn
    ) -> Any:
        """Have an entity of this node handle a message.

        Raises:
            EntityMoved: the entity is another node's. The message had no effect.
            MailboxFull: too many messages wait for the shard.
            Exception: what its handler raised.
        """
        number = shard_of(kind_name, key, self._settings.shards)
        shard = self._shards.get(number)
        if shard is None and number in self.assigned:
            shard = self._shards[number] = _Shard(number)
        if shard is None or shard.leaving:
            raise EntityMoved(f"{kind_name} {key!r} is not on this node")
        if shard.lease is None and shard.waiting >= self._settings.buffer:
            raise MailboxFull(
                f"{shard.waiting} messages wait for shard {number}", path=f"{kind_name}/{key}"
            )
        place = shard.place(self._kinds[kind_name], key)
        waits = shard.lease is None
        shard.in_flight += 1
        shard.waiting += waits
        place.users += 1
        turn.taken()
        try:
            return await self._handle(shard, place, message)
        finally:
            shard.in_flight -= 1
            shard.waiting -= waits
            place.users -= 1
            place.used = trio.current_time()
            if not shard.in_flight:
                shard.change()

    async def _handle(self, shard: _Shard, place: EntityPlace, message: Message[Any]) -> Any:
        note = Delivery()
        token = delivery.set(note)
        try:
            while True:
                await place.lock.acquire()
                try:
                    await self._activate(shard, place)
                finally:
                    place.lock.release()
                lease, ref = shard.lease, place.ref
                assert ref is not None
                try:
                    # It has its place in line before the next one gets the lock.
                    result = await ref.ask(message)
                except ActorStopped as error:
                    if error.path != ref.path or note.effect != "none":
                        raise
                    continue  # with another instance, or none here
                except VersionConflict:
                    if note.effect != "none":
                        raise
                    continue  # an effect of an instance before this one arrived late
                except EpochOver as error:
                    self.drop(shard.number, lease)
                    if note.effect != "none":
                        raise
                    raise self._moved(place) from error
                except Exception as error:
                    if note.effect == "none" and not self._trusts(shard, lease):
                        raise self._moved(place) from error
                    raise
                if note.effect == "none" and not self._trusts(shard, lease):
                    raise self._moved(place)
                return result
        finally:
            delivery.reset(token)

    @staticmethod
    def _moved(place: EntityPlace) -> EntityMoved:
        return EntityMoved(f"{place.kind.__name__} {place.key!r} is not on this node any more")

    async def _activate(self, shard: _Shard, place: EntityPlace) -> None:
        while shard.lease is None:
            if shard.leaving:
                raise self._moved(place)
            await shard.changed.wait()
        if place.active:
            return
        lease = shard.lease  # the one that stands now, not whichever does after the next steps
        if place.ref is not None:
            await _stop(place.ref)
        name = place.kind.__name__
        record = f"{self._folder(name, shard.number)}{quote(place.key, safe='')}/"
        found = [each for each in await read_entries(self._store, record) if each.key == record]
        if shard.lease is not lease:
            raise self._moved(place)
        seat = EntitySeat(self._store, record, place.key, lease, next(iter(found), None))
        ref = await self._spawn(place.kind, seat)
        place.seat, place.ref = seat, ref
        place.used = trio.current_time()
        if shard.lease is not lease:
            await _stop(ref)
            raise self._moved(place)

    async def _wake_remembered(self, shard: _Shard) -> None:
        """Start the instances that run without being asked."""
        lease = shard.lease
        for name, kind in self._kinds.items():
            keys = []
            if name in self._singletons:
                if shard_of(name, SINGLETON, self._settings.shards) == shard.number:
                    keys = [SINGLETON]
            elif kind.remembered:
                folder = self._folder(name, shard.number)
                try:
                    entries = await read_entries(self._store, folder)
                except StoreUnavailable:
                    continue  # the first message starts them
                keys = [
                    unquote(each.key[len(folder) : -1])
                    for each in entries
                    if each.value is not None
                ]
            for key in keys:
                if shard.lease is not lease or shard.leaving:
                    return
                place = shard.place(kind, key)
                place.users += 1
                try:
                    async with place.lock:
                        await self._activate(shard, place)
                except (EntityMoved, StoreUnavailable):
                    continue
                except Exception:  # noqa: BLE001 (the program's constructor may raise anything)
                    _log.exception("%s %r did not start", name, key)
                finally:
                    place.users -= 1


async def _stop(ref: ActorRef) -> None:
    """Stop an instance. Its failure is for the asker of that message alone."""
    try:
        await ref.stop()
    except Exception as error:  # noqa: BLE001 (the program's handler may raise anything)
        _log.debug("%s has ended with %r", ref.path, error)
