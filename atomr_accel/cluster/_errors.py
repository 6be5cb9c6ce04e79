"""The errors of clusters: one branch of the package's tree.

AccelError
└── ClusterError
    ├── NodeUnreachable     no connection to a node: the message was not handled
    ├── ConnectionLost      a connection ended; it says whether the message may have been handled
    ├── PeerRefused         the other node is of another cluster, version or certificate
    ├── ProtocolViolated    bytes that are no frames of the protocol
    ├── EntityMoved         another node holds the entity now; the message had no effect
    ├── EpochOver           the store has refused an effect of an old epoch
    ├── RayNodeLost         a node on Ray has ended, or does not live by its lease
    ├── VersionConflict     the value under a key is of another version
    └── StoreUnavailable    the store did not answer; it says whether the call may have happened
"""

from __future__ import annotations

from typing import ClassVar

from .._errors import AccelError


class ClusterError(AccelError):
    """Base of the errors of clusters."""


class _AboutANode(ClusterError):
    """An error that says which node it is about.

    Attributes:
        node: the node's name.
    """

    _fields: ClassVar[tuple[str, ...]] = ("node",)

    def __init__(self, message: str, *, node: str) -> None:
        super().__init__(message)
        self.node = node


class NodeUnreachable(_AboutANode):
    """No connection to the node could be made. The message was not handled."""


class ConnectionLost(_AboutANode):
    """The connection to a node ended before the answer came.

    A local ``ask`` has no such error. Repeat the message if it was not handled, or if handling it
    twice does no harm.

    Attributes:
        maybe_handled: False if the message certainly was not handled.
    """

    _fields = ("node", "maybe_handled")

    def __init__(self, message: str, *, node: str, maybe_handled: bool) -> None:
        super().__init__(message, node=node)
        self.maybe_handled = maybe_handled


class RayNodeLost(_AboutANode):
    """A node on Ray has ended, was not there in time, or does not live by its lease.

    `open_ray_cluster` raises it for a node that never joined, and starts later ones again.
    """


class PeerRefused(ClusterError):
    """The other side of a connection is of another cluster, version, name or certificate."""


class ProtocolViolated(ClusterError):
    """The other side sent bytes that no frame of the protocol has. The connection is closed."""


class EntityMoved(ClusterError):
    """The entity's node has lost its lease, or is handing it over. The message had no effect."""


class EpochOver(ClusterError):
    """The store has refused an effect, because its lease is of an old epoch."""


class VersionConflict(ClusterError):
    """The value of a key is of another version than the call expects.

    Attributes:
        version: the present version.
    """

    _fields = ("version",)

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


class StoreUnavailable(ClusterError):
    """The store did not answer.

    Attributes:
        maybe_done: False if the call certainly changed nothing.
    """

    _fields = ("maybe_done",)

    def __init__(self, message: str, *, maybe_done: bool = True) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done
