"""Descriptors of others, mapped by a device's host."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from ...lanes import HostDied
from ...wire import MapSlab, StickyFault

if TYPE_CHECKING:
    from ..core import DeviceCore
    from ..parts import ServingContext


async def mapped(
    core: DeviceCore, fd: int, nbytes: int, *, sealed: bool
) -> tuple[ServingContext, int]:
    """Have the device's host map a foreign descriptor, under a number of its own.

    Raises:
        OutOfMemory: the host, or this process, has no room for the descriptor or the mapping.
        LibraryError: the device cannot map it.
    """
    while True:
        context = await core.ready()
        number = core.memory.new_slab_id()
        try:
            with core.growth.room_for(nbytes):
                request = MapSlab(number, nbytes, sealed)
                await core.reaper.with_room(partial(context.host.request, request, fd))
        except (HostDied, StickyFault):
            context.report_dead()
            continue
        except trio.Cancelled:
            if context is core.context:  # it may have mapped it all the same
                core.memory.unmapped.append(number)
                core.growth.unmap_soon()
            raise
        if context is core.context:
            return context, number


async def unmap(core: DeviceCore, context: ServingContext, number: int) -> None:
    """Undo ``mapped`` if that host still serves, even if the caller is cancelled."""
    if context is core.context:
        core.memory.unmapped.append(number)
        await core.growth.unmap_soon().wait()
