"""Clusters: this program's node, and its conversations with others."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import trio

from ..actors import (
    ActorRef,
    ActorStopped,
    ActorSystem,
    ChildStopped,
    NameTaken,
    NoSuchActor,
    RestartType,
    Service,
    SupervisorStopped,
)
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import check_instance
from ..patterns import FairShare
from ..wire.options import count, real, text
from ._codec import MessageTable
from ._entity import Entity, EntitySeat
from ._errors import (
    ClusterError,
    EntityMoved,
    EpochOver,
    PeerRefused,
    StoreUnavailable,
    VersionConflict,
)
from ._frames import WATCH, AskFrame, HelloFrame, TellFrame
from ._neighbours import Neighbours
from ._nodes import Announcement, ClusterNode, ClusterStatistics, read_announcement
from ._peer import Holdings, MessageTurn, NodePeer, Visit
from ._placement import placement, shard_of
from ._processes import own_process
from ._refs import EntityRef, RemoteRef
from ._region import SINGLETON, Region
from ._remote_devices import RemoteDevice, opened_device
from ._remote_group import RemoteDevices, opened_devices
from ._sealed import SealedShelf
from ._serving import SLOT, NodePool, give_slot, opened_pool, remote_slot, take_slot_back
from ._settings import ClusterSettings, check_name
from ._store import FencingStore, StoreEntry, StoreLease, read_entries
from ._transport import Transport

if TYPE_CHECKING:
    from .. import Device, GpuRef

_log = logging.getLogger("atomr_accel.cluster")


@final
class Cluster(Service):
    """This program's node of a cluster. `open_cluster` makes one.

    Attributes:
        name: the cluster's name.
        node: this node's name.
        system: the system in which instances of entities live.
    """

    def __init__(
        self,
        name: str,
        node: str,
        store: FencingStore,
        system: ActorSystem,
        transport: Transport,
        settings: ClusterSettings,
        table: MessageTable,
        kinds: dict[str, type[Entity[Any]]],
        singletons: frozenset[str],
        devices: tuple[Device, ...],
        clock: Callable[[], float],
        *,
        holds: bool,
    ) -> None:
        self.name: Final = name
        self.node: Final = node
        self.system: Final = system
        self._life = f"{node}#{secrets.token_hex(8)}"
        self._store = store
        self._transport = transport
        self._settings = settings
        self._table = table
        self._kinds = kinds
        self._devices = devices
        self._clock = clock
        self._visits: set[Visit] = set()
        self._own = Holdings()
        self._lives = 0
        self._shelf = SealedShelf(self._others, self._ask_shelf)
        self._published: dict[str, ActorRef] = {}
        self._shares: dict[str, FairShare] = {}
        self._said = False
        self._peers: dict[str, NodePeer] = {}
        self._nodes: dict[str, ClusterNode] = {}
        self._owners: tuple[str, ...] = ()
        self._changed = trio.Event()
        self._nudged = trio.Event()
        self._member: StoreLease | None = None
        self._member_version = 0
        self._member_trusted = 0.0
        self._due = 0.0
        self._address = ""
        self._draining = False
        self._holds = holds
        self._told = 0
        self._lost = 0
        self._moved = 0
        self._store_failures = 0
        self._nursery: trio.Nursery | None = None
        self._neighbours = Neighbours(store, name, self._start)
        self._region = Region(
            store,
            name,
            self._life,
            settings,
            kinds,
            singletons,
            self._spawn,
            clock,
        )

    def __repr__(self) -> str:
        return f"<Cluster {self.name!r}, node {self.node!r}>"

    # --- for programs

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """The nodes that live, this one included, by name."""
        return dict(self._nodes)

    async def wait_for(self, nodes: int) -> None:
        """Wait until at least as many nodes live.

        Args:
            nodes: the number, this node included.
        """
        nodes = count(nodes, "nodes", 0)
        await trio.lowlevel.checkpoint()
        while len(self._nodes) < nodes:
            await self._changed.wait()

    def publish(self, name: str, ref: ActorRef) -> None:
        """Let other nodes send messages to an actor.

        Args:
            name: the name by which they know it.
            ref: the actor.

        Raises:
            NameTaken: another actor that lives has this name here.
        """
        check_instance("ref", ref, ActorRef)
        text(name, "name")
        taken = self._published.get(name)
        if taken is not None and taken is not ref and not taken.stopped:
            raise NameTaken(f"node {self.node!r} has published {taken.path} as {name!r} already")
        self._published[name] = ref
        self._say()

    def publish_share(self, name: str, share: FairShare) -> None:
        """Let all nodes take turns of a fair share, by `slot`.

        If several nodes publish one of the name, one of them gives out all turns, and another one
        does when that one leaves or is lost.

        Args:
            name: the name by which they know it.
            share: the fair share, which has the capacity of all nodes together.
        """
        text(name, "name")
        check_instance("share", share, FairShare)
        self._shares[name] = share
        self._say()

    def share(self, name: str) -> FairShare:
        """Return a fair share that this node has published.

        Args:
            name: its name.

        Raises:
            NoSuchActor: this node has published none.
        """
        if name not in self._shares:
            raise NoSuchActor(f"node {self.node!r} has no fair share {name!r}", path=name)
        return self._shares[name]

    def slot(
        self, name: str, tenant: str, *, cost: float = 1.0
    ) -> AbstractAsyncContextManager[None]:
        """Take a turn of a fair share of the cluster: ``async with cluster.slot("gpus", "ann"):``.

        Entering waits for the turn, and for a node that publishes the share: without end, if none
        ever does, so set a deadline. While the share passes from a node to another, turns that the
        first gave out are not counted by the next.

        Args:
            name: the share's name.
            tenant: whose turn it is; see ``FairShare.slot``.
            cost: how much work it is.

        Raises:
            ValueError: the cost is not positive and finite, or the tenant's name is malformed.
            Overloaded: too many of the tenant's requests wait already.
        """
        text(name, "name")
        text(tenant, "tenant", 1)
        return remote_slot(self, name, tenant, real(cost, "cost", above=0))

    @opens
    async def open_pool(
        self, name: str, *, limit: int | None = None, attempts: int = 3, policy: Any = None
    ) -> AsyncIterator[NodePool]:
        """Open a pool of all actors that nodes publish under a name, for the length of a block.

        Args:
            name: the name.
            limit: most messages from here that a replica has at once; by default, any number.
            attempts: most attempts of a message.
            policy: what chooses a replica, such as `PowerOfTwo`; by default, `LeastLoaded`.
        """
        async with opened_pool(self, name, limit, attempts, policy) as pool:
            yield pool

    def _say(self) -> None:
        self._said = False
        self._nudge()

    def actor(self, node: str, name: str) -> RemoteRef:
        """Return the address of an actor that a node has published, or will publish.

        Args:
            node: the node's name; this one's own works, too.
            name: the name under which it is published there.
        """
        text(name, "name")
        made: RemoteRef = RemoteRef.construct(self, check_name("a node's name", node), name)
        return made

    def entity(self, kind: type[Entity[Any]], key: str) -> EntityRef:
        """Return the address of an entity.

        Args:
            kind: its type, of those that ``open_cluster(entities=...)`` declares.
            key: its key among those of the type.

        Raises:
            ValueError: the type is not declared, or the key is empty.
        """
        text(key, "key", 1)
        made: EntityRef = EntityRef.construct(self, self._declared(kind), key)
        return made

    def singleton(self, kind: type[Entity[Any]]) -> EntityRef:
        """Return the address of the only entity of a type.

        Args:
            kind: its type, of those that ``open_cluster(singletons=...)`` declares.
        """
        return self.entity(kind, SINGLETON)

    def place_of(self, kind: type[Entity[Any]], key: str) -> str | None:
        """Return the node where an entity belongs at present, or None without any node."""
        return self._owner(
            shard_of(self._declared(kind), text(key, "key", 1), self._settings.shards)
        )

    @opens
    async def open_device(self, name: str) -> AsyncIterator[RemoteDevice]:
        """Open a device of a node, for the length of a block, which frees remaining buffers.

        Args:
            name: the node's name and the device's index among those that it shares, such as
                ``"node-3/0"``; this node's own work, too.

        Raises:
            LookupError: the node shares no such device.
            NodeUnreachable: the node cannot be connected to.
        """
        async with aclosing(opened_device(self, name)) as devices:
            async for device in devices:
                yield device

    @opens
    async def open_devices(
        self,
        names: Iterable[str] | None = None,
        *,
        limit: int | None = None,
        policy: Any = None,
    ) -> AsyncIterator[RemoteDevices]:
        """Open devices of many nodes, for the length of a block, to place work on them by load.

        Args:
            names: names of devices, such as ``["node-1/0", "node-3/0"]``. By default all that
                nodes share, this one included, also those of nodes that join later.
            limit: most blocks of ``place`` that a device has at once; by default, any number.
            policy: what chooses a device, such as `PowerOfTwo`; by default, `LeastLoaded`.

        Raises:
            ValueError: another form of name, or a limit below 1.
        """
        async with opened_devices(self, names, limit, policy) as devices:
            yield devices

    # --- sealed buffers

    async def offer(self, device: Device, ref: GpuRef) -> str:
        """Let all nodes fetch a sealed buffer of a device of this program.

        The buffer lives until `withdraw`, or until the node has left.

        Args:
            device: the device.
            ref: a sealed buffer of it, contiguous.

        Returns:
            The digest, by which nodes fetch it. It depends on the content, shape and dtype alone.

        Raises:
            ValueError: the buffer is not sealed, or not contiguous.
        """
        return await self._shelf.offer(device, ref)

    async def fetch(self, digest: str, device: Device) -> GpuRef:
        """Return a sealed buffer of a digest, on a device of this program.

        Its chunks come from all nodes that have it, and each is checked. This node offers it from
        then on, too. A buffer that is there already is returned itself.

        Args:
            digest: what `offer` has returned on another node.
            device: where the buffer shall be.

        Raises:
            LookupError: no node offers it, or they were lost meanwhile.
        """
        return await self._shelf.fetch(digest, device)

    def withdraw(self, digest: str) -> None:
        """Offer a buffer no more, and let it go.

        Args:
            digest: of the buffer.

        Raises:
            LookupError: this node does not offer it.
        """
        self._shelf.withdraw(digest)

    def _others(self) -> list[str]:
        return [name for name in self._nodes if name != self.node]

    async def _ask_shelf(self, node: str, target: str, body: bytes) -> bytes:
        return await self._peer(node).ask(target, None, "", body)

    def connection_of(self, node: str) -> int:
        """Return a number that changes when the connection to a node has ended.

        Args:
            node: the node's name.
        """
        if node == self.node:
            return self._lives
        peer = self._peers.get(node)
        return 0 if peer is None else peer.ended

    async def ask_device(self, node: str, target: str, body: bytes) -> bytes:
        """Send a device's call, as bytes, and return those of its answer; see `RemoteDevice`.

        Args:
            node: the node's name.
            target: the device there.
            body: the call.
        """
        if node == self.node:
            self._running()
            return await self._answer_device(target, body, self._own, MessageTurn())
        return await self._peer(node).ask(target, None, "", body)

    def statistics(self) -> ClusterStatistics:
        """The node at this moment."""
        return ClusterStatistics(
            node=self.node,
            nodes=tuple(sorted(self._nodes)),
            shards=len(self._region.held),
            entities=self._region.entities,
            depth=self.depth(),
            in_progress=self._region.depth,
            handed=self._region.handed,
            dropped=self._region.dropped,
            moved=self._moved,
            lost=self._lost + sum(peer.lost for peer in self._peers.values()),
            store_failures=self._store_failures,
            sealed=len(self._shelf),
        )

    def _declared(self, kind: Any) -> str:
        if not isinstance(kind, type) or not issubclass(kind, Entity):
            raise TypeError(f"an entity's type must be a subclass of Entity, not {kind!r}")
        if self._kinds.get(kind.__name__) is not kind:
            raise ValueError(
                f"{kind.__name__} must be declared: open_cluster(entities=[{kind.__name__}])"
            )
        return kind.__name__

    # --- the service

    def depth(self) -> int:
        """Messages from here that wait for answers."""
        return sum(peer.depth for peer in self._peers.values()) + self._told

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Live once."""
        self._member = None
        self._draining = False
        try:
            async with PlainNursery() as nursery:
                self._nursery = nursery
                try:
                    self._address = await nursery.start(self._listen)
                    await self._agree()
                    await nursery.start(self._keep)
                    await nursery.start(self._follow_members)
                    nursery.start_soon(self._follow_shards)
                    task_status.started()
                    await trio.sleep_forever()
                finally:
                    # Not after the block: once its last task has ended, and before this one goes
                    # on, others may run, and a nursery refuses theirs then.
                    self._nursery = None
        finally:
            self._region.reset()
            self._neighbours.reset()
            self._peers.clear()
            self._shelf.clear()
            own, self._own = self._own, Holdings()
            self._lives += 1
            await own.end()

    async def finish(self) -> None:
        """Hand all entities over, wait for users of our devices, and leave the cluster."""
        self._draining = True
        self._nudge()
        with trio.move_on_after(2 * self._settings.lease):
            try:
                await self._announce()
                while self._region.held or self._told or self._devices_used():
                    self._assign()
                    with trio.move_on_after(self._pause()):
                        await self._changed.wait()
            except ClusterError as error:
                _log.warning("node %s leaves without handing over: %s", self.node, error)
            member, self._member = self._member, None
            if member is not None:
                try:
                    await self._store.renew([member], 0.0)
                except StoreUnavailable as error:
                    _log.warning("the lease of node %s expires by itself: %s", self.node, error)

    def _devices_used(self) -> bool:
        return any(visit.holdings.used for visit in self._visits)

    async def call(self, item: Any, **options: Any) -> Any:
        """Answer a `Call`, whose item is the type and key of an entity and a message."""
        del options
        kind, key, message = item
        return await self.entity(kind, key).ask(message)

    def _start(self, function: Callable[..., Any], *args: Any) -> None:
        self._running().start_soon(function, *args)

    def _hello(self) -> HelloFrame:
        return HelloFrame(
            self.name, self.node, self._life, self._table.digests, self._settings.window
        )

    async def _listen(self, *, task_status: trio.TaskStatus[str]) -> None:
        async def handle(stream: trio.abc.Stream, names: frozenset[str] | None) -> None:
            visit = Visit(
                stream,
                names,
                self._hello(),
                self._table,
                self._settings,
                self._answer,
                self._take,
            )
            self._visits.add(visit)
            try:
                await visit.run()
            finally:
                self._visits.discard(visit)

        await self._transport.listen(handle, task_status=task_status)

    # --- membership

    async def _agree(self) -> None:
        """Check that all nodes of the cluster have the same shards."""
        settings = self._settings
        key, value = f"{self.name}/config", msgspec.msgpack.encode([settings.shards, settings.load])
        while True:
            for entry in await read_entries(self._store, key):
                if entry.key == key and entry.value is not None:
                    if entry.value != value:
                        shards, load = msgspec.msgpack.decode(entry.value)
                        raise ValueError(
                            f"shards and load must be {shards} and {load} as on the other nodes, "
                            f"not {settings.shards} and {settings.load}"
                        )
                    return
            try:
                await self._store.compare_and_set(key, value, version=0)
            except VersionConflict:
                continue

    def _nudge(self) -> None:
        self._nudged.set()

    def _pause(self) -> float:
        return min(0.25, self._settings.lease / 10)

    async def _keep(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Hold this node's leases, for ever."""
        refused: float | None = None  # when the store first said that another has the name
        waiting = True
        async with PlainNursery() as nursery:
            while True:
                self._nudged = trio.Event()
                asked = trio.current_time()
                try:
                    await self._round(nursery)
                except StoreUnavailable as error:
                    self._store_failures += 1
                    if waiting:
                        raise
                    _log.warning("node %s: %s", self.node, error)
                if waiting and self._member is not None:
                    waiting = False
                    task_status.started()
                elif waiting and refused is None:
                    refused = trio.current_time()
                elif waiting and refused and asked - refused > 1.5 * self._settings.lease:
                    # A lease of one that is gone would be over, however slow the store is.
                    raise NameTaken(f"another node of {self.name!r} has the name {self.node!r}")
                hurry = self._member is None or bool(self._region.missing())
                with trio.move_on_after(self._pause() if hurry else self._settings.lease / 4):
                    await self._nudged.wait()
                await self._region.tidy()

    async def _round(self, nursery: trio.Nursery) -> None:
        start = self._clock()
        if self._member is None:
            if self._draining:
                return
            key = f"{self.name}/member/{self.node}"
            (lease,) = await self._store.lease([key], self._life, self._settings.lease)
            if lease.holder != self._life:
                return
            found = await read_entries(self._store, key)
            self._member_version = next((e.version for e in found if e.key == key), 0)
            self._member = lease
            self._said = False
            self._due = start + self._settings.lease / 4
        if not self._said:
            self._said = True
            try:
                await self._announce()
            except BaseException:
                self._said = False
                raise
        if start >= self._due:
            held = self._region.held
            leases = [self._member, *held.values()]
            kept = await self._store.renew(leases, self._settings.lease)
            self._due = start + self._settings.lease / 4
            self._region.renewed(start, zip(leases, kept, strict=True))
            if not kept[0]:
                _log.warning("node %s has lost its place in the cluster", self.node)
                self._member = None
                self._assign()
                self._nudge()
                return
        if not self._draining:
            await self._region.acquire(nursery)
        for number in self._region.surplus():
            nursery.start_soon(self._hand_over, number)

    async def _hand_over(self, number: int) -> None:
        await self._region.hand_over(number)
        self._change()

    async def _announce(self) -> None:
        if self._member is None:
            return
        key, fence = self._member.key, self._member
        value = msgspec.msgpack.encode(
            Announcement(
                self._life,
                self._address,
                self._draining or not self._holds,
                0 if self._draining else len(self._devices),
                frozenset() if self._draining else frozenset(self._published),
                frozenset() if self._draining else frozenset(self._shares),
                own_process(),
            )
        )
        while True:
            try:
                self._member_version = await self._store.compare_and_set(
                    key, value, version=self._member_version, fence=fence
                )
                return
            except VersionConflict as conflict:
                self._member_version = conflict.version
            except EpochOver:
                self._member = None
                return

    async def _follow_members(self, *, task_status: trio.TaskStatus[None]) -> None:
        prefix = f"{self.name}/member/"
        ready = False
        while True:
            try:
                async with self._store.watch(prefix) as snapshots:
                    async for entries in snapshots:
                        self._see(prefix, entries)
                        if not ready:
                            ready = True
                            task_status.started()
            except StoreUnavailable as error:
                self._store_failures += 1
                _log.warning("node %s cannot watch the others: %s", self.node, error)
            await trio.sleep(self._pause())

    async def _follow_shards(self) -> None:
        while True:
            try:
                async with self._store.watch(f"{self.name}/shard/") as snapshots:
                    async for entries in snapshots:
                        if self._region.missing() and any(e.holder is None for e in entries):
                            self._nudge()
            except StoreUnavailable:
                self._store_failures += 1
            await trio.sleep(self._pause())

    def _see(self, prefix: str, entries: Iterable[StoreEntry]) -> None:
        nodes, processes = {}, []
        for entry in entries:
            if entry.holder is None or entry.value is None:
                continue
            node, process = read_announcement(entry.key[len(prefix) :], entry.value)
            processes.append((node.name, node.life, process))
            # Another run of the node may have the lease, and has said nothing yet.
            if node.life == entry.holder:
                nodes[node.name] = node
        for name, before in self._nodes.items():
            now = nodes.get(name)
            if (now is None or now.life != before.life) and name in self._peers:
                self._peers[name].hang_up()
        self._nodes = nodes
        self._neighbours.see(processes)
        settings = self._settings
        holding = [each.name for each in nodes.values() if not each.draining]
        self._owners = placement(holding, settings.shards, settings.load)
        self._assign()
        self._change()
        self._nudge()

    def _assign(self) -> None:
        mine = self._nodes.get(self.node)
        if mine is None or mine.life != self._life or self._draining or self._member is None:
            self._region.assign(())
        elif self._holds:
            here = self.node
            self._region.assign(n for n, owner in enumerate(self._owners) if owner == here)

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _owner(self, shard: int) -> str | None:
        return self._owners[shard] if self._owners else None

    # --- asking others

    def _peer(self, node: str) -> NodePeer:
        peer = self._peers.get(node)
        if peer is None:

            async def connect() -> trio.abc.Stream:
                there = self._nodes.get(node)
                if there is None:
                    raise OSError(f"no node {node!r} lives in cluster {self.name!r}")
                return await self._transport.connect(node, there.address)

            peer = NodePeer(node, connect, self._hello(), self._table, self._settings)
            self._start(peer.run)
            self._peers[node] = peer
        return peer

    def _running(self) -> trio.Nursery:
        if self._nursery is None:
            raise ActorStopped(f"node {self.node!r} has left the cluster", path=self.node)
        return self._nursery

    # --- answering others

    def _local(self, target: str) -> ActorRef:
        ref = self._published.get(target[1:])
        if ref is None:
            raise NoSuchActor(
                f"node {self.node!r} has published no actor {target[1:]!r}", path=target
            )
        return ref

    async def _answer(self, frame: AskFrame, visit: Visit, turn: MessageTurn) -> bytes:
        if frame.target.startswith(WATCH):
            ref = self._local("/" + frame.target.removeprefix(WATCH))
            turn.taken()
            failure = await ref.wait_stopped()
            return msgspec.msgpack.encode(None if failure is None else repr(failure))
        if frame.target.startswith(SLOT):
            name = frame.target.removeprefix(SLOT)
            return await give_slot(self, name, frame.body, visit.holdings, turn)
        if frame.target.startswith("device:"):
            return await self._answer_device(frame.target, frame.body, visit.holdings, turn)
        if frame.target.startswith("sealed:"):
            turn.taken()
            return await self._shelf.answer(frame.target.removeprefix("sealed:"), frame.body)
        message = self._table.decode(frame.name, frame.body)
        if frame.target.startswith("/"):
            ref = self._local(frame.target)
            turn.taken()
            visit.holdings.busy["/"] += 1
            try:
                reply = await ref.ask(message)
            finally:
                visit.holdings.busy["/"] -= 1
        else:
            kind = frame.target.removeprefix("entity:")
            if kind not in self._kinds or frame.key is None:
                raise PeerRefused(f"node {self.node!r} has no entities of type {kind!r}")
            reply = await self._region.deliver(kind, frame.key, message, turn)
        return self._table.encode_reply(type(message), reply)

    async def _answer_device(
        self, target: str, body: bytes, holdings: Holdings, turn: MessageTurn
    ) -> bytes:
        from ._served_devices import answer_device

        try:
            return await answer_device(self._devices, self._shelf, target, body, holdings, turn)
        finally:
            if self._draining:
                self._change()

    def _take(self, frame: TellFrame, visit: Visit) -> None:
        try:
            if frame.target.startswith(SLOT):
                slot = take_slot_back(visit.holdings, frame.body)
                if slot is not None:
                    self._start(slot.__aexit__, None, None, None)
                return
            self._local(frame.target).tell(self._table.decode(frame.name, frame.body))
        except Exception as error:  # noqa: BLE001 (whatever it is, the connection goes on)
            self._lost += 1
            if self._lost & (self._lost - 1) == 0:  # the first, second, fourth: a flood is no log
                text = "a message told to %s is lost: %r (%d so far)"
                _log.warning(text, frame.target, error, self._lost)

    async def _spawn(self, kind: type[Entity[Any]], seat: EntitySeat) -> ActorRef:
        try:
            return await self.system.spawn(
                kind, seat, supervisor=self.ref, restart=RestartType.TEMPORARY
            )
        except (SupervisorStopped, ChildStopped) as error:
            raise EntityMoved(f"node {self.node!r} is leaving") from error
