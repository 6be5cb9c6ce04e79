"""Objects that a host keeps for the handles of a program: events, kernels, recorded programs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, final

import msgspec

from ._block import Block, Epoch

if TYPE_CHECKING:
    from ..wire import Message
    from .map import MemoryMap


class Release(NamedTuple):
    """A message that makes a host release an object.

    Attributes:
        lane: the lane that executes it.
        name: the object's name, for errors.
        message: its message.
    """

    lane: str
    name: str
    message: Message


@final
class Kept(Block, eq=False):
    """An object in the host that belongs to a handle of the program.

    Ops that need it name it as read or written, like memory. It has no memory, but like a block it
    lives until its handle and the last of those ops are gone. It then adds ``release`` to
    ``let_go``, and the program's own thread sends it to the host.

    Attributes:
        let_go: gets the epoch and ``release`` at the end.
        release: the message that releases the object in the host.
    """

    let_go: deque[tuple[Epoch | None, Release]] = msgspec.field(default_factory=deque)
    release: Release | None = None

    def __del__(self) -> None:
        # In any thread, in the middle of anything.
        if self.release is not None:
            self.let_go.append((self.epoch, self.release))


def keep(memory: MemoryMap, let_go: deque[tuple[Epoch | None, Release]], release: Release) -> Kept:
    """Return the handle of an object that belongs to the present generation.

    Args:
        memory: the map of the device.
        let_go: gets ``release`` when the handle is gone.
        release: the message that the host gets then.
    """
    epoch = memory.epoch
    return Kept(memory, 0, 0, epoch, 0, epoch.generation, let_go=let_go, release=release)
