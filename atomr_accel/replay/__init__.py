"""Journals of what a program asks of a device."""
from ._journal import Journal, open_journal
__all__ = ["Journal", "open_journal"]
