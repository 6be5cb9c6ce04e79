"""NVTX ranges around the launches of hosts, for Nsight and other tools of the vendor."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ..actors.blocks import enters
from ..device import Device
from ..lanes import DeviceInstrument
from ._packages import package

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..device import System


@final
class _Ranges(DeviceInstrument):
    """Requests ranges, without hooks of its own."""

    ranges = True


@enters
def mark_ranges(watched: Device | System) -> Iterator[None]:
    """Have hosts mark their launches as NVTX ranges, for the length of a ``with`` block.

    Each launch is a range of the domain ``atomr_accel``, on the thread of its lane. Its name is the
    kind of its message, such as ``Gemm``. Profilers show kernels below the range that launched
    them. Without a profiler that has started the host (``nsys profile`` follows children by itself)
    ranges go nowhere, and cost about a microsecond.

    Args:
        watched: the device or system to watch. A device is watched with all of its system.

    Raises:
        LibraryMissing: nvtx is not installed.
    """
    package("nvtx", "nvtx")
    system = watched.system if isinstance(watched, Device) else watched
    with system.instrumented(_Ranges()):
        yield
