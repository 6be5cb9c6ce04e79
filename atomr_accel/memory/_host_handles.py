"""Objects that a host keeps for the handles of a program: events, kernels, recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

from ._at_end import AtEnd
from ._block import Block

if TYPE_CHECKING:
    from collections import deque

    from ..wire import Message
    from ._block import Epoch
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
    lives until its handle and the last of those ops are gone.

    Attributes:
        release: notes then that the host has to release the object; see ``keep``.
    """

    release: AtEnd | None = None


def keep(memory: MemoryMap, let_go: deque[tuple[Epoch, Release]], release: Release) -> Kept:
    """Return the handle of an object that belongs to the present generation.

    Args:
        memory: the map of the device.
        let_go: gets ``release`` when the handle is gone. The program's thread sends it to the host.
        release: the message that the host gets then.
    """
    epoch = memory.epoch
    at_end = AtEnd(let_go, (epoch, release))
    return Kept(memory, 0, 0, epoch, 0, epoch.generation, release=at_end)
