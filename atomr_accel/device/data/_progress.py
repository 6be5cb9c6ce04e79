"""Progress of long transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
class Transfer:
    """A long transfer in progress."""

    __slots__ = ("done", "name", "nbytes")

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        self.done = 0

    def add(self, length: int) -> None:
        """Note the arrival of ``length`` more bytes."""
        self.done += length


@dataclass(frozen=True, slots=True)
class TransferStatistics:
    """Progress of a long transfer.

    Attributes:
        name: ``"put"`` or ``"get"``.
        nbytes: size of the transfer in bytes.
        done: number of bytes that have arrived.
    """

    name: str
    nbytes: int
    done: int
