"""Windows: slabs of other devices that this device's host has mapped, to copy there directly.

A slab is mapped at the first long copy, and stays mapped, because mapping takes a round trip to the
host and several driver calls. Many copies take less time than that. The mapping keeps the memory,
so a device that gives up a slab has the other devices close their windows on it.

A window on a sealed slab is closed as soon as the copy is done, so other devices reach read-only
memory only while it is being filled.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Final, final

import trio

from ..._errors import LibraryError, OutOfMemory
from ...lanes import END_SECONDS, uninterrupted
from .mapping import mapped

if TYPE_CHECKING:
    from ...memory import MemoryMap, Slab
    from ..core import DeviceCore
    from ..parts import ServingContext


@final
class Window:
    """A mapping of another device's slab in a host.

    Attributes:
        context: the context of that host.
        number: the slab's number there.
    """

    __slots__ = ("_closed", "_core", "_users", "context", "number")

    def __init__(self, core: DeviceCore, context: ServingContext, number: int) -> None:
        self._core = core
        self.context: Final[ServingContext] = context
        self.number: Final[int] = number
        self._users = 0
        self._closed = False

    def hold(self) -> None:
        """Note an op that uses the window."""
        self._users += 1

    def release(self) -> None:
        """Note the end of an op, which moves no more data."""
        self._users -= 1
        self._settle()

    def close(self) -> None:
        """Unmap the window as soon as all its ops have ended."""
        self._closed = True
        self._settle()

    def _settle(self) -> None:
        if self._closed and not self._users and self.context is self._core.serving:
            self._core.memory.unmapped.append(self.number)


@final
@uninterrupted
class Windows:
    """A device's windows on others, and the devices with windows on it."""

    def __init__(self, core: DeviceCore) -> None:
        self._core: Final = core
        self._open: Final[weakref.WeakKeyDictionary[MemoryMap, dict[int, Window]]] = (
            weakref.WeakKeyDictionary()
        )
        self._refused: Final[weakref.WeakSet[MemoryMap]] = weakref.WeakSet()
        self._guests: Final[weakref.WeakSet[DeviceCore]] = weakref.WeakSet()
        self._opening: Final = trio.Lock()

    def find(self, owner: DeviceCore, slab: Slab) -> Window | None:
        """The window on a slab, if there is one that can be used now."""
        window = self._open.get(owner.memory, {}).get(slab.id)
        serving = self._core.context
        return window if window is not None and window.context is serving else None

    async def open(self, owner: DeviceCore, slab: Slab) -> Window | None:
        """Open a window on a slab of which the caller holds a block; None if that cannot be.

        One on a sealed slab is the caller's, to be closed.
        """
        async with self._opening:
            if not owner.memory.has_slab(slab.id):  # its device has failed meanwhile
                return None
            window = self.find(owner, slab)  # another task has opened it meanwhile
            if window is not None or owner.memory in self._refused:
                return window
            try:
                fd = owner.growth.another(slab.fd, slab.nbytes)
                try:
                    context, number = await mapped(self._core, fd, slab.nbytes, sealed=False)
                    window = Window(self._core, context, number)
                finally:
                    os.close(fd)
            except OutOfMemory:
                return None  # there may be room another time
            except LibraryError:
                self._refused.add(owner.memory)  # the devices are not connected
                return None
            if not owner.memory.has_slab(slab.id):  # a fault there, and the caller's ref is stale
                window.close()
                return None
            if slab.sealed:
                return window
            owner.windows.admit(self._core)
            self._open.setdefault(owner.memory, {})[slab.id] = window
            return window

    def admit(self, guest: DeviceCore) -> None:
        """Note a device that has a window on this one."""
        self._guests.add(guest)

    def drop(self, owner: DeviceCore, slab: int) -> None:
        """Close a window, because its slab is given up."""
        window = self._open.get(owner.memory, {}).pop(slab, None)
        if window is not None:
            window.close()

    def given_up(self, slab: int) -> None:
        """Close all windows on a slab of this device, because it is given up."""
        for guest in self._guests:
            guest.windows.drop(self._core, slab)

    async def close_guests(self) -> None:
        """Have others unmap what this device has given up, and wait as long as that makes sense.

        A host that does not answer is given up by its own device, which may take longer.
        """
        unmapped = [
            guest.growth.unmap_soon()
            for guest in self._guests
            if guest.serving is not None and guest.growth.unmaps
        ]
        with trio.move_on_after(END_SECONDS):
            for event in unmapped:
                await event.wait()
