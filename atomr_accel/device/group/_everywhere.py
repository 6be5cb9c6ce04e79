"""Sealed copies of one buffer on several devices. A lost copy can be restored from the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import trio

from ..._errors import ContextPoisoned, DeviceLost, GpuRefStale, said_of
from ...actors.nursery import PlainNursery
from ...arrays import GpuRef
from .._device import Device
from ..interop._sharing import copy_here

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._topology import Topology


@dataclass(frozen=True, slots=True)
class SealedCopiesStatistics:
    """Sealed copies at one moment.

    Attributes:
        nbytes: bytes of one copy.
        copies: number of devices that have had one.
        good: number of devices that still have it.
        restored: number of copies that were made again from another.
    """

    nbytes: int
    copies: int
    good: int
    restored: int


@final
class SealedCopies(Mapping["Device", GpuRef]):
    """A sealed buffer on each of several devices. ``Devices.seal_everywhere`` makes it.

    It is a mapping, ``weights[device]``, in the order of the devices. Each copy survives the faults
    of its device, as all sealed buffers do. A copy is gone if its device is lost or if it is freed.
    ``restore`` then makes it again from the nearest copy that is left, on that device or on
    another.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology: Final = topology
        self._refs: Final[dict[Device, GpuRef]] = {}
        self._restoring: Final = trio.Lock()
        self._restored = 0

    def __repr__(self) -> str:
        return f"<SealedCopies on {', '.join(device.name for device in self._refs)}>"

    def __getitem__(self, device: Device) -> GpuRef:
        return self._refs[device]

    def __iter__(self) -> Iterator[Device]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def statistics(self) -> SealedCopiesStatistics:
        """A snapshot."""
        refs = self._refs.values()
        return SealedCopiesStatistics(
            nbytes=next(iter(refs)).nbytes,
            copies=len(refs),
            good=sum(not ref.is_stale for ref in refs),
            restored=self._restored,
        )

    async def restore(self, device: Device) -> GpuRef:
        """Return the copy on a device, or make one from its nearest peer.

        Args:
            device: any open device, also one that had none so far.

        Returns:
            The copy, which is also ``copies[device]`` from now on.

        Raises:
            GpuRefStale: all copies are stale or freed.
            DeviceLost: the device is lost.
            OutOfMemory: the device has no room for the copy.
            Unsupported: the device cannot seal.
        """
        if not isinstance(device, Device):
            raise TypeError(f"restore takes an open device, not {said_of(device)}")
        async with self._restoring:
            ref = self._refs.get(device)
            if ref is None or ref.is_stale:
                ref = self._refs[device] = await self._brought(device)
                self._restored += 1
            return ref

    async def _brought(self, device: Device, source: Device | None = None) -> GpuRef:
        """A new copy, from a certain device if that is still possible, or else the nearest."""
        while True:
            if source is None:
                source = self._nearest(device)
            try:
                return await copy_here(device.core, self._refs[source], sealed=True)
            except (ContextPoisoned, DeviceLost, GpuRefStale):
                # A source that has failed comes back with its copy, or is lost and has none.
                if device.closed:
                    raise
                source = None

    def _nearest(self, device: Device) -> Device:
        """The device from which a copy gets here soonest."""
        bandwidths = {
            each: self._topology.expected_bandwidth(each.name, device.name)
            for each, ref in self._refs.items()
            if not ref.is_stale
        }
        if not bandwidths:
            raise GpuRefStale(
                "no device has a good copy any more; put the array on one, and seal it everywhere"
            )
        return max(bandwidths, key=bandwidths.__getitem__)

    async def _spread(self, source: Device, targets: Sequence[Device]) -> None:
        """Copy from one device to others. The first of them passes the copy on to half of them."""
        if not targets:
            return
        half = len(targets) // 2
        near, first, far = targets[:half], targets[half], targets[half + 1 :]
        try:
            self._refs[first] = await self._brought(first, source)
        except DeviceLost:
            await self._spread(source, (*near, *far))
            return
        async with PlainNursery() as nursery:
            nursery.start_soon(self._spread, source, near)
            nursery.start_soon(self._spread, first, far)


async def sealed_everywhere(
    devices: Sequence[Device], topology: Topology, x: object
) -> SealedCopies:
    """Implement ``Devices.seal_everywhere``."""
    made = SealedCopies(topology)
    for home in _homes(devices, x):
        try:
            made._refs[home] = await _sealed_at(home, x)
            break
        except DeviceLost:
            if not home.closed:
                raise
    else:
        raise DeviceLost(f"all devices are lost: {', '.join(each.name for each in devices)}")
    await made._spread(home, [each for each in devices if each is not home])
    # In the order of the devices, whoever was first.
    refs = {device: made._refs[device] for device in devices if device in made._refs}
    made._refs.clear()
    made._refs.update(refs)
    return made


def _homes(devices: Sequence[Device], x: object) -> list[Device]:
    """The devices on which it may be sealed first: the one that has it, if one of them has."""
    if isinstance(x, GpuRef):
        own = [each for each in devices if each.core.memory is x.block.memory]
        if own:
            return own
    return [each for each in devices if not each.closed]


async def _sealed_at(home: Device, x: object) -> GpuRef:
    if not isinstance(x, GpuRef):
        return await home.put(x, sealed=True)
    if home.core.memory is x.block.memory:
        return await home.seal(x)
    return await copy_here(home.core, x, sealed=True)
