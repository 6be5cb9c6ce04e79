"""Links between the devices of a group."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Final, Literal, cast, final

import numpy as np

from ...lanes import HostDied
from ...wire import AskPeers, Peers, StickyFault
from ...wire.options import count
from ._draw import svg_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...wire import Peer
    from .._device import Device

LinkKind = Literal["nvlink", "pcie", "memory", "host"]

_EXPECTED: Final[Mapping[LinkKind, float]] = {
    "nvlink": 200e9,
    "pcie": 25e9,
    "memory": 5e9,
    "host": 10e9,
}
"""Bytes per second of a link that was not measured: the right order, to compare links by."""

_BEST_FIRST: Final[tuple[LinkKind, ...]] = ("nvlink", "pcie", "memory", "host")
_TIMES: Final = 3


@dataclass(frozen=True, slots=True)
class Link:
    """A device's way to write to the memory of another.

    Attributes:
        source: the name of the device that copies.
        target: the name of the device whose memory it writes to.
        kind: ``"nvlink"``; ``"pcie"``: directly, on the bus; ``"memory"``: both use the machine's
            memory, as on the CPU backend; ``"host"``: through page-locked memory of the machine.
            The driver does not name the kind: a link with atomic operations counts as NVLink,
            because PCIe has none.
        rank: the driver's rank of the link's speed; lower is faster. None if unknown.
        bandwidth: bytes per second, as measured; None before that.
    """

    source: str
    target: str
    kind: LinkKind
    rank: int | None = None
    bandwidth: float | None = None

    @property
    def direct(self) -> bool:
        """True if copies go directly from one memory to the other."""
        return self.kind != "host"


@final
class Topology:
    """The links between the devices of a group. ``Devices.topology`` gives it.

    ``print`` shows it as a table; in a notebook it shows itself as a picture.
    """

    def __init__(self, devices: Sequence[Device], links: dict[tuple[str, str], Link]) -> None:
        self._devices: Final = tuple(devices)
        self._links: Final = links

    def __repr__(self) -> str:
        return f"<Topology of {', '.join(self.devices)}>"

    def __str__(self) -> str:
        return text_of(self)

    def _repr_svg_(self) -> str:
        return self.svg()

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, in the group's order."""
        return tuple(device.name for device in self._devices)

    @property
    def links(self) -> tuple[Link, ...]:
        """The links, two for each pair of devices."""
        return tuple(self._links[pair] for pair in permutations(self.devices, 2))

    def link(self, source: str, target: str) -> Link:
        """The link from one device to another.

        Args:
            source: the name of the device that has the data.
            target: the name of the device that gets it.
        """
        found = self._links.get((source, target))
        if found is None or not {source, target} <= set(self.devices):
            raise ValueError(
                f"there is no link from {source!r} to {target!r}; the devices are "
                f"{', '.join(self.devices)}"
            )
        return found

    @property
    def islands(self) -> tuple[tuple[str, ...], ...]:
        """Return groups of devices that are linked by the best kind of link in the group.

        Devices of an island are linked directly or through each other. A device without such a link
        is an island of its own.
        """
        kinds = {link.kind for link in self.links}
        best = next((kind for kind in _BEST_FIRST if kind in kinds and kind != "host"), None)
        left = list(self.devices)
        islands = []
        while left:
            island = [left.pop(0)]
            for name in island:  # grows meanwhile
                reached = [
                    other
                    for other in left
                    if best in (self._links[name, other].kind, self._links[other, name].kind)
                ]
                island += reached
                left = [other for other in left if other not in reached]
            islands.append(tuple(sorted(island, key=self.devices.index)))
        return tuple(islands)

    def expected_bandwidth(self, source: str, target: str) -> float:
        """Return the bytes per second from one device to another, measured or typical.

        Args:
            source: a device's name; a device outside the group counts as connected through the
                host.
            target: a device's name.
        """
        link = self._links.get((source, target))
        if link is None:
            return _EXPECTED["host"]
        return link.bandwidth or _EXPECTED[link.kind]

    async def measure(self, nbytes: int = 64 << 20) -> Topology:
        """Measure every link, one after the other, with ``Device.copy``; it takes a while.

        Args:
            nbytes: size of each copy in bytes. The best of three counts.

        Returns:
            This topology, whose links then have a ``bandwidth``.

        Raises:
            OutOfMemory: a device has no room for the copies.
            ContextPoisoned, DeviceLost: a device has failed meanwhile. Links that were measured
                before keep their bandwidth.
        """
        nbytes = count(nbytes, "nbytes")
        for source, target in permutations(self._devices, 2):
            data = await source.zeros(nbytes, np.uint8)
            await source.get(data[:1])  # it is there
            await target.copy(data)  # one-time work, such as mapping memory
            seconds = []
            for _ in range(_TIMES):
                begun = time.perf_counter()
                copy = await target.copy(data)
                seconds.append(time.perf_counter() - begun)
                del copy
            pair = (source.name, target.name)
            self._links[pair] = replace(self._links[pair], bandwidth=nbytes / min(seconds))
        return self

    def svg(self) -> str:
        """A picture: devices on a circle, and their links, thicker the faster they are."""
        return svg_of(self)


async def links_of(devices: Sequence[Device]) -> dict[tuple[str, str], Link]:
    """Ask the hosts of several devices of one backend for their links."""
    links: dict[tuple[str, str], Link] = {}
    for device in devices:
        others = [other for other in devices if other is not device]
        for other, peer in zip(others, await _peers(device, others), strict=True):
            kind: LinkKind = "host"
            if peer.access and device.core.capabilities.host_memory:
                kind = "memory"
            elif peer.access:
                kind = "nvlink" if peer.atomics else "pcie"
            links[device.name, other.name] = Link(device.name, other.name, kind, peer.rank)
    return links


async def _peers(device: Device, others: Sequence[Device]) -> list[Peer]:
    core = device.core
    while True:
        context = await core.ready()
        try:
            reply, _ = await context.host.request(AskPeers([each.info.index for each in others]))
        except (HostDied, StickyFault):
            context.report_dead()
            continue
        return cast("Peers", reply).peers
