"""The CPU as a device, with the same promises as a GPU."""

from typing import Final

from .. import Backend, Capabilities


def why_absent() -> None:
    """Return None, because every machine has a CPU."""


BACKEND: Final = Backend(
    name="cpu",
    context="atomr_accel.backends.cpu.host.context:CpuContext",
    memory="atomr_accel.backends.cpu.host.memory:CpuMemory",
    why_absent=why_absent,
    parker="atomr_accel.backends.cpu.host.parking:CpuParker",
    capabilities=Capabilities(host_memory=True, python_kernels=True),
)
