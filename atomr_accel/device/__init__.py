"""Devices: supervised contexts behind one stable address."""

from ._device import Device, DeviceStatistics, open_device
from .interop._sharing import SharedBuffer
from .portal._calls import FromAsyncio, from_asyncio

__all__ = [
    "Device",
    "DeviceStatistics",
    "FromAsyncio",
    "SharedBuffer",
    "from_asyncio",
    "open_device",
]
