"""What a host keeps for the handles of a program: events, kernels, recorded programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

from ._ref import Block, Epoch

if TYPE_CHECKING:
    from collections import deque

    from ..wire import Message
    from ._map import MemoryMap


class Release(NamedTuple):
    """What has a host let go of something.

    Attributes:
        lane: the lane that executes it.
        name: its name, for people.
        message: its message.
    """

    lane: str
    name: str
    message: Message


@final
class Kept(Block):
    """Something in the host that is there for a handle of the program.

    Ops that need it name it as read or written, like memory. It has none; but as a block it
    lives until its handle and the last of those ops are gone. It then notes that the host may
    let go, and the program's own thread tells the host.

    Args:
        memory: the map of the device, whose present generation it belongs to.
        dropped: where to note it.
        release: what to tell the host.
    """

    __slots__ = ("_dropped", "_release")

    def __init__(
        self, memory: MemoryMap, dropped: deque[tuple[Epoch | None, Release]], release: Release
    ) -> None:
        super().__init__(memory, 0, 0, memory.epoch)
        self._dropped: Final = dropped
        self._release: Final = release

    def __del__(self) -> None:
        # In any thread, in the middle of anything.
        self._dropped.append((self.epoch, self._release))
