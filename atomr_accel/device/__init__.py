"""Devices: supervised contexts behind one stable address."""

from ._between import SharedBuffer
from ._device import Device, DeviceStatistics, open_device

__all__ = ["Device", "DeviceStatistics", "SharedBuffer", "open_device"]
