"""The errors of agents' parts: one branch of the package's tree.

    AccelError
    └── AgentError
        ├── IdTaken         an id to insert is in the index already (also a ValueError)
        ├── IdUnknown       an id is not in the index (also a KeyError)
        ├── FilesDamaged    files do not fit their checksums, or are missing
        ├── FilesForeign    files of another program or version
        ├── FilesInUse      another program, or another block of this one, has them open
        ├── FilesFailed     the file system refused a write
        ├── NameUnknown     no state or document has that name (also a KeyError)
        ├── LeaseLost       a lease has ended, or its name was deleted
        ├── StepsExceeded   a run took more steps than its limit
        ├── ThreadBusy      a run of this thread is in progress
        └── ThreadUnknown   nothing is kept of this thread (also a KeyError)

Bad arguments are plain ``ValueError`` and ``TypeError``, raised before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .._errors import AccelError


class AgentError(AccelError):
    """Base of the errors of `atomr_accel.agents`."""


class _AboutIds(AgentError):
    """An error that says which ids it is about.

    Attributes:
        ids: these ids, at most ten of them.
    """

    _fields = ("ids",)

    def __init__(self, message: str, *, ids: Sequence[int]) -> None:
        super().__init__(message)
        self.ids: Final = tuple(ids)


class _AbsentKey(AgentError, KeyError):
    """Something is not there."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show its repr


class IdTaken(_AboutIds, ValueError):
    """Ids that an insert would add are in the index already. Nothing was written."""


class IdUnknown(_AboutIds, _AbsentKey):
    """Ids that are not in the index. Nothing was written."""


class FilesDamaged(AgentError):
    """A file's checksum does not fit its content, or a file is missing.

    Nothing is repaired by guessing: restore the files from a copy.
    """


class FilesForeign(AgentError):
    """The files are not of this kind, or of another version of it."""


class FilesInUse(AgentError):
    """The files are open elsewhere, and only one block at a time may have them open."""


class FilesFailed(AgentError):
    """The file system refused a write, for example because it is full. ``__cause__`` says why.

    The write is not acknowledged. Everything acknowledged before is kept.
    """


class NameUnknown(_AbsentKey):
    """Shared state, or a collection of documents, does not have that name."""


class LeaseLost(AgentError):
    """A lease has ended: its block was left, its holder ended, it was revoked, or the name deleted.

    Nothing was written.
    """


class StepsExceeded(AgentError):
    """A run took more steps than its limit. Its steps are kept, so it may be resumed."""


class ThreadBusy(AgentError):
    """A run of this thread is in progress, and each thread has one at a time."""


class ThreadUnknown(_AbsentKey):
    """Nothing is kept of this thread, or not that step."""
