"""A node without a program around it: it holds entities until it is asked to leave."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import trio

from ..actors import ActorRef, Message
from ._cluster import Cluster
from ._entity import Entity
from ._open import open_cluster
from ._sql_store import open_postgres_store, open_sqlite_store
from ._transport import Credentials

if TYPE_CHECKING:
    import os

    from .. import Device
    from ._settings import ClusterSettings
    from ._store import FencingStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProgram:
    """Declarations that all nodes of a cluster share; ``atomr-accel node module:name`` runs one.

    Attributes:
        name: the cluster's name.
        messages: classes of the messages that go from node to node.
        entities: types of entities.
        singletons: types with one entity each.
        settings: limits and times.
        services: what opens an actor that each node of ``atomr-accel node`` publishes, by its name:
            functions without arguments that return a context manager of an `ActorRef`.
        devices: what opens each device that each node of ``atomr-accel node`` shares: functions
            without arguments that return a context manager of a `Device`.
    """

    name: str
    messages: Sequence[type[Message[Any]]] = ()
    entities: Sequence[type[Entity[Any]]] = ()
    singletons: Sequence[type[Entity[Any]]] = ()
    settings: ClusterSettings | None = None
    services: Mapping[str, Callable[[], AbstractAsyncContextManager[ActorRef]]] = field(
        default_factory=dict
    )
    devices: Sequence[Callable[[], AbstractAsyncContextManager[Device]]] = ()

    def open(
        self,
        node: str,
        store: FencingStore,
        credentials: Credentials,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        *,
        devices: Sequence[Device] = (),
        holds: bool = True,
    ) -> AbstractAsyncContextManager[Cluster]:
        """Join the cluster; see `open_cluster`."""
        return open_cluster(
            self.name,
            node=node,
            store=store,
            messages=self.messages,
            entities=self.entities,
            singletons=self.singletons,
            devices=devices,
            credentials=credentials,
            listen=listen,
            settings=self.settings,
            holds=holds,
        )


def load_program(words: str) -> ClusterProgram:
    """Return the program that ``MODULE:NAME`` names.

    Args:
        words: the module, ``:`` and the name in it.
    """
    module, _, name = words.partition(":")
    if not module or not name:
        raise ValueError(f"the program must be MODULE:NAME, not {words}")
    try:
        program = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no {words}: {error}") from error
    if not isinstance(program, ClusterProgram):
        raise TypeError(f"{words} is a {type(program).__name__}, and no ClusterProgram")
    return program


def open_store(store: str | os.PathLike[str]) -> AbstractAsyncContextManager[FencingStore]:
    """Open the store that a file of SQLite or a URL of PostgreSQL names."""
    text = str(store)
    if text.startswith(("postgresql://", "postgres://")):
        return open_postgres_store(text)
    return open_sqlite_store(text)


@asynccontextmanager
async def joined_node(
    program: ClusterProgram,
    node: str,
    store: str | os.PathLike[str],
    credentials: Credentials,
    listen: tuple[str, int] = ("127.0.0.1", 0),
) -> AsyncIterator[Cluster]:
    """Open what a node of a program has, and join the cluster with it.

    Leaving the block drains the node; see `open_cluster`. The arguments are those of `run_node`.
    """
    async with AsyncExitStack() as stack:
        fencing = await stack.enter_async_context(open_store(store))
        refs = {
            name: await stack.enter_async_context(open_service())
            for name, open_service in program.services.items()
        }
        devices = [await stack.enter_async_context(opener()) for opener in program.devices]
        joining = program.open(node, fencing, credentials, listen, devices=devices)
        cluster = await stack.enter_async_context(joining)
        for name, ref in refs.items():
            cluster.publish(name, ref)
        yield cluster


async def run_node(
    program: ClusterProgram,
    node: str,
    store: str | os.PathLike[str],
    credentials: Credentials,
    listen: tuple[str, int] = ("127.0.0.1", 0),
    ready: Callable[[Cluster], None] | None = None,
) -> None:
    """Run a node until SIGTERM or SIGINT comes; then drain it, and return.

    Draining hands its entities over, and answers what its services have been asked.

    Args:
        program: what the cluster declares.
        node: the node's name.
        store: a file of SQLite, or a URL of PostgreSQL such as ``"postgresql://host/database"``.
        credentials: the node's certificate.
        listen: address and port.
        ready: called when the node has joined.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with joined_node(program, node, store, credentials, listen) as cluster:
            if ready is not None:
                ready(cluster)
            async for _ in signals:
                break
