"""Sequences of a paged cache, as the program keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....memory import Rows


@dataclass(frozen=True, slots=True)
class KVCacheStatistics:
    """Contents of a cache.

    Attributes:
        sequences: number of sequences.
        tokens: rows of all sequences, each counted in its longest layer.
        pages: number of pages.
        used: pages in use.
        shared: pages in use by more than one sequence.
        copied: pages that were copied so far, because a sequence wrote to a shared page.
        nbytes: bytes of memory, in use or not.
    """

    sequences: int
    tokens: int
    pages: int
    used: int
    shared: int
    copied: int
    nbytes: int


@dataclass(slots=True)
class PagedSequence:
    """A sequence.

    Attributes:
        pages: in order.
        lengths: in each layer.
        growing: whether a block of ``growing`` is open with it.
    """

    pages: list[int]
    lengths: list[int]
    growing: bool = False


@dataclass(frozen=True, slots=True)
class CacheGrowth:
    """Changes that new rows need, before they are written.

    Attributes:
        layer: the layer of the rows.
        new: number of rows for each sequence.
        lengths: lengths of the sequences before, in that layer.
        pages: their pages afterwards.
        copies: pages to copy, from and to.
        taken: number of pages taken from the free ones.
    """

    layer: int
    new: int
    lengths: dict[int, int]
    pages: dict[int, list[int]]
    copies: list[tuple[int, int]]
    taken: int


@dataclass(frozen=True, slots=True)
class HeldPage:
    """A shared page that was copied for a sequence, and is kept until the copy is proven.

    Attributes:
        number: the sequence.
        old: the page.
        new: its copy.
        lengths: lengths of the sequence before.
        rows: the rows that were written right after the copy.
    """

    number: int
    place: int
    old: int
    new: int
    lengths: tuple[int, ...]
    rows: Rows
