"""Pieces that a rank writes for others and reads from others, for each collective.

Every collective runs in rounds: all givers fill their slots, all takers read them. In some
collectives a slot has one part, which all read; in others it has a part for each rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from ...._errors import LibraryError
from .area import SLOT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .messages import CollectiveStep

REDUCING: Final = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""The collectives that make one element of several."""

_DIVIDED: Final = frozenset({"scatter", "reduce_scatter", "all_to_all", "all_to_all_v"})
"""Collectives in which a rank gives different elements to each rank."""

_BY_ROOT: Final = frozenset({"broadcast", "scatter", "send"})
_TO_ROOT: Final = frozenset({"reduce", "gather"})


class ExchangePiece(NamedTuple):
    """Elements that travel.

    Attributes:
        rank: the rank that they come from or go to.
        begin: their first position in the source, or in the target.
        length: the number of elements.
    """

    rank: int
    begin: int
    length: int


class RankExchange(NamedTuple):
    """A rank's part in a collective.

    Attributes:
        parts: the number of parts of a slot.
        gives: the pieces that it puts in the parts; empty if it gives nothing.
        takes: the pieces that it takes from others' slots.
        givers: the ranks that give.
        takers: the ranks that take.
    """

    parts: int
    gives: list[ExchangePiece]
    takes: list[ExchangePiece]
    givers: Sequence[int]
    takers: Sequence[int]


def exchange(step: CollectiveStep, rank: int, size: int) -> RankExchange:
    """Return a rank's part in a step of a communicator of ``size`` ranks."""
    kind, every = step.kind, range(size)
    givers: Sequence[int] = (step.root,) if kind in _BY_ROOT else every
    takers: Sequence[int] = (step.root,) if kind in _TO_ROOT else every
    if kind == "send":
        takers = (step.to,)
    parts = size if kind in _DIVIDED else 1
    gives = _pieces(step.sends or (step.count,) * parts, every) if step.source else []
    if kind in REDUCING:
        takes = [ExchangePiece(giver, 0, step.count) for giver in givers]
    else:
        takes = _pieces(step.receives or (step.count,) * len(givers), givers)
    return RankExchange(
        parts,
        gives if rank in givers else [],
        takes if rank in takers and step.target else [],
        givers,
        takers,
    )


def _pieces(counts: Sequence[int], ranks: Sequence[int]) -> list[ExchangePiece]:
    pieces, begin = [], 0
    for rank, count in zip(ranks, counts, strict=False):
        pieces.append(ExchangePiece(rank, begin, count))
        begin += count
    return pieces


def elements_of_a_round(kind: str, size: int, itemsize: int) -> int:
    """Return the number of elements of a piece that fit in one round."""
    return SLOT_BYTES // (size if kind in _DIVIDED else 1) // itemsize


def numbers_of(kind: str, longest: int, size: int, itemsize: int) -> int:
    """Return how many numbers a step takes: two for each of its rounds."""
    return 2 * -(-longest // elements_of_a_round(kind, size, itemsize))


def raise_aborted() -> NoReturn:
    """Say that nothing more can be done with a communicator."""
    raise LibraryError(
        "the communicator was aborted",
        library="nccl",
        call="ncclCommAbort",
        status=6,
        status_name="ncclRemoteError",
    )
