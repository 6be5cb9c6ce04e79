"""A backend made of the CPU's."""

from __future__ import annotations

from typing import Final

from atomr_accel.backends import Backend, Capabilities

BACKEND: Final = Backend(
    name="tally",
    context="tally_accel.executors:TallyContext",
    memory="atomr_accel.backends.cpu.host.memory:CpuMemory",
    why_absent=lambda: None,
    capabilities=Capabilities(host_memory=True, python_kernels=True),
    like="cpu",
)
