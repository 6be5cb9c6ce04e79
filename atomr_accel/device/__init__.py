"""Devices: supervised contexts behind one stable address."""

from ._device import Device, DeviceStatistics, open_device

__all__ = ["Device", "DeviceStatistics", "open_device"]
