"""Devices of many nodes, and the placement of work on them by load."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import msgspec
import trio

from .. import AccelError, OutOfMemory
from ..actors.nursery import PlainNursery
from ..actors.policies import LeastLoaded
from ..actors.util import NoPublicConstructor
from ..patterns import Closed
from ..wire.options import count
from ._remote_devices import RemoteDevice, device_of
from ._served_devices import DeviceReport

_UNKNOWN: Final = DeviceReport(False, 0, 0)


# Clusters are Any here: they know this module, which is not to know theirs.


@dataclass(frozen=True, slots=True)
class RemoteDeviceLoad:
    """One device of a group over nodes, as its placement sees it.

    Attributes:
        name: its name, such as ``"node-3/0"``.
        ready: whether it gets work: its node was reached lately, and it is not being rebuilt.
        placed: blocks of ``place`` that it has from here.
        others: ops of others that it had not answered when it was asked last.
        free_bytes: memory that was free then, less what blocks from here reserve.
    """

    name: str
    ready: bool
    placed: int
    others: int
    free_bytes: int


@dataclass(eq=False)
class _GroupMember:
    device: RemoteDevice
    scope: trio.CancelScope
    report: DeviceReport = _UNKNOWN
    placed: int = 0
    reserved: int = 0

    @property
    def in_flight(self) -> int:
        return self.placed + self.report.others

    @property
    def free(self) -> int:
        return max(0, self.report.free - self.reserved)


@final
class RemoteDevices(metaclass=NoPublicConstructor):
    """Devices of many nodes. ``cluster.open_devices()`` opens them.

    ::

        async with cluster.open_devices() as devices:
            async with devices.place() as device:
                x = await device.put(array)

    Each is asked for its load once in ``ClusterSettings.heartbeat`` seconds. One that does not
    answer gets no work until it does again.
    """

    _made_by: ClassVar[str] = "cluster.open_devices()"

    def __init__(
        self, cluster: Any, names: tuple[str, ...] | None, limit: int | None, policy: Any
    ) -> None:
        self._cluster = cluster
        self._names: Final = names
        self._limit = limit
        self._policy = LeastLoaded() if policy is None else policy
        self._members: dict[str, _GroupMember] = {}
        self._line = trio.Lock()
        self._waiting = 0
        self._changed = trio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<RemoteDevices of {self._cluster.name!r}: {', '.join(self._members)}>"

    @asynccontextmanager
    async def place(self, *, nbytes: int = 0) -> AsyncIterator[RemoteDevice]:
        """Wait for a device with room, and have it for the length of a block.

        Tasks get one in the order in which they came. Buffers stay until they are freed, or until
        the block of ``open_devices`` is left.

        Args:
            nbytes: memory that the work needs.

        Raises:
            OutOfMemory: all devices are idle, and none has so much memory.
            ValueError: nbytes is negative.
            Closed: the block of ``open_devices`` was left.
        """
        nbytes = count(nbytes, "nbytes", least=0)
        self._waiting += 1
        try:
            async with self._line:
                member = await self._take(nbytes)
        finally:
            self._waiting -= 1
        try:
            yield member.device
        finally:
            member.placed -= 1
            member.reserved -= nbytes
            self._change()
            if member.scope.cancel_called and not member.placed:
                await _closed(member.device)

    async def _take(self, nbytes: int) -> _GroupMember:
        while True:
            if self._closed:
                raise Closed("the devices are closed: their block was left")
            ready = [each for each in self._members.values() if each.report.ready]
            room = [
                each
                for each in ready
                if each.free >= nbytes and (self._limit is None or each.placed < self._limit)
            ]
            if room:
                chosen: _GroupMember = self._policy.choose(room)
                chosen.placed += 1
                chosen.reserved += nbytes
                return chosen
            if ready and not any(each.in_flight for each in ready):
                most = max(each.free for each in ready)
                raise OutOfMemory(
                    f"no room to place {nbytes} bytes: all devices are idle, and none has more "
                    f"than {most} bytes free",
                    requested=nbytes,
                    free=most,
                )
            await self._changed.wait()

    def statistics(self) -> tuple[RemoteDeviceLoad, ...]:
        """The devices at this moment, by name."""
        return tuple(
            RemoteDeviceLoad(name, each.report.ready, each.placed, each.report.others, each.free)
            for name, each in sorted(self._members.items())
        )

    @property
    def waiting(self) -> int:
        """Tasks that wait for a device."""
        return self._waiting

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _wanted(self) -> set[str]:
        nodes = self._cluster.nodes.values()
        shared = {f"{node.name}/{index}" for node in nodes for index in range(node.devices)}
        return shared if self._names is None else shared.intersection(self._names)

    async def follow(self) -> None:
        """Follow nodes that come and go."""
        async with PlainNursery() as nursery:
            while True:
                changed, wanted = self._cluster._changed, self._wanted()
                for name in wanted - self._members.keys():
                    member = _GroupMember(device_of(self._cluster, name), trio.CancelScope())
                    self._members[name] = member
                    nursery.start_soon(self._ask_load, member)
                for name in self._members.keys() - wanted:
                    member = self._members.pop(name)
                    member.scope.cancel()
                    if not member.placed:
                        nursery.start_soon(_closed, member.device)
                    self._change()
                await changed.wait()

    async def _ask_load(self, member: _GroupMember) -> None:
        device, period = member.device, self._cluster._settings.heartbeat
        with member.scope:
            while True:
                try:
                    with trio.move_on_after(self._cluster._settings.silence) as scope:
                        found = await device.ask(device.requests.load())
                        member.report = msgspec.convert(found, DeviceReport)
                except (AccelError, LookupError):
                    member.report = _UNKNOWN
                if scope.cancelled_caught:
                    member.report = _UNKNOWN
                self._change()
                await trio.sleep(period)

    async def close(self) -> None:
        """Free all buffers that are left, and place nothing further."""
        self._closed = True
        self._change()
        async with PlainNursery() as nursery:
            for each in [*self._members.values()]:
                nursery.start_soon(_closed, each.device)


async def _closed(device: RemoteDevice) -> None:
    with trio.move_on_after(2.0, shield=True):
        await device.close()


@asynccontextmanager
async def opened_devices(
    cluster: Any, names: Iterable[str] | None, limit: int | None, policy: Any
) -> AsyncIterator[RemoteDevices]:
    """Open devices of many nodes; see ``Cluster.open_devices``."""
    chosen = None if names is None else tuple(names)
    for name in chosen or ():
        device_of(cluster, name)
    if limit is not None:
        limit = count(limit, "limit")
    made: RemoteDevices = RemoteDevices.construct(cluster, chosen, limit, policy)
    async with PlainNursery() as nursery:
        nursery.start_soon(made.follow)
        try:
            yield made
        finally:
            await made.close()
            nursery.cancel_scope.cancel()
