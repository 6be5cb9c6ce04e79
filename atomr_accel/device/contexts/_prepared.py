"""A host in preparation for a device.

Each step adds the parts that are still missing, so it can run at any time, and again when the
device uses more. A context that starts cold runs all steps at once. A context that takes a standby
runs them again, and finds little left to do.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio

from ..._errors import AccelError
from ...lanes import HostDied, Port, uninterrupted
from ...wire import (
    AskFree,
    Free,
    HoldSlabs,
    Import,
    Imported,
    LanesOpened,
    MapSlab,
    Modules,
    Open,
    Opened,
    OpenLane,
    OpenLanes,
    Preload,
    StickyFault,
    UnmapSlabs,
)
from ...wire.channel import MOST_DESCRIPTORS
from .._growth import MOST_UNMAPPED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...lanes import HostHandle
    from ...ops import LaneSpec
    from ...wire import DeviceInfo
    from ..core import DeviceCore


@final
@uninterrupted
class PreparedHost:
    """A host on its way to serve a device.

    Args:
        host: the host; the owner of this object ends it.

    Attributes:
        host: the host.
        info: the device's properties, once it is opened.
        mapped: the slabs of earlier hosts that it has mapped.
        held: the sealed slabs that it has unmapped, and whose addresses it keeps.
        ports: its lanes by name.
        captured: numbers of the recordings that the host has captured in advance.
        starting: the lanes that it is starting. They are kept if the host does not survive the
            start, because each may be the cause. The memory lane is left out, because every device
            needs it.
    """

    def __init__(self, host: HostHandle) -> None:
        self.host: Final = host
        self.info: DeviceInfo | None = None
        self.mapped: Final[set[int]] = set()
        self.held: Final[set[int]] = set()
        self.ports: Final[dict[str, Port]] = {}
        self.captured: Final[set[int]] = set()
        self.starting: tuple[str, ...] = ()
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

    async def open(self, core: DeviceCore) -> DeviceInfo:
        """Open the device."""
        if self.info is None:
            staging = core.staging.reserve()
            context = core.backend_description.context
            # Under thread isolation its threads are the program's, which decides where it runs.
            cores = core.affinity if core.isolation == "process" else None
            request = Open(context, core.index, staging.nbytes, core.plan, cores)
            ask = partial(self.host.request, request, staging.fd)
            reply, _ = await core.reaper.with_room(ask)
            assert isinstance(reply, Opened)
            self.info = reply.info
        return self.info

    async def map(self, core: DeviceCore) -> int:
        """Map the present sealed and durable slabs, and unmap those that are gone.

        Returns:
            The bytes that were mapped.
        """
        nbytes = 0
        while True:
            lasting = core.memory.surviving_slabs()
            await self.unmap((self.mapped | self.held) - {slab.id for slab in lasting})
            missing = [slab for slab in lasting if slab.id not in self.mapped]
            if not missing:
                return nbytes
            for slab in missing:
                if not core.memory.has_slab(slab.id):
                    continue  # it was given up meanwhile
                request = MapSlab(slab.id, slab.nbytes, slab.sealed)
                await core.reaper.with_room(partial(self.host.request, request, slab.fd))
                self.mapped.add(slab.id)
                self.held.discard(slab.id)
                nbytes += slab.nbytes

    async def unmap(self, slabs: Iterable[int]) -> None:
        """Unmap those of ``slabs`` that the host has mapped, and give addresses of others up."""
        gone = sorted((self.mapped | self.held).intersection(slabs))
        for start in range(0, len(gone), MOST_UNMAPPED):
            some = gone[start : start + MOST_UNMAPPED]
            await self.host.request(UnmapSlabs(some))
            self.mapped.difference_update(some)
            self.held.difference_update(some)

    async def hold(self) -> None:
        """Unmap all slabs, but keep their addresses: ``map`` maps them there again."""
        mapped = sorted(self.mapped)
        for start in range(0, len(mapped), MOST_UNMAPPED):
            some = mapped[start : start + MOST_UNMAPPED]
            await self.host.request(HoldSlabs(some))
            self.mapped.difference_update(some)
            self.held.update(some)

    async def start_lanes(self, core: DeviceCore, specs: list[LaneSpec]) -> dict[str, Exception]:
        """Start lanes in parallel, without running them yet.

        Returns:
            The errors of lanes that do not start, by name.

        Raises:
            HostDied: the host has ended, perhaps because of one of the lanes.
            StickyFault: the host's context has failed, perhaps because of one of the lanes.
        """
        failed: dict[str, Exception] = {}
        rest = list(specs)
        while rest:
            some = rest[: 1 if core.starts_lanes_serially else MOST_DESCRIPTORS]
            del rest[: len(some)]
            try:
                await self._start_some(core, some, failed)
            except (HostDied, StickyFault):
                raise
            except Exception as error:  # noqa: BLE001 (it is about all of them)
                self.starting = ()
                if len(some) == 1:
                    failed[some[0].name] = error
                else:  # no room for as many descriptors at once, say
                    for spec in some:
                        failed.update(await self.start_lanes(core, [spec]))
        return failed

    async def _start_some(
        self, core: DeviceCore, specs: list[LaneSpec], failed: dict[str, Exception]
    ) -> None:
        lanes: list[OpenLane] = []
        ours: list[socket.socket] = []
        theirs: list[socket.socket] = []
        begun: list[LaneSpec] = []
        try:
            for spec in specs:
                try:
                    executor = spec.executor_on(core.backend_description)
                except AccelError as error:
                    failed[spec.name] = error
                    continue
                index = core.lane_number(spec.name)
                pair = self.host.reserve.make(socket.socketpair)
                for ends, sock in zip((ours, theirs), pair, strict=True):
                    ends.append(sock)
                thread = core.thread_of(spec)
                lanes.append(OpenLane(spec.name, index, executor, spec.max_streams, thread))
                begun.append(spec)
            # Not cleared if the host does not survive this, because it then gives the cause.
            self.starting = tuple(s.name for s in begun if s.name != core.memory_lane.name)
            reply, _ = await self.host.request(
                OpenLanes(lanes), *(sock.fileno() for sock in theirs)
            )
            assert isinstance(reply, LanesOpened)
            self._note_failed(reply, {spec.name for spec in begun}, failed)
            for spec, lane, sock in zip(begun, lanes, ours, strict=True):
                if spec.name not in failed:
                    sock.setblocking(False)
                    self.ports[spec.name] = Port(
                        spec.name,
                        lane.index,
                        sock,
                        core.in_flight,
                        device=core,
                        low_latency=core.low_latency,
                    )
                    core.add_lane(spec, lane.index)
        finally:
            for sock in theirs:
                sock.close()
            self.host.reserve.fill()
            taken = {port.index for port in self.ports.values()}
            for lane, sock in zip(lanes, ours, strict=False):
                if lane.index not in taken:
                    sock.close()

    def _note_failed(
        self, reply: LanesOpened, asked: set[str], failed: dict[str, Exception]
    ) -> None:
        """Note the lanes that did not start.

        Raises:
            HostDied: a correct host does not send this reply.
            StickyFault: the start of a lane has ended the context.
        """
        for name, why in reply.failed.items():
            if name not in asked:
                raise self.host.not_asked_for("OpenLanes", f"that lane {name!r} does not start")
            error = self.host.unpacked(why, "OpenLanes")
            if isinstance(error, StickyFault):
                self.starting = (name,) if name in self.starting else ()
                raise error
            failed[name] = error
        self.starting = ()

    def remove_lane(self, name: str) -> None:
        """End a lane that is not used any more."""
        port = self.ports.pop(name, None)
        if port is not None:
            port.hang_up()


async def learn(host: HostHandle, core: DeviceCore) -> None:
    """Note what the program's functions have imported in a host."""
    reply, _ = await host.request(Imported())
    if isinstance(reply, Modules):
        core.modules.update(dict.fromkeys(reply.names))


async def free_memory(host: HostHandle) -> int:
    """Return the bytes of free device memory, or 0 if unknown."""
    reply, _ = await host.request(AskFree())
    assert isinstance(reply, Free)
    return reply.nbytes
