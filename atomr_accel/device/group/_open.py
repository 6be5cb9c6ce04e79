"""Opening several devices together."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex, Unpack

import trio

from ..._errors import DeviceLost, said_of
from ...actors import Directive, serving
from ...actors.blocks import opens
from ...actors.util import check_member
from ...wire.options import count, whole
from .._open import opened_devices
from .._settings import DeviceSettings
from ._candidate import Candidate
from ._devices import Devices
from ._placement import Placement
from ._policies import policy_of
from ._topology import Topology, links_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from ...actors import Instrument
    from .._device import Device
    from ._candidate import PlacementPolicy
    from ._policies import PlacementPolicyName


@opens
@trio.lowlevel.enable_ki_protection
async def open_devices(
    indices: Iterable[SupportsIndex],
    *,
    on_loss: Directive = Directive.ESCALATE,
    policy: PlacementPolicyName | PlacementPolicy = "least_loaded",
    limit: int = 64,
    utilization: Callable[[Device], float | None] | None = None,
    instruments: Iterable[Instrument] = (),
    **settings: Unpack[DeviceSettings],
) -> AsyncIterator[Devices]:
    """Open several devices for the length of an ``async with`` block.

    They are actors under one supervisor. Each has a host of its own and recovers by itself, and a
    failure of one does not affect the others. The CPU backend has any number of devices.

    Args:
        indices: the devices' indices, each once: ``range(4)``.
        on_loss: the action when a device has failed too often and is lost. ``Directive.ESCALATE``:
            the block is cancelled and raises the ``DeviceLost``. ``STOP``: the others continue
            without it, and calls of it raise ``DeviceLost``. ``RESTART``: it is opened again, under
            a new generation, with its sealed buffers, at most three times a minute in all.
        policy: the policy for ``Devices.place``, by name or as an object.
        limit: largest number of blocks of ``Devices.place`` that a device has at a time.
        utilization: returns how busy a device is, from 0 to 1, or None. Used by policies and
            ``Devices.statistics``. It is called often and must not block.
        instruments: instruments to call for events on the devices and in their system of actors.
        **settings: the settings of ``open_device``, for each device. With ``backend="auto"`` all
            get the backend of the first one.

    Raises:
        DeviceUnavailable: one of them does not exist; then none is opened.
        DeviceLost: one was lost, and ``on_loss`` is ``Directive.ESCALATE``.
        ValueError: an argument out of its range; ``indices`` is empty, or has one twice.
        ExceptionGroup: several things failed.
        Exception: any other error of ``open_device``.
    """
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "open_devices is for programs of trio, and this runs under another event loop; in "
            "asyncio or Jupyter: `async with atomr_accel.from_asyncio(open_device(0)) as gpu:`"
        )
    numbers = [whole(index, "an index") for index in indices]
    if not numbers:
        raise ValueError("open_devices needs at least one index")
    if len(set(numbers)) < len(numbers):
        raise ValueError(
            f"indices must be unique, because each device is opened once, not {numbers}"
        )
    check_member("on_loss", on_loss, Directive)
    if on_loss is Directive.RESUME:
        raise ValueError("a device that is lost cannot go on as it is: RESUME is for actors")
    limit = count(limit, "limit")
    if utilization is not None and not callable(utilization):
        raise TypeError(f"utilization must be a function of a device, not {said_of(utilization)}")
    chosen_by = policy_of(policy)

    def decide(error: BaseException, _child: str) -> Directive:
        return on_loss if isinstance(error, DeviceLost) else Directive.ESCALATE

    async with opened_devices(numbers, settings, decide, instruments, stacklevel=6) as opened:
        links = await links_of(opened)
        topology = Topology(opened, links)
        candidates = [
            Candidate.construct(device, position, limit, topology, utilization)
            for position, device in enumerate(opened)
        ]
        placement, system = Placement(candidates, topology), opened[0].system
        async with serving(placement, system=system, name="placement"):
            yield Devices(candidates, links, placement, chosen_by, system)
