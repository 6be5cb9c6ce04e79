"""Journals of what a program asks of a device, and doing it again."""

from ._journal import Journal, open_journal
from ._player import Difference, Report, Skipped, content_hash, replay, state_at
from ._reading import read_journal
from ._storage import JournalDamaged, JournalError, JournalFull

__all__ = [
    "Journal",
    "open_journal",
    "Difference",
    "Report",
    "Skipped",
    "content_hash",
    "replay",
    "state_at",
    "read_journal",
    "JournalDamaged",
    "JournalError",
    "JournalFull",
]
