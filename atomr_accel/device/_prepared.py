"""A host, and how far it is prepared for a device.

Each step brings what is still missing, so it can be taken at any time, and again when the device
uses more. A context that starts cold takes all of them at once; one that finds a standby takes
them again, and finds nothing to do.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final, final

import trio

from ..lanes import Port, uninterrupted
from ..wire import (
    AskFree,
    Free,
    Import,
    Imported,
    MapSlab,
    Modules,
    Open,
    Opened,
    OpenLane,
    Preload,
    UnmapSlabs,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..lanes import HostHandle
    from ..libraries._library import LaneSpec
    from ..wire import DeviceInfo
    from ._core import DeviceCore

MOST_UNMAPPED: Final = 1024
"""Slabs that one control message names."""


@final
@uninterrupted
class Prepared:
    """A host on its way to serve a device.

    Args:
        host: the host; whoever has this ends it.

    Attributes:
        host: the host.
        info: what the device says of itself, once it is opened.
        mapped: the sealed slabs it has.
        ports: its lanes by name.
        starting: the lane it is starting. It stays if the host does not survive that.
    """

    def __init__(self, host: HostHandle) -> None:
        self.host: Final = host
        self.info: DeviceInfo | None = None
        self.mapped: Final[set[int]] = set()
        self.ports: Final[dict[str, Port]] = {}
        self.starting: str | None = None
        self._loaded: set[str] = set()
        self._imported: set[str] = set()

    async def load(self, core: DeviceCore) -> None:
        """Load what the device uses, as far as that touches none."""
        while references := sorted(core.executors() - self._loaded):
            await self.host.request(Preload(references))
            self._loaded.update(references)

    async def import_modules(self, core: DeviceCore) -> None:
        """Import what functions of the program have imported in another host.

        That takes long, and the host may be taken meanwhile: the imports go on there.
        """
        while modules := [name for name in core.modules if name not in self._imported]:
            done, theirs = os.pipe()
            try:
                try:
                    await self.host.request(Import(modules), theirs)
                finally:
                    os.close(theirs)
                self._imported.update(modules)
                await trio.lowlevel.wait_readable(done)
            finally:
                os.close(done)

    async def learn(self, core: DeviceCore) -> None:
        """Note what the program's functions have imported here."""
        reply, _ = await self.host.request(Imported())
        if isinstance(reply, Modules):
            core.modules.update(dict.fromkeys(reply.names))

    async def free_memory(self) -> int:
        """Bytes of the device's memory that are free; 0 where that tells nothing."""
        reply, _ = await self.host.request(AskFree())
        assert isinstance(reply, Free)
        return reply.nbytes

    async def open(self, core: DeviceCore) -> DeviceInfo:
        """Open the device."""
        if self.info is None:
            staging = core.staging.reserve()
            context = core.backend_description.context
            request = Open(context, core.index, staging.nbytes, core.plan)
            reply, _ = await self.host.request(request, staging.fd)
            assert isinstance(reply, Opened)
            self.info = reply.info
        return self.info

    async def map(self, core: DeviceCore) -> int:
        """Map the sealed slabs that there are, and let go of those that are gone.

        Returns:
            The bytes that were mapped.
        """
        nbytes = 0
        while True:
            sealed = core.memory.sealed_slabs()
            await self.unmap(self.mapped - {slab.id for slab in sealed})
            missing = [slab for slab in sealed if slab.id not in self.mapped]
            if not missing:
                return nbytes
            for slab in missing:
                if not core.memory.has_slab(slab.id):
                    continue  # it was given up meanwhile
                # One of its own, because the slab's is closed when that is given up.
                fd = os.dup(slab.fd)
                try:
                    await self.host.request(MapSlab(slab.id, slab.nbytes, sealed=True), fd)
                finally:
                    os.close(fd)
                self.mapped.add(slab.id)
                nbytes += slab.nbytes

    async def unmap(self, slabs: Iterable[int]) -> None:
        """Unmap those of ``slabs`` that it has."""
        gone = sorted(self.mapped.intersection(slabs))
        for start in range(0, len(gone), MOST_UNMAPPED):
            some = gone[start : start + MOST_UNMAPPED]
            await self.host.request(UnmapSlabs(some))
            self.mapped.difference_update(some)

    async def start_lane(self, core: DeviceCore, spec: LaneSpec, *, vital: bool = False) -> Port:
        """Start a lane, which nobody runs yet.

        Args:
            core: the device.
            spec: the lane.
            vital: whether no host does without it, so that it is not to blame for an end.
        """
        executor = spec.executor_on(core.backend_description)
        index = core.lane_number(spec.name)
        ours, theirs = socket.socketpair()
        # Left as it is where the host does not survive this: then it is what tells why.
        self.starting = None if vital else spec.name
        try:
            await self.host.request(
                OpenLane(spec.name, index, executor, spec.max_streams, core.thread_of(spec)),
                theirs.fileno(),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.starting = None
        ours.setblocking(False)
        port = self.ports[spec.name] = Port(
            spec.name, index, ours, core.in_flight, prompt=core.prompt
        )
        core.add_lane(spec, index)
        return port

    def remove_lane(self, name: str) -> None:
        """End a lane that is not used any more."""
        port = self.ports.pop(name, None)
        if port is not None:
            port.hang_up()
