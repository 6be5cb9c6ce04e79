"""Messages of the lanes of collectives.

The program numbers communicators, and never uses a number again. An address that a rank does not
need is 0.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from ....wire import Address, Message

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
"""Kind of a step; ``"send"`` is both ends of a transfer between two ranks."""

Reduction = Literal["sum", "prod", "min", "max", "avg"]

ID_BYTES: Final = 128
"""``NCCL_UNIQUE_ID_BYTES``"""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class MakeId(Message, frozen=True):
    """Make what the ranks of one communicator find each other by (``ncclGetUniqueId``)."""

    returns: ClassVar[Any] = Annotated[
        bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)
    ]


class Join(Message, frozen=True):
    """Make a rank join a communicator; done once all ranks have (``ncclCommInitRankConfig``).

    Attributes:
        communicator: its number.
        rank: which rank, from 0 on.
        size: the number of ranks.
        meeting: the id by which they meet, from ``MakeId``.
        area: the address of the memory in which they meet, on backends that share some.
    """

    waits: ClassVar[bool] = True

    communicator: int
    rank: int
    size: int
    meeting: bytes
    area: int


class CollectiveStep(msgspec.Struct, frozen=True, array_like=True):
    """One rank's part in one collective.

    Attributes:
        kind: the collective.
        dtype: the elements' dtype, by name.
        count: elements of one piece, which a rank gives to all, or to each, or gets.
        source: address of the elements that it gives; 0: nothing.
        target: address for the elements that it gets; 0: nothing.
        root: the rank that gives, or gets, if only one does.
        to: the rank that ``"send"`` goes to.
        reduction: the operator that combines elements, if the collective reduces.
        scale: factor of each rank's elements before the reduction (``ncclRedOpCreatePreMulSum``).
        sends: elements for each rank, one after the other in the source (``"all_to_all_v"``).
        receives: elements from each rank, one after the other in the target.
        longest: elements of the longest piece of any rank.
        at: the number of its first round; each round has two (see ``_area``). In a recording it is
            counted from the replay's first, see ``BeginReplay``.
    """

    kind: Kind
    dtype: str
    count: _Count
    source: Address
    target: Address
    root: int = 0
    to: int = 0
    reduction: Reduction = "sum"
    scale: float | None = None
    sends: tuple[_Count, ...] = ()
    receives: tuple[_Count, ...] = ()
    longest: _Count = 0
    at: int = 0


class Collect(Message, frozen=True):
    """Take part in collectives, in this order and as one (``ncclGroupStart``).

    Attributes:
        communicator: its number.
        steps: the rank's part in each of them.
        recorded: whether they are a part of a recording. Then the replay is the op that is counted.
    """

    waits: ClassVar[bool] = True

    communicator: int
    steps: tuple[CollectiveStep, ...]
    recorded: bool = False


class BeginReplay(Message, frozen=True):
    """Begin a replay in which collectives are recorded.

    Attributes:
        communicator: its number.
        at: the number of the replay's first round.
    """

    communicator: int
    at: int


class AbortCommunicator(Message, frozen=True):
    """Leave a communicator, whatever is under way there (``ncclCommAbort``)."""

    required: ClassVar[bool] = True

    communicator: int


class AskBegun(Message, frozen=True):
    """Ask how many ops of a communicator this rank has begun; joining it is the first.

    It raises an error that has happened meanwhile (``ncclCommGetAsyncError``).
    """

    returns: ClassVar[Any] = Annotated[int, msgspec.Meta(ge=0)]

    communicator: int
