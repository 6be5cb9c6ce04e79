"""Joining a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import trio

from .._errors import said_of
from ..actors import ActorSystem, Message, open_actor_system, serving
from ..actors.blocks import opens
from ..actors.util import check_instance
from ..wire.options import several
from ._cluster import Cluster
from ._codec import MessageTable
from ._entity import Entity
from ._settings import ClusterSettings, check_name
from ._transport import Credentials, TlsTransport, Transport

if TYPE_CHECKING:
    from .. import Device
    from ._store import FencingStore


@opens
async def open_cluster(
    name: str,
    *,
    node: str,
    store: FencingStore,
    messages: Iterable[type[Message[Any]]] = (),
    entities: Iterable[type[Entity[Any]]] = (),
    singletons: Iterable[type[Entity[Any]]] = (),
    devices: Iterable[Device] = (),
    credentials: Credentials | None = None,
    listen: tuple[str, int] = ("127.0.0.1", 0),
    transport: Transport | None = None,
    settings: ClusterSettings | None = None,
    system: ActorSystem | None = None,
    holds: bool = True,
    clock: Callable[[], float] | None = None,
) -> AsyncIterator[Cluster]:
    """Join a cluster, for the length of a block.

    Leaving the block drains the node: other nodes take its entities, and messages in progress are
    answered. If an exception or a cancellation leaves the block, the node is gone at once, and its
    leases expire.

    Args:
        name: the cluster's name, of lower-case letters, digits and ``-``.
        node: this node's name, of the same characters. No two nodes that live have one name.
        store: the fencing store that all nodes share.
        messages: classes of the messages that go from node to node. All nodes declare the same.
        entities: types of entities that this cluster has.
        singletons: types with one entity each, which some node runs without being asked.
        devices: devices of this node that others may use, as ``"node/0"``, ``"node/1"``, ...
        credentials: this node's certificate.
        listen: address and port; port 0 is a free one. Others connect to this address.
        transport: what makes connections, in place of TLS by ``credentials`` and ``listen``.
        settings: limits and times.
        system: the system where the node and its entities live; by default, one of its own.
        holds: whether entities may live here; False for a node that only asks others.
        clock: returns seconds; by default, trio's. Its rate may be wrong by a tenth.

    Raises:
        NameTaken: another node that lives has the name.
        StoreUnavailable: the store does not answer.
        ValueError: a bad name, another node's certificate, or other shards than the cluster has.
    """
    check_name("a cluster's name", name)
    check_name("a node's name", node)
    settings = ClusterSettings() if settings is None else settings
    check_instance("settings", settings, ClusterSettings)
    if not hasattr(store, "compare_and_set"):
        raise TypeError(f"store must be a FencingStore, not {said_of(store)}; try MemoryStore()")
    declared, kept = several(messages, "messages"), several(entities, "entities")
    only, shared = several(singletons, "singletons"), several(devices, "devices")
    if shared:
        from ..device import Device  # nodes without one need not wait for it

        for device in shared:
            check_instance("a device", device, Device)
    table = MessageTable(declared)
    kinds: dict[str, type[Entity[Any]]] = {}
    kind: Any
    for kind in (*kept, *only):
        if not isinstance(kind, type) or not issubclass(kind, Entity):
            raise TypeError(f"entities must be subclasses of Entity, not {kind!r}")
        if kinds.setdefault(kind.__name__, kind) is not kind:
            raise ValueError(f"entities must have names of their own, not {kind.__name__!r} twice")
    if transport is None:
        if credentials is None:
            raise ValueError(
                "credentials must be a node's certificate, not left out; make some by "
                "`atomr-accel node --make-certificates`"
            )
        check_instance("credentials", credentials, Credentials)
        credentials.check(node)
        transport = TlsTransport(credentials, *listen)
    async with AsyncExitStack() as stack:
        if system is None:
            system = await stack.enter_async_context(open_actor_system(f"{name}-{node}"))
        cluster = Cluster(
            name,
            node,
            store,
            system,
            transport,
            settings,
            table,
            kinds,
            frozenset(kind.__name__ for kind in only),
            shared,
            trio.current_time if clock is None else clock,
            holds=holds,
        )
        yield await stack.enter_async_context(serving(cluster, system=system, name="cluster"))
