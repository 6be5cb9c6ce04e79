"""What the lanes of collectives execute.

Communicators have numbers, which the program gives and never gives again. Addresses that a rank
has no use for are 0.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

import msgspec

from ....wire import Message

Kind = Literal[
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "send",
]
"""What is done; ``"send"`` is for two ranks, both ends of it."""

Reduction = Literal["sum", "prod", "min", "max", "avg"]

ID_BYTES: Final = 128
"""``NCCL_UNIQUE_ID_BYTES``"""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class MakeId(Message, frozen=True):
    """Make what the ranks of one communicator find each other by (``ncclGetUniqueId``)."""

    returns: ClassVar = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]


class Join(Message, frozen=True):
    """Be a rank of a communicator; done once all ranks are (``ncclCommInitRankConfig``).

    Attributes:
        communicator: its number.
        rank: which rank, from 0 on.
        size: how many there are.
        meeting: what they meet by: what ``MakeId`` gave.
        area: where the memory lies that they meet in, on backends that share some.
    """

    waits: ClassVar = True

    communicator: int
    rank: int
    size: int
    meeting: bytes
    area: int


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One rank's part in one collective.

    Attributes:
        kind: which.
        dtype: of the elements, by name.
        count: elements of one piece: what a rank gives to all, or to each, or what it gets.
        source: address of what it gives; 0: nothing.
        target: address of what it gets; 0: nothing.
        root: the rank that gives, or gets, where one does.
        to: the rank that ``"send"`` goes to.
        reduction: how elements are made one, where they are.
        scale: what each rank's elements are multiplied by before (``ncclRedOpCreatePreMulSum``).
        sends: elements for each rank, one after the other in the source (``"all_to_all_v"``).
        receives: elements from each rank, one after the other in the target.
        longest: elements of the longest piece of any rank.
        at: the number of its first round; each round has two (see ``_area``).
    """

    kind: Kind
    dtype: str
    count: _Count
    source: int
    target: int
    root: int = 0
    to: int = 0
    reduction: Reduction = "sum"
    scale: float | None = None
    sends: tuple[_Count, ...] = ()
    receives: tuple[_Count, ...] = ()
    longest: _Count = 0
    at: int = 0


class Collect(Message, frozen=True):
    """Take part in collectives, in this order and as one (``ncclGroupStart``)."""

    waits: ClassVar = True

    communicator: int
    steps: tuple[Step, ...]


class Abort(Message, frozen=True):
    """Leave a communicator, whatever is under way there (``ncclCommAbort``)."""

    required: ClassVar = True

    communicator: int


class Revoke(Message, frozen=True):
    """Stop what is under way in a communicator, which is to be shrunk (``ncclCommRevoke``)."""

    required: ClassVar = True

    communicator: int


class Shrink(Message, frozen=True):
    """Be a rank of what is left of a communicator that was revoked (``ncclCommShrink``).

    Attributes:
        communicator: its number.
        parent: the number of the one that it is left of, which must be left afterwards.
        excluded: the ranks of the parent that are gone.
        rank: which rank of the new one.
        size: how many there are.
    """

    waits: ClassVar = True

    communicator: int
    parent: int
    excluded: tuple[int, ...]
    rank: int
    size: int


class AskBegun(Message, frozen=True):
    """Ask how many ops of a communicator this rank has begun, of which the first is to join it.

    Raises what has gone wrong meanwhile (``ncclCommGetAsyncError``).
    """

    returns: ClassVar = Annotated[int, msgspec.Meta(ge=0)]

    communicator: int
