"""How a facade runs an op: check, make outputs, submit, with nothing awaited in between.

Where making an output or reaching the lane takes a wait, everything is checked again
afterwards, because a rebuild may have come between. What an op has to check is therefore
one plain function, ``prepare``, that may be called several times.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, final

from ..memory import GpuRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from ..memory import Block
    from ..wire import Message
    from ._library import LaneSpec, Submitter


class Prepared(NamedTuple):
    """An op that was checked.

    Attributes:
        message: what the lane executes.
        reads: the blocks it reads.
        writes: the blocks it writes.
        result: what the caller gets; whatever the lane answers, if it is None.
    """

    message: Message
    reads: Iterable[Block]
    writes: Iterable[Block]
    result: Any = None


class _Wait(Exception):
    """There is no room for an output right now."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        super().__init__()
        self.shape = shape
        self.dtype = dtype


@final
class Room:
    """Where ``prepare`` makes its outputs and scratch memory.

    What it made before a wait serves again after it, so ask in the same order each time.
    """

    __slots__ = ("_device", "_given", "_made")

    def __init__(self, device: Submitter) -> None:
        self._device = device
        self._made: list[GpuRef] = []
        self._given = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """An uninitialised buffer."""
        device = self._device
        if self._given < len(self._made):
            ref = self._made[self._given]
            known = ref.shape == shape and ref.dtype is dtype
            if known and ref._block.epoch is device.memory.epoch:
                self._given += 1
                return ref
            del self._made[self._given :]
        made = device.try_empty(shape, dtype, math.prod(shape) * dtype.itemsize)
        if made is None:
            raise _Wait(shape, dtype)
        self._made.append(made)
        self._given += 1
        return made

    def rewind(self) -> None:
        """Give out from the first one again."""
        self._given = 0

    async def make(self, wait: _Wait) -> None:
        """Make what there was no room for."""
        self._made.append(await self._device.empty(wait.shape, wait.dtype))


async def perform(
    device: Submitter, lane: LaneSpec, name: str, prepare: Callable[[Room], Prepared]
) -> Any:
    """Run an op.

    Args:
        device: where.
        lane: on which lane.
        name: what to call it.
        prepare: checks the arguments and makes the outputs.

    Returns:
        ``prepare``'s result, or the lane's answer where that is None.
    """
    room = Room(device)
    while True:
        try:
            message, reads, writes, result = prepare(room)
        except _Wait as wait:
            shortage = wait
        else:
            port = device.ports.get(lane.name)
            if port is not None:
                answer = await device.submit(port, name, message, reads, writes).wait()
                return answer if result is None else result
            await device.open_lane(lane)
            room.rewind()
            continue
        await room.make(shortage)
        room.rewind()
