"""Devices: supervised contexts behind one stable address."""

from ._device import Device, DeviceStatistics
from ._open import System, open_device, open_system
from ._requests import Requests
from ._standby import StandbyStatistics
from .interop._sharing import SharedBuffer
from .portal._calls import FromAsyncio, from_asyncio

__all__ = [
    "Device",
    "DeviceStatistics",
    "FromAsyncio",
    "Requests",
    "SharedBuffer",
    "StandbyStatistics",
    "System",
    "from_asyncio",
    "open_device",
    "open_system",
]
