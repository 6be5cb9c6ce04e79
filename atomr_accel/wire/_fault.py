"""The fault that ends a context."""

from __future__ import annotations


class StickyFault(Exception):
    """The context is beyond repair: every further call would report this again.

    Attributes:
        status: the driver's status code.
        status_name: its name.
    """

    def __init__(self, message: str, *, status: int, status_name: str) -> None:
        super().__init__(message)
        self.status = status
        self.status_name = status_name
