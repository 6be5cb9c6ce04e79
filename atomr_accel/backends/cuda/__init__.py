"""NVIDIA GPUs through the driver API; everything but this check runs in the host."""

from pathlib import Path
from typing import Final

from .. import Backend, Capabilities

_DRIVER_FILES: Final = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvhost-gpu")
"""Files that a driver creates: on Linux, in containers, under WSL, on Jetson."""


def why_absent() -> str | None:
    """Return the reason why this machine has no CUDA device, or None if only the driver knows."""
    if any(Path(file).exists() for file in _DRIVER_FILES):
        return None
    return f"no NVIDIA driver: none of {', '.join(_DRIVER_FILES)} exists"


BACKEND: Final = Backend(
    name="cuda",
    context="atomr_accel.backends.cuda.host.context:CudaContext",
    memory="atomr_accel.backends.cuda.host.memory:CudaMemory",
    why_absent=why_absent,
    slow_start=True,
    parker="atomr_accel.backends.cuda.host.parking:CudaParker",
    capabilities=Capabilities(needs_scratch=True, counts_in_int32=True, asynchronous=True),
)
