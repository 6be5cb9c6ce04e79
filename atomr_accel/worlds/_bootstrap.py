"""Bootstraps: how the ranks of a communicator find each other.

A world over several machines would replace them. A bootstrap is a function of members, in the
order of their ranks, that returns a ``Meeting``. If the devices' memory is host memory, hosts meet
in shared memory. Otherwise the first rank's host makes an identifier, and the vendor library
connects the ranks by it.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, final

import numpy as np
import trio

from ..device.interop.mapping import mapped, unmap
from ..libraries.nccl.lanes import COLLECTIVES
from ..libraries.nccl.wire.area import Area
from ..libraries.nccl.wire.messages import MakeId
from ..ops import Request, Submission, perform
from ..wire import SLAB_SHIFT, map_file, shared_fd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..device.core import DeviceCore
    from ..device.parts import ServingContext
    from ..ops import Preparer
    from ._member import DeviceMember


async def meet(members: Sequence[DeviceMember]) -> SharedMeeting | NamedMeeting:
    """Have devices of one machine meet.

    Raises:
        ContextPoisoned, DeviceLost: one of them failed.
        LibraryMissing: the vendor's library is not installed.
        OutOfMemory: no room for the memory that they share.
    """
    if members[0].core.capabilities.host_memory:
        return await SharedMeeting.open([member.core for member in members])
    return NamedMeeting(await perform(members[0].core, Request(COLLECTIVES, "nccl.id", _make_id)))


def _make_id(_preparer: Preparer) -> Submission[bytes]:
    return Submission(MakeId(), (), ())


@final
class NamedMeeting:
    """Ranks that find each other by an identifier (``ncclUniqueId``)."""

    def __init__(self, identifier: bytes) -> None:
        self._identifier = identifier

    def place_of(self, rank: int) -> tuple[bytes, int]:
        """See ``Meeting.place_of``."""
        del rank
        return self._identifier, 0

    def abort(self) -> None:
        """Only hosts can."""

    async def close(self) -> None:
        """Nothing is held."""
        await trio.lowlevel.checkpoint()


@final
class SharedMeeting:
    """Ranks that meet in memory of this machine."""

    def __init__(self, area: Area) -> None:
        self._area: Area | None = area
        self._addresses: list[int] = []
        self._mapped = AsyncExitStack()

    @classmethod
    async def open(cls, cores: Sequence[DeviceCore]) -> SharedMeeting:
        """Make memory, and have all hosts map it."""
        nbytes = Area.nbytes(len(cores))
        fd = shared_fd(nbytes, "atomr-world")
        try:
            memory = np.frombuffer(map_file(fd, nbytes), np.uint8)
            meeting = cls(Area(memory, len(cores)))
            async with AsyncExitStack() as undo:
                undo.push_async_callback(meeting.close)
                for core in cores:
                    context, number = await mapped(core, fd, nbytes, sealed=False)
                    meeting._add(core, context, number)
                undo.pop_all()
        finally:
            os.close(fd)
        return meeting

    def _add(self, core: DeviceCore, context: ServingContext, number: int) -> None:
        self._addresses.append(number << SLAB_SHIFT)
        self._mapped.push_async_callback(unmap, core, context, number)

    def place_of(self, rank: int) -> tuple[bytes, int]:
        """See ``Meeting.place_of``."""
        return b"", self._addresses[rank]

    def abort(self) -> None:
        """See ``Meeting.abort``: also those go who are threads of this process."""
        if self._area is not None:
            self._area.abort()

    async def close(self) -> None:
        """Have hosts unmap it."""
        self._area = None  # with it goes the program's mapping
        await self._mapped.aclose()
