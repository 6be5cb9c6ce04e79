"""Clusters: actors, entities and devices over many machines.

``async with open_cluster("chat", node="node-1", store=store, ...) as cluster:`` and then
``await cluster.entity(Room, "lobby").ask(Say("hello"))``.
"""

from ._asking import RemoteTerminated
from ._cluster import Cluster
from ._entity import Entity
from ._errors import (
    ClusterError,
    ConnectionLost,
    EntityMoved,
    EpochOver,
    NodeUnreachable,
    PeerRefused,
    ProtocolViolated,
    RayNodeLost,
    StoreUnavailable,
    VersionConflict,
)
from ._nodes import ClusterNode, ClusterStatistics
from ._open import open_cluster
from ._ray import RayNodes, open_ray_cluster
from ._refs import EntityRef, RemoteRef
from ._remote_devices import RemoteBuffer, RemoteDevice, RemoteRequest
from ._remote_group import RemoteDeviceLoad, RemoteDevices
from ._serving import NodePool, NodeReplicaStatistics
from ._settings import ClusterSettings
from ._sql_store import PostgresStore, SqliteStore, open_postgres_store, open_sqlite_store
from ._store import FencingStore, MemoryStore, StoreEntry, StoreLease
from ._transport import Credentials, TlsTransport, Transport
from .certificates import make_certificates
from .node import ClusterProgram, run_node

__all__ = [
    "Cluster",
    "ClusterError",
    "ClusterNode",
    "ClusterProgram",
    "ClusterSettings",
    "ClusterStatistics",
    "ConnectionLost",
    "Credentials",
    "Entity",
    "EntityMoved",
    "EntityRef",
    "EpochOver",
    "FencingStore",
    "MemoryStore",
    "NodePool",
    "NodeReplicaStatistics",
    "NodeUnreachable",
    "PeerRefused",
    "PostgresStore",
    "ProtocolViolated",
    "RayNodeLost",
    "RayNodes",
    "RemoteBuffer",
    "RemoteDevice",
    "RemoteDeviceLoad",
    "RemoteDevices",
    "RemoteRef",
    "RemoteRequest",
    "RemoteTerminated",
    "SqliteStore",
    "StoreEntry",
    "StoreLease",
    "StoreUnavailable",
    "TlsTransport",
    "Transport",
    "VersionConflict",
    "make_certificates",
    "open_cluster",
    "open_postgres_store",
    "open_ray_cluster",
    "open_sqlite_store",
    "run_node",
]
