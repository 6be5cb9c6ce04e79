"""Interfaces of a world's members and of their meetings, for its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..device.batches.record import Recording
    from ..lanes import Op
    from ..libraries.nccl.wire.messages import CollectiveStep
    from ..memory import Block


OnAnswer = Callable[[Exception | None], object]
"""Callback for the answer of a member: an error, or None."""


class Meeting(Protocol):
    """The means by which the ranks of one communicator find each other."""

    def place_of(self, rank: int) -> tuple[bytes, int]:
        """Return the bytes by which a rank finds the others, and an address or 0."""

    def abort(self) -> None:
        """Release ranks that wait in the meeting, as far as the program can do so."""

    async def close(self) -> None:
        """Release the meeting's resources. All ranks have left it."""


class RankReplay(Protocol):
    """A rank's replay of its part of a recording."""

    @property
    def recording(self) -> Recording:
        """The rank's part."""

    def submit(self, number: int, order: Block) -> Op:
        """Submit it, on the communicator with this number, as an op that writes ``order``."""


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of an op.

    Attributes:
        steps: the steps that the rank takes, in order.
        replay: the replay in which the rank takes recorded steps; None if these are not recorded.
    """

    rank: int
    steps: tuple[CollectiveStep, ...] = ()
    reads: tuple[Block, ...] = ()
    writes: tuple[Block, ...] = ()
    replay: RankReplay | None = None


class WorldMember(Protocol):
    """A device, as a world sees it. Its answers arrive as calls, in any order."""

    @property
    def name(self) -> str:
        """Name of the member, for messages."""

    def require_open(self) -> None:
        """Raise unless the member takes ops now or may take them later.

        Raises:
            DeviceLost: the member is lost for good.
        """

    async def start(self) -> None:
        """Wait until the member takes ops, however often it fails before that.

        Raises:
            DeviceLost: the member will not come back.
            LibraryMissing, Unsupported, OutOfMemory: it cannot take ops.
        """

    async def follow(
        self, ready: Callable[[], object], lost: Callable[[Exception], object]
    ) -> None:
        """Call ``ready`` whenever the member starts to take ops, and ``lost`` whenever it fails.

        Raises:
            DeviceLost: the member will not come back.
        """

    def join(
        self, number: int, rank: int, size: int, place: tuple[bytes, int], answered: OnAnswer
    ) -> None:
        """Join the communicator with this number."""

    def collect(self, number: int, name: str, part: RankPart, answered: OnAnswer) -> None:
        """Take part in collectives."""

    def ask_begun(self, number: int, answered: Callable[[int, Exception | None], object]) -> None:
        """Ask how many ops of the communicator have begun. Joining counts as the first."""

    def waits_elsewhere(self) -> bool:
        """Return True if the member's oldest unanswered collective is of another world."""

    def abort(self, number: int, answered: Callable[[], object]) -> None:
        """Leave a communicator, even if ops are in flight."""

    def kill(self, op: str, cause: Exception) -> Exception | None:
        """End the member's host, which hangs in an op. Then further ops wait for the next host.

        Returns:
            The fault that has ended the host, or None if that is not possible.
        """


_M_contra = TypeVar("_M_contra", bound=WorldMember, contravariant=True)


class Bootstrap(Protocol[_M_contra]):
    """Lets the members of a communicator meet, in the order of their ranks.

    A world over several machines would use another bootstrap than one over devices.
    """

    async def __call__(self, members: Sequence[_M_contra], /) -> Meeting:
        """Return the meeting. Release all resources if this fails or is cancelled."""
