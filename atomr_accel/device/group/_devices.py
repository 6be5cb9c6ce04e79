"""``Devices``: what programs hold of several devices that were opened together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final, overload

from ..._errors import said_of
from ...actors.blocks import opens
from ...wire.options import LARGEST, whole
from ._candidate import Hints
from ._everywhere import sealed_everywhere
from ._policies import policy_of
from ._topology import Topology

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ...actors import ActorRef
    from .._device import Device
    from .._open import System
    from ._candidate import Candidate, PlacementPolicy
    from ._everywhere import SealedCopies
    from ._placement import DevicesStatistics, Placement
    from ._policies import PlacementPolicyName
    from ._topology import Link

_ANYWHERE = Hints()


@final
class Devices(Sequence["Device"]):
    """Several devices under one supervisor. Made by ``open_devices``.

    It is a sequence: ``devices[1]`` is the second device. ``devices[:2]`` is another ``Devices``
    with the first two, which shares links and load with this one. A lost device keeps its position.

    Attributes:
        system: the system of actors that the devices are part of.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        links: dict[tuple[str, str], Link],
        placement: Placement,
        policy: PlacementPolicy,
        system: System,
    ) -> None:
        self._candidates = tuple(candidates)
        self._devices = tuple(candidate.device for candidate in candidates)
        self._links = links
        self._placement = placement
        self._policy = policy
        self.system: Final = system

    def __repr__(self) -> str:
        return f"<Devices {', '.join(device.name for device in self._devices)}>"

    def __len__(self) -> int:
        return len(self._devices)

    @overload
    def __getitem__(self, index: int) -> Device: ...
    @overload
    def __getitem__(self, index: slice) -> Devices: ...
    def __getitem__(self, index: int | slice) -> Device | Devices:
        if isinstance(index, slice):
            return Devices(
                self._candidates[index], self._links, self._placement, self._policy, self.system
            )
        return self._devices[self._place_of(index)]

    @property
    def ref(self) -> ActorRef:
        """The actor that places work on the devices, ``/placement`` in their system.

        It answers ``GetStatistics`` and ``GetTopology``, for the whole group.
        """
        return self._placement.ref

    def topology(self) -> Topology:
        """Return the links between the devices, as their hosts reported when they were opened."""
        return Topology(self._devices, self._links)

    async def seal_everywhere(self, x: object) -> SealedCopies:
        """Make a sealed copy of a buffer on every device: ``weights[device]``.

        The array is put once. It is then copied from device to device, directly if they reach each
        other, and each device with a copy passes it on. With n devices, each copies at most log2(n)
        times, rounded up.

        Args:
            x: an array, as ``Device.put`` takes it; or a buffer, which is sealed itself if it lies
                on one of these devices.

        Returns:
            The copies, one for each device that is not lost.

        Raises:
            DeviceLost: all devices are lost.
            GpuRefStale: ``x`` is stale, or has become so.
            ContextPoisoned: a device has failed before ``x`` was sealed anywhere.
            OutOfMemory: a device has no room for it; the copies on the others are freed.
            Unsupported: a device cannot seal, because its platform cannot export memory; or ``x``
                is a module's variable on one of these devices.
            ValueError: this slice has no devices.
            ExceptionGroup: several devices refuse it.
        """
        if not self._devices:
            raise ValueError("there are no devices in this slice to seal anything on")
        return await sealed_everywhere(self._devices, self.topology(), x)

    def statistics(self) -> DevicesStatistics:
        """A snapshot of the devices, as policies see them."""
        return self._placement.statistics(self._candidates)

    @opens
    async def place(
        self,
        *,
        policy: PlacementPolicyName | PlacementPolicy | None = None,
        hints: Hints = _ANYWHERE,
    ) -> AsyncIterator[Device]:
        """Choose a device for the work of a block: ``async with devices.place() as device:``.

        Devices that are lost, recovering or drained are left out, and so are those that have
        ``limit`` blocks, or less free memory than the work needs. If none is left, this waits until
        one has room, which limits the rate of new work to that of finished work. The task that has
        waited longest goes first, except for tasks that the free device does not suit.

        A device that fails while the block runs fails the block, as always; see ``Device.retry``.

        Args:
            policy: the policy that chooses between devices with room; by default that of
                ``open_devices``. A name makes a new policy for this block, so if a policy has a
                state, like ``RoundRobin``, pass the same object each time.
            hints: hints about the work.

        Raises:
            DeviceLost: all devices are lost.
            OutOfMemory: all devices are idle, and none has ``hints.nbytes`` free.
            TypeError: ``policy`` is not a policy, or ``hints`` is not ``Hints``.
            ValueError: the policy's name is unknown, it chose a device that it did not get, or this
                slice has no devices.
        """
        if not isinstance(hints, Hints):
            raise TypeError(f"hints must be Hints, not {said_of(hints)}")
        chosen_by = self._policy if policy is None else policy_of(policy)
        if not self._candidates:
            raise ValueError("there are no devices in this slice to place work on")
        candidate = await self._placement.take(self._candidates, chosen_by, hints)
        try:
            yield candidate.device
        finally:
            self._placement.give_back(candidate, hints)

    async def drain(self, index: int) -> None:
        """Give a device no more work, and wait for the blocks of ``place`` that it has.

        It stays open and can still be called. If the call that began this is cancelled, the device
        gets work again.

        Args:
            index: its position among these devices.
        """
        candidate = self._candidate(index)
        begun = not candidate._draining
        candidate._draining = True
        try:
            await self._placement.idle(candidate)
        except BaseException:
            if begun:
                candidate._draining = False
                self._placement.look()
            raise

    def resume(self, index: int) -> None:
        """Give work again to a device that was drained.

        Args:
            index: its position among these devices.
        """
        self._candidate(index)._draining = False
        self._placement.look()

    def _candidate(self, index: int) -> Candidate:
        return self._candidates[self._place_of(index)]

    def _place_of(self, index: int) -> int:
        """Return a device's index after a check. Negative ones count from the end."""
        place, count = whole(index, "index", -LARGEST, LARGEST), len(self._devices)
        if not -count <= place < count:
            raise IndexError(f"there are {count} devices, so there is none at {place}")
        return place
