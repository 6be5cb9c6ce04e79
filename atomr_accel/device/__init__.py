"""Devices: supervised contexts behind one stable address."""

from .._install import warn_of_other_owners
from ._device import Device
from ._open import System, open_device, open_system
from ._standby import Standby
from ._statistics import DeviceStatistics
from .calls._requests import Requests
from .data._snapshot import Snapshot, SnapshotStatistics
from .group._candidate import Candidate, CandidateState, Hints, PlacementPolicy
from .group._devices import Devices
from .group._everywhere import SealedCopies, SealedCopiesStatistics
from .group._open import open_devices
from .group._placement import DeviceLoad, DevicesStatistics, GetTopology
from .group._policies import ConsistentHash, DataLocality, MostFreeMemory
from .group._topology import Link, Topology
from .interop._sharing import SharedBuffer
from .portal._blocking import Blocking, open_blocking
from .portal._calls import FromAsyncio, from_asyncio
from .standby._statistics import StandbyStatistics

__all__ = [
    "Blocking",
    "Candidate",
    "CandidateState",
    "ConsistentHash",
    "DataLocality",
    "Device",
    "DeviceLoad",
    "DeviceStatistics",
    "Devices",
    "DevicesStatistics",
    "FromAsyncio",
    "GetTopology",
    "Hints",
    "Link",
    "MostFreeMemory",
    "PlacementPolicy",
    "Requests",
    "SealedCopies",
    "SealedCopiesStatistics",
    "SharedBuffer",
    "Snapshot",
    "SnapshotStatistics",
    "Standby",
    "StandbyStatistics",
    "System",
    "Topology",
    "from_asyncio",
    "open_blocking",
    "open_device",
    "open_devices",
    "open_system",
]

warn_of_other_owners()
