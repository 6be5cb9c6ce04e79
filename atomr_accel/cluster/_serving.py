"""Serving over nodes: pools of replicas that nodes publish, and fair shares that they hold."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, final

import msgspec
import trio

from ..actors import ActorStopped, Message, NoSuchActor
from ..actors.nursery import PlainNursery
from ..actors.policies import LeastLoaded
from ..actors.util import NoPublicConstructor, check_instance
from ..patterns import Closed, is_transient
from ..wire.options import count, flag, text
from ._asking import ask_node
from ._errors import ConnectionLost, NodeUnreachable
from ._placement import hash_of

if TYPE_CHECKING:
    from ..patterns import Slot
    from ._peer import Holdings, MessageTurn

R = TypeVar("R")

SLOT: Final = "slot:"
"""First characters of the target of a request for a turn."""

_numbers = itertools.count(1)


# Clusters are Any here: they know this module, which is not to know theirs.


@dataclass(frozen=True, slots=True)
class NodeReplicaStatistics:
    """One replica of a pool over nodes.

    Attributes:
        node: its node.
        in_flight: messages from here that it has not answered.
        answered: messages from here that it has answered.
        failed: messages that were asked of it in vain, and again of another one.
    """

    node: str
    in_flight: int
    answered: int
    failed: int


@dataclass(eq=False)
class _NodeReplica:
    node: str
    life: str
    in_flight: int = 0
    answered: int = 0
    failed: int = 0
    rests_until: float = 0.0


@final
class NodePool(metaclass=NoPublicConstructor):
    """Replicas of an actor on several nodes. ``cluster.open_pool(name)`` opens one.

    Each node that publishes an actor under the name is a replica, from then on until it is about
    to leave. So nodes can be restarted one after the other while clients ask.
    """

    _made_by: ClassVar[str] = "cluster.open_pool(name)"

    def __init__(
        self, cluster: Any, name: str, limit: int | None, attempts: int, policy: Any
    ) -> None:
        self.name: Final = name
        self._cluster = cluster
        self._limit = limit
        self._attempts = attempts
        self._policy = LeastLoaded() if policy is None else policy
        self._replicas: dict[str, _NodeReplica] = {}
        self._line = trio.Lock()
        self._waiting = 0
        self._changed = trio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<NodePool {self.name!r} of {', '.join(self._replicas) or 'no nodes'}>"

    async def ask(self, message: Message[R], *, idempotent: bool = False) -> R:
        """Have one of the replicas answer a message; wait until there is one with room.

        A message is asked of another replica if its node could not be reached or was about to
        leave, or if a fault of a device was the answer. An idempotent one is also asked again if
        its connection was lost.

        Args:
            message: what to send, of a declared class.
            idempotent: whether it may be handled twice.

        Raises:
            ConnectionLost: the connection was lost while the message may have been handled.
            Closed: the pool's block was left before a replica got the message.
            Exception: what the handler raised; also a fault, after all attempts.
        """
        check_instance("message", message, Message)
        idempotent = flag(idempotent, "idempotent")
        left = self._attempts
        while True:
            replica = await self._taken()
            try:
                answer: R = await ask_node(
                    self._cluster, replica.node, f"/{self.name}", None, message
                )
            except Exception as error:
                left -= 1
                if not self._elsewhere(error, replica, idempotent=idempotent) or not left:
                    raise
                replica.failed += 1
            else:
                replica.answered += 1
                return answer
            finally:
                replica.in_flight -= 1
                self._change()

    def _elsewhere(self, error: Exception, replica: _NodeReplica, *, idempotent: bool) -> bool:
        """Return True if a message is to be asked again, at another replica if there is one."""
        if is_transient(error):
            return True
        gone = isinstance(error, (NodeUnreachable, NoSuchActor))
        lost = isinstance(error, ConnectionLost) and (idempotent or not error.maybe_handled)
        stopped = isinstance(error, ActorStopped) and idempotent
        if gone or lost or stopped:
            replica.rests_until = trio.current_time() + self._cluster._settings.heartbeat
        return gone or lost or stopped

    async def _taken(self) -> _NodeReplica:
        self._waiting += 1
        try:
            async with self._line:
                while True:
                    if self._closed:
                        raise Closed("the pool is closed: its block was left")
                    changed = self._changed
                    self._follow()
                    now = trio.current_time()
                    room = [
                        each
                        for each in self._replicas.values()
                        if self._limit is None or each.in_flight < self._limit
                    ]
                    # One that failed just now gets work if there is no other.
                    room = [each for each in room if each.rests_until <= now] or room
                    if room:
                        chosen: _NodeReplica = self._policy.choose(room)
                        chosen.in_flight += 1
                        return chosen
                    await changed.wait()
        finally:
            self._waiting -= 1

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _follow(self) -> None:
        """Take note of nodes that have come or gone."""
        nodes = {
            each.name: each.life
            for each in self._cluster.nodes.values()
            if self.name in each.published
        }
        for node, replica in [*self._replicas.items()]:
            if nodes.get(node) != replica.life:
                del self._replicas[node]
        for node, life in nodes.items():
            if node not in self._replicas:
                self._replicas[node] = _NodeReplica(node, life)

    async def follow(self) -> None:
        """Follow nodes that come and go."""
        while True:
            changed = self._cluster._changed
            self._follow()
            self._change()
            await changed.wait()

    def close(self) -> None:
        """Take no further messages."""
        self._closed = True
        self._change()

    @property
    def waiting(self) -> int:
        """Messages that wait for a replica."""
        return self._waiting

    def statistics(self) -> tuple[NodeReplicaStatistics, ...]:
        """The replicas at this moment, by node."""
        return tuple(
            NodeReplicaStatistics(node, each.in_flight, each.answered, each.failed)
            for node, each in sorted(self._replicas.items())
        )


@asynccontextmanager
async def opened_pool(
    cluster: Any, name: str, limit: int | None, attempts: int, policy: Any
) -> AsyncIterator[NodePool]:
    """Open a pool; see ``Cluster.open_pool``."""
    text(name, "name")
    limit = None if limit is None else count(limit, "limit")
    attempts = count(attempts, "attempts")
    pool: NodePool = NodePool.construct(cluster, name, limit, attempts, policy)
    async with PlainNursery() as nursery:
        nursery.start_soon(pool.follow)
        try:
            yield pool
        finally:
            pool.close()
            nursery.cancel_scope.cancel()


# --- fair shares


class SlotBody(msgspec.Struct, frozen=True, array_like=True):
    """A request for a turn.

    Attributes:
        number: tells it from others of the connection.
        tenant: whose turn it is.
        cost: how much work it is.
    """

    number: int
    tenant: str
    cost: float


def _holder(cluster: Any, name: str) -> str | None:
    """Return the node that gives out the turns: the same for all who ask."""
    nodes = [each.name for each in cluster.nodes.values() if name in each.shares]
    return min(nodes, key=lambda node: hash_of(f"{name}@{node}"), default=None)


@asynccontextmanager
async def remote_slot(cluster: Any, name: str, tenant: str, cost: float) -> AsyncIterator[None]:
    """Take a turn; see ``Cluster.slot``."""
    target = f"{SLOT}{name}"
    while True:
        changed, node = cluster._changed, _holder(cluster, name)
        if node == cluster.node:
            async with cluster.share(name).slot(tenant, cost=cost):
                yield
            return
        if node is None:
            await changed.wait()
            continue
        number = next(_numbers)
        peer = cluster._peer(node)
        body = msgspec.msgpack.encode(SlotBody(number, tenant, cost))
        try:
            await peer.ask(target, None, "", body)
            break
        except (NodeUnreachable, ConnectionLost, NoSuchActor):
            with trio.move_on_after(cluster._pause()):
                await changed.wait()
        except BaseException:
            # It may be granted at this very moment.
            peer.tell(target, "", msgspec.msgpack.encode(number), always=True)
            raise
    ended = peer.ended
    try:
        yield
    finally:
        if peer.ended == ended:
            peer.tell(target, "", msgspec.msgpack.encode(number), always=True)


async def give_slot(
    cluster: Any, name: str, body: bytes, holdings: Holdings, turn: MessageTurn
) -> bytes:
    """Give another node a turn, when it comes."""
    asked = msgspec.msgpack.decode(body, type=SlotBody)
    slot: Slot = cluster.share(name).slot(asked.tenant, cost=asked.cost)
    slots: dict[int, Slot | None] = holdings.slots

    async def return_all() -> None:
        for each in slots.values():
            if each is not None:
                await each.__aexit__(None, None, None)
        slots.clear()

    holdings.ends[SLOT] = return_all
    slots[asked.number] = None
    turn.taken()
    try:
        await slot.__aenter__()
    except BaseException:
        slots.pop(asked.number, None)
        raise
    if asked.number in slots:
        slots[asked.number] = slot
    else:  # given back before it was granted
        await slot.__aexit__(None, None, None)
    return b""


def take_slot_back(holdings: Holdings, body: bytes) -> Slot | None:
    """Return the slot that another node gives back, to be left."""
    slot: Slot | None = holdings.slots.pop(msgspec.msgpack.decode(body, type=int), None)
    return slot
