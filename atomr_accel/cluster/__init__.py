"""Clusters: actors, entities and devices over many machines.

``async with open_cluster("chat", node="node-1", store=store, ...) as cluster:`` and then
``await cluster.entity(Room, "lobby").ask(Say("hello"))``.
"""

from ._errors import (
    ClusterError,
    ConnectionLost,
    EntityMoved,
    LeaseLost,
    NodeUnreachable,
    PeerRefused,
    ProtocolViolated,
    StoreUnavailable,
    VersionConflict,
)
from ._sql_store import PostgresStore, SqliteStore, open_postgres_store, open_sqlite_store
from ._store import FencingStore, Lease, MemoryStore, StoreEntry

__all__ = [
    "ClusterError",
    "ConnectionLost",
    "EntityMoved",
    "FencingStore",
    "Lease",
    "LeaseLost",
    "MemoryStore",
    "NodeUnreachable",
    "PeerRefused",
    "PostgresStore",
    "ProtocolViolated",
    "SqliteStore",
    "StoreEntry",
    "StoreUnavailable",
    "VersionConflict",
    "open_postgres_store",
    "open_sqlite_store",
]
