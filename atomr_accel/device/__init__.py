"""Devices: supervised contexts behind one stable address."""

from ._asyncio import FromAsyncio, from_asyncio
from ._between import SharedBuffer
from ._device import Device, DeviceStatistics, open_device

__all__ = [
    "Device",
    "DeviceStatistics",
    "FromAsyncio",
    "SharedBuffer",
    "from_asyncio",
    "open_device",
]
