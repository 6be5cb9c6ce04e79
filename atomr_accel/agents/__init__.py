"""Parts of agents that survive faults: vectors and documents, caches, shared state, step graphs."""

from ._errors import (
    AgentError,
    FilesDamaged,
    FilesFailed,
    FilesForeign,
    FilesInUse,
    IdTaken,
    IdUnknown,
)
from ._vector_index import (
    DeleteVectors,
    GetVectors,
    InsertVectors,
    Matches,
    SearchVectors,
    UpdateVectors,
    VectorEntry,
    VectorIndex,
    VectorIndexStatistics,
    open_vector_index,
)

__all__ = [
    "AgentError",
    "DeleteVectors",
    "FilesDamaged",
    "FilesFailed",
    "FilesForeign",
    "FilesInUse",
    "GetVectors",
    "IdTaken",
    "IdUnknown",
    "InsertVectors",
    "Matches",
    "SearchVectors",
    "UpdateVectors",
    "VectorEntry",
    "VectorIndex",
    "VectorIndexStatistics",
    "open_vector_index",
]
