"""Statistics of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..actors import SupervisorStatistics
    from ..lanes import LaneStatistics, PinnedStatistics
    from ..memory import DurableStatistics, MemoryStatistics
    from ..ops import CacheStatistics
    from .core import Startup
    from .data._progress import TransferStatistics
    from .standby._statistics import StandbyStatistics


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """A device at one moment.

    Attributes:
        state: ``"ready"``, ``"rebuilding"`` or ``"lost"``.
        generation: the present generation.
        faults: number of contexts that have failed.
        last_fault: the last fault in one line, or None.
        host_pid: the host's process id; None without one.
        in_flight: number of ops that are not answered yet.
        memory: use of the device's memory.
        durable: the durable buffers, and those lost in faults.
        transfers: the long transfers in progress.
        pinned: the pool of page-locked arrays.
        lanes: the open lanes.
        startup: the time that the present context took to start.
        standby: the standbys for the next rebuild; None without standbys.
        supervisor: the device's children, the restarts of its context, and the period in which they
            count.
        caches: the caches in the program by name: call templates and plans of each library, such as
            ``"fft.plans"``.
    """

    state: str
    generation: int
    faults: int
    last_fault: str | None
    host_pid: int | None
    in_flight: int
    memory: MemoryStatistics
    durable: DurableStatistics
    transfers: tuple[TransferStatistics, ...]
    pinned: PinnedStatistics
    lanes: tuple[LaneStatistics, ...]
    startup: Startup | None
    standby: StandbyStatistics | None
    supervisor: SupervisorStatistics
    caches: Mapping[str, CacheStatistics]
