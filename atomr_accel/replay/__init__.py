"""Journals of a program's calls to a device, for replays and for the explanation of faults.

async with open_journal(device, "run.journal", contents=True):   # notes every call
    ...
print(await replay_journal("run.journal", device))               # what differs, where, by how much
buffers = await state_at("run.journal", 41, device)              # the state after call 41
print(await explain("run.journal", out="fault.py"))              # the least that faults again

Functions that read a journal raise ``FileNotFoundError`` if it does not exist, `JournalError` if
the storage holds none or one of another version, and `JournalDamaged` if its data has changed.
"""

from ._compare import TOLERANCES, Compared, Deviation
from ._entries import SCHEMA
from ._explain import Explanation, explain
from ._journal import Journal, JournalStatistics, open_journal
from ._player import Difference, Report, Skipped, content_hash, replay_journal, state_at
from ._postgres import PostgresStorage
from ._reading import read_journal
from ._redis import RedisStorage
from ._restore import view_of
from ._sqlite import SqliteStorage
from ._storage import JournalDamaged, JournalError, JournalFull, Record, Storage, Stored

__all__ = [
    "SCHEMA",
    "TOLERANCES",
    "Compared",
    "Deviation",
    "Difference",
    "Explanation",
    "Journal",
    "JournalDamaged",
    "JournalError",
    "JournalFull",
    "JournalStatistics",
    "PostgresStorage",
    "Record",
    "RedisStorage",
    "Report",
    "Skipped",
    "SqliteStorage",
    "Storage",
    "Stored",
    "content_hash",
    "explain",
    "open_journal",
    "read_journal",
    "replay_journal",
    "state_at",
    "view_of",
]
