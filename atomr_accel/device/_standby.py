"""The setting of ``open_device`` that asks for standbys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .._errors import said_of
from ..wire.options import count

if TYPE_CHECKING:
    from ._device import Device

_MOST: Final = 1024

_LEAST: Final = 16 << 20
"""Bytes of host memory that any host takes, for its interpreter and NumPy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """The standbys that a device keeps: hosts prepared for the next rebuild.

    ``Standby()``, the default of ``open_device``, keeps none where hosts are quick to start, which
    is on the CPU backend. On CUDA, under ``isolation="process"``, it is ``Standby(parked=1)`` if
    the driver can park hosts, and otherwise ``Standby(warm=1)``, without a warning. Write the
    latter if the ``init`` of a lane of ``device.run`` must not be called in a second host.

    Args:
        hot: number of hosts that have the device open, the sealed buffers mapped and the lanes in
            use running, and have called the ``init`` of each lane of ``device.run``. A fault then
            costs little more than an op. Each takes a second context's memory on the device, which
            ``memory_limit`` counts. If that memory is not available, or the program needs it, warm
            ones are kept instead, with a ``StandbyWarning``.
        parked: number of hosts that are prepared like hot ones and then parked: their processes
            stand still, take no memory on the device, and continue after a fault, or when a hot one
            was used. On CUDA this needs a driver that takes checkpoints of processes (580). A
            device of a world parks none.
        warm: number of hosts that have done their imports and touch no device. By default one in
            reserve next to hot and parked ones, and otherwise one where hosts are slow to start.
        warm_up: an async function that prepares a hot or parked standby. It is called with a device
            like the one that ``open_device`` returns, but on the standby. It should make the calls
            that the program makes, with the program's sealed buffers, so that libraries load and
            plan in advance. It is called for each standby, and again when the device uses more. Its
            buffers are freed when it returns. It cannot seal buffers. If it raises, the error is
            logged, and `StandbyStatistics.problem` has it.
        host_memory: bytes of host memory that parked ones may take together; by default any number.
            Those that exceed it are not kept, with a ``StandbyWarning``.

    Raises:
        TypeError: a number that is not whole, or a ``warm_up`` that is not a function.
        ValueError: a number out of its range, a ``warm_up`` without a standby that calls it, or a
            ``host_memory`` without parked ones, or too small for a host.
    """

    hot: int = 0
    parked: int = 0
    warm: int | None = None
    warm_up: Callable[[Device], Awaitable[object]] | None = None
    host_memory: int | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the object is frozen, and NumPy's numbers become ints
        set_field(self, "hot", count(self.hot, "hot", 0, _MOST))
        set_field(self, "parked", count(self.parked, "parked", 0, _MOST))
        if self.warm is not None:
            set_field(self, "warm", count(self.warm, "warm", 0, _MOST))
        if self.warm_up is not None:
            if not callable(self.warm_up):
                raise TypeError(
                    "warm_up must be an async function of a device, not "
                    f"{self.warm_up!r}, of type {said_of(self.warm_up)}"
                )
            if not (self.hot or self.parked):
                raise ValueError(
                    "warm_up is for hot and parked standbys: write Standby(hot=1, warm_up=...)"
                )
        if self.host_memory is not None:
            set_field(self, "host_memory", count(self.host_memory, "host_memory", _LEAST))
            if not self.parked:
                raise ValueError(
                    "host_memory is for parked standbys: write Standby(parked=1, host_memory=...)"
                )

    def parked_on(self, *, slow_start: bool) -> int:
        """Return the number of parked ones on a backend, if it can park hosts.

        Args:
            slow_start: whether the backend's hosts are slow to start.
        """
        return self.parked or int(slow_start and not self.hot and self.warm is None)

    @property
    def explicit(self) -> bool:
        """True if it asks for some, whatever the device."""
        return bool(self.hot or self.parked or self.warm)

    def warm_on(self, *, slow_start: bool) -> int:
        """Return the number of warm ones on a backend.

        Args:
            slow_start: whether the backend's hosts are slow to start.
        """
        if self.warm is not None:
            return self.warm
        return int(slow_start or self.hot + self.parked > 0)
