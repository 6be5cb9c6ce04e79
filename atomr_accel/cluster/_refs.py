"""Addresses of actors and entities anywhere in a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import trio

from ..actors import ActorRef, Message
from ..actors.util import NoPublicConstructor, check_instance
from ._asking import ask_entity, ask_node, tell_entity, tell_node, watch_node

if TYPE_CHECKING:
    from ._cluster import Cluster

R = TypeVar("R")


@final
class RemoteRef(metaclass=NoPublicConstructor):
    """The address of an actor that a node has published. ``cluster.actor(node, name)`` makes one.

    It does what an `ActorRef` does. Two things differ, because connections end. ``ask`` may raise
    `ConnectionLost`, which says whether the message may have been handled. A told message can get
    lost; ``cluster.statistics()`` counts those.
    """

    _made_by: ClassVar[str] = "cluster.actor(node, name)"

    def __init__(self, cluster: Cluster, node: str, name: str) -> None:
        self._cluster = cluster
        self.node = node
        self.name = name

    def __repr__(self) -> str:
        return f"<RemoteRef {self.name!r} of {self.node}>"

    async def ask(self, message: Message[R]) -> R:
        """Send a message and wait for the answer.

        If you are cancelled, a message that the actor has not begun to handle is taken back.

        Args:
            message: what to send, of a class that both nodes declare.

        Returns:
            What the handler returned.

        Raises:
            TypeError: the message is not declared, or a field has another type.
            NoSuchActor: nothing is published under the name.
            NodeUnreachable: the node cannot be connected to. The message was not handled.
            ConnectionLost: the connection ended before the answer came.
            MailboxFull: too many messages to the node wait.
            Exception: what the handler raised; `RemoteError` if its type is not known here.
        """
        _check_message(message)
        answer: R = await ask_node(self._cluster, self.node, f"/{self.name}", None, message)
        return answer

    def tell(self, message: Message[Any]) -> None:
        """Send a message without waiting for anything.

        Messages of one node to an actor arrive in their order.

        Args:
            message: what to send, of a class that both nodes declare.

        Raises:
            MailboxFull: too many messages to the node wait.
        """
        _check_message(message)
        tell_node(self._cluster, self.node, f"/{self.name}", message)

    def watch(self, watcher: ActorRef) -> None:
        """Have a local actor told when this one has ended: it gets a `RemoteTerminated`.

        It also gets one if the connection to the node is lost, or cannot be made.

        Args:
            watcher: the local actor.
        """
        check_instance("watcher", watcher, ActorRef)
        self._cluster._start(watch_node, self._cluster, self.node, self.name, watcher)


@final
class EntityRef(metaclass=NoPublicConstructor):
    """The address of an entity, wherever it is. ``cluster.entity(Type, key)`` makes one."""

    _made_by: ClassVar[str] = "cluster.entity(Type, key)"

    def __init__(self, cluster: Cluster, kind: str, key: str) -> None:
        self._cluster = cluster
        self.kind = kind
        self.key = key

    def __repr__(self) -> str:
        return f"<EntityRef {self.kind} {self.key!r}>"

    async def ask(self, message: Message[R]) -> R:
        """Send a message and wait for the answer, also while the entity moves.

        A message that had no effect is sent again, to wherever the entity is then, until the
        answer comes: put a deadline around it. Messages of one sender are handled in their order as
        long as the entity stays on its node.

        Args:
            message: what to send, of a declared class.

        Returns:
            What the handler returned.

        Raises:
            TypeError: the message is not declared, or a field has another type.
            ConnectionLost: the node was lost while the message may have been handled.
            ActorStopped: likewise, on a node that gave the entity up meanwhile.
            StoreUnavailable: the store did not answer; ``maybe_done`` says what that means.
            MailboxFull: too many messages wait.
            Exception: what the handler raised; `RemoteError` if its type is not known here.
        """
        _check_message(message)
        answer: R = await ask_entity(self._cluster, self.kind, self.key, message)
        return answer

    def tell(self, message: Message[Any]) -> None:
        """Send a message without waiting for anything.

        It is delivered as one that is asked. If that fails, it is counted as lost.

        Args:
            message: what to send, of a declared class.

        Raises:
            MailboxFull: too many told messages are on their way.
        """
        _check_message(message)
        tell_entity(self._cluster, self.kind, self.key, message)


def _check_message(message: object) -> None:
    if not isinstance(message, Message):
        raise TypeError(f"a message must be an instance of a Message, not {message!r}")
    trio.lowlevel.current_task()  # an error here, rather than in another thread's cluster
