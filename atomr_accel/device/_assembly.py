"""The parts that a device and its shadows have alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .calls._run import HostCalls
from .data._pinned import Pinned
from .data.durable import DurableBuffers
from .interop._exports import Exports
from .interop._windows import Windows

if TYPE_CHECKING:
    from .core import DeviceCore


def add_parts(core: DeviceCore, pinned_limit: int) -> None:
    """Give a core its parts.

    Args:
        core: the device, or a shadow of it.
        pinned_limit: bytes that its page-locked arrays may take together.
    """
    core.pinned = Pinned(core, pinned_limit)
    core.exports = Exports(core)
    core.host_calls = HostCalls(core)
    core.windows = Windows(core)
    core.durables = DurableBuffers(core)
