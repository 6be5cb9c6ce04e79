"""Nodes as others see them, and as they see themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec


class Announcement(msgspec.Struct, frozen=True):
    """A node's own words in the store.

    Attributes:
        life: tells this run of the node from others.
        process: the process in which it runs, for others on its machine.
    """

    life: str
    address: str
    draining: bool
    devices: int = 0
    published: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()
    process: str = ""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as this one knows it.

    Attributes:
        name: its name.
        address: where it takes connections.
        life: tells this run of the node from others.
        draining: whether it takes no entities: it is about to leave, or only asks others.
        devices: number of devices that it shares; none any more when it is about to leave.
        published: names of its actors that others may send messages to; likewise.
        shares: names of its fair shares that others may take turns of; likewise.
    """

    name: str
    address: str
    life: str
    draining: bool
    devices: int = 0
    published: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()


@lru_cache(maxsize=4096)
def read_announcement(name: str, value: bytes) -> tuple[ClusterNode, str]:
    """Return a node that has said this, and its process."""
    said = msgspec.msgpack.decode(value, type=Announcement)
    node = ClusterNode(
        name,
        said.address,
        said.life,
        said.draining,
        said.devices,
        said.published,
        said.shares,
    )
    return node, said.process


@dataclass(frozen=True, slots=True)
class ClusterStatistics:
    """A node of a cluster at one moment.

    Attributes:
        node: its name.
        nodes: names of the nodes that live, this one included.
        shards: shards that this node holds.
        entities: instances of entities here.
        depth: messages from here that wait for answers.
        in_progress: messages to entities of this node that are not answered.
        handed: shards that were handed over to others.
        dropped: shards whose lease was lost.
        moved: messages that were sent again, because their entity had moved.
        lost: told messages that were lost.
        store_failures: calls that the store did not answer.
        sealed: sealed buffers that others may fetch from here.
    """

    node: str
    nodes: tuple[str, ...]
    shards: int
    entities: int
    depth: int
    in_progress: int
    handed: int
    dropped: int
    moved: int
    lost: int
    store_failures: int
    sealed: int
