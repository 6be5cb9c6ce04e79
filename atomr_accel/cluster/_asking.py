"""Messages to actors and entities anywhere in a cluster."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import trio

from ..actors import ActorRef, ActorStopped, MailboxFull, Message
from ._errors import ClusterError, ConnectionLost, EntityMoved, NodeUnreachable
from ._frames import WATCH
from ._peer import MessageTurn
from ._placement import shard_of

_log = logging.getLogger("atomr_accel.cluster")


# Clusters are Any here: they know this module, which is not to know theirs.


class RemoteTerminated(Message[None]):
    """An actor of another node that a local one watches has ended, or its node cannot be asked.

    Attributes:
        node: the node's name.
        name: the name under which the actor was published.
        cause: the failure that ended it, as text; None if it was stopped.
        lost: True if the connection was lost, so that the actor may still live.
    """

    node: str
    name: str
    cause: str | None
    lost: bool


async def ask_node(
    cluster: Any, node: str, target: str, key: str | None, message: Message[Any]
) -> Any:
    name, body = cluster._table.encode(message)
    if node == cluster.node:
        cluster._running()
        return await cluster._local(target).ask(message)
    answer = await cluster._peer(node).ask(target, key, name, body)
    return cluster._table.decode_reply(type(message), answer)


def tell_node(cluster: Any, node: str, target: str, message: Message[Any]) -> None:
    name, body = cluster._table.encode(message)
    if node == cluster.node:
        cluster._running()
        cluster._local(target).tell(message)
    else:
        cluster._peer(node).tell(target, name, body)


async def watch_node(cluster: Any, node: str, name: str, watcher: ActorRef) -> None:
    cause, lost = None, False
    try:
        if node == cluster.node:
            failure = await cluster._local(f"/{name}").wait_stopped()
            cause = None if failure is None else repr(failure)
        else:
            body = await cluster._peer(node).ask(f"{WATCH}{name}", None, "", b"")
            cause = msgspec.msgpack.decode(body, type=str | None)
    except Exception as error:  # noqa: BLE001 (whatever it is, the watcher hears of it)
        cause, lost = str(error), isinstance(error, ClusterError)
    try:
        watcher.tell(RemoteTerminated(node, name, cause, lost), urgent=True)
    except (MailboxFull, ActorStopped):
        cluster._lost += 1


async def ask_entity(cluster: Any, kind: str, key: str, message: Message[Any]) -> Any:
    name, body = cluster._table.encode(message)
    shard = shard_of(kind, key, cluster._settings.shards)
    while True:
        cluster._running()
        changed, owner = cluster._changed, cluster._owner(shard)
        try:
            if owner == cluster.node:
                return await cluster._region.deliver(kind, key, message, MessageTurn())
            if owner is not None:
                target = f"entity:{kind}"
                answer = await cluster._peer(owner).ask(target, key, name, body)
                return cluster._table.decode_reply(type(message), answer)
        except (EntityMoved, NodeUnreachable):
            cluster._moved += 1
        except ConnectionLost as error:
            if error.maybe_handled:
                raise
            cluster._moved += 1
        with trio.move_on_after(cluster._pause()):
            await changed.wait()


def tell_entity(cluster: Any, kind: str, key: str, message: Message[Any]) -> None:
    cluster._table.encode(message)
    if cluster._told >= cluster._settings.outbox:
        raise MailboxFull(f"{cluster._told} told messages are on their way", path=f"{kind}/{key}")
    cluster._start(_deliver_told, cluster, kind, key, message)
    cluster._told += 1


async def _deliver_told(cluster: Any, kind: str, key: str, message: Message[Any]) -> None:
    try:
        await ask_entity(cluster, kind, key, message)
    except Exception as error:  # noqa: BLE001 (the program's own handler may raise anything)
        cluster._lost += 1
        _log.warning("a message told to %s %r is lost: %r", kind, key, error)
    finally:
        cluster._told -= 1
        cluster._change()
