"""Entities: actors with a key and a state in the store, of which a cluster runs one at a time."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, get_args, get_origin

import msgspec

from ..actors import Actor
from ._errors import EpochOver, StoreUnavailable, VersionConflict

if TYPE_CHECKING:
    from ..actors import ActorRef
    from ._store import FencingStore, StoreEntry, StoreLease

S = TypeVar("S", bound=msgspec.Struct)


class Delivery:
    """One message on its way through an entity.

    Attributes:
        effect: whether it had an effect: ``"none"``, ``"maybe"`` or ``"done"``.
    """

    __slots__ = ("effect",)

    def __init__(self) -> None:
        self.effect = "none"


delivery: Final[ContextVar[Delivery | None]] = ContextVar("delivery", default=None)
"""The message whose handler runs. Context variables cross mailboxes."""


class EntitySeat:
    """An activation of an entity: its record in the store, and the epoch under which it acts."""

    def __init__(
        self,
        store: FencingStore,
        record: str,
        key: str,
        lease: StoreLease,
        entry: StoreEntry | None,
    ) -> None:
        self.key: Final = key
        self.epoch: Final = lease.epoch
        self.value = entry.value if entry is not None else None
        self.version: int = entry.version if entry is not None else 0
        self.broken: bool = False
        self._store = store
        self._record = record
        self._lease = lease

    async def write(self, value: bytes | None) -> None:
        """Set the record, if the epoch is still the present one."""
        message = delivery.get() or Delivery()
        before, message.effect = message.effect, "maybe"
        try:
            self.version = await self._store.compare_and_set(
                self._record, value, version=self.version, fence=self._lease
            )
        except (EpochOver, VersionConflict):
            self.broken = True
            message.effect = before
            raise
        except StoreUnavailable as error:
            self.broken = True
            if not error.maybe_done:
                message.effect = before
            raise
        except BaseException:  # cancelled: it may have happened
            self.broken = True
            raise
        self.value = value
        message.effect = "done"


class Entity(Actor, Generic[S]):
    """Base of entities: actors with a key, and a state that outlives their node.

    ::

        class RoomState(msgspec.Struct):
            lines: list[str] = []


        class Room(Entity[RoomState]):
            @handler
            async def say(self, message: Say) -> int:
                lines = [*self.state.lines, message.text]
                await self.save(RoomState(lines))
                return len(lines)

    The cluster makes an instance on one node when the first message for a key comes. A message
    whose ``save`` is refused, because another node holds the entity now, is delivered there. So
    handlers may run more than once, and their effects count once. An exception of a handler ends
    the instance. The next message finds the state that was saved last.

    Attributes:
        passivate_after: seconds without a message after which the instance is stopped; None for
            never. The next message makes another.
        remembered: whether each node makes instances of all entities that have a state, before
            any message comes.
    """

    passivate_after: ClassVar[float | None] = 300.0
    remembered: ClassVar[bool] = False
    _state_type: ClassVar[type[msgspec.Struct]]

    state: S
    """The state that was saved last. Do not change it; save another."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            if get_origin(base) is Entity:
                (state,) = get_args(base)
                if not isinstance(state, type) or not issubclass(state, msgspec.Struct):
                    raise TypeError(f"the state of {cls.__name__} must be a Struct, not {state!r}")
                cls._state_type = state
        if not hasattr(cls, "_state_type"):
            raise TypeError(
                f"{cls.__name__} must name the type of its state, not leave it out; write "
                f"class {cls.__name__}(Entity[{cls.__name__}State])"
            )

    def __init__(self, seat: EntitySeat) -> None:
        self._seat = seat
        kind: Any = self._state_type
        self.state = kind() if seat.value is None else msgspec.msgpack.decode(seat.value, type=kind)

    @property
    def key(self) -> str:
        """The entity's key."""
        return self._seat.key

    @property
    def epoch(self) -> int:
        """The epoch under which this instance acts."""
        return self._seat.epoch

    async def save(self, state: S) -> None:
        """Save the state, if this node still holds the entity.

        Args:
            state: the new state. Do not change it afterwards.

        Raises:
            TypeError: it is not of the entity's type of states.
            EpochOver: another node holds the entity; nothing was saved. Let it through.
            StoreUnavailable: the store did not answer. The instance ends.
        """
        if not isinstance(state, self._state_type):
            raise TypeError(
                f"the state of a {type(self).__name__} must be a {self._state_type.__name__}, "
                f"not {state!r}"
            )
        await self._seat.write(msgspec.msgpack.encode(state))
        self.state = state

    async def forget(self) -> None:
        """Remove the state from the store: the entity is as if there never was one.

        Raises:
            EpochOver: another node holds the entity; nothing was removed.
            StoreUnavailable: the store did not answer. The instance ends.
        """
        await self._seat.write(None)
        self.state = self._state_type()  # type: ignore[assignment]


class EntityPlace:
    """An entity's place on this node, with or without an instance.

    Attributes:
        ref: the instance.
        seat: the lease and record under which it acts.
        users: messages on their way.
        used: when the last message was answered, by trio's clock.
    """

    __slots__ = ("key", "kind", "lock", "ref", "seat", "used", "users")

    def __init__(self, kind: type[Entity[Any]], key: str, lock: Any) -> None:
        self.kind = kind
        self.key = key
        self.lock = lock
        self.ref: ActorRef | None = None
        self.seat: EntitySeat | None = None
        self.users = 0
        self.used = 0.0

    @property
    def active(self) -> bool:
        """True if the instance can take messages."""
        return (
            self.ref is not None
            and not self.ref.stopped
            and self.seat is not None
            and not self.seat.broken
        )
