"""A package that brings a backend: an abacus, which has whole beads only.

Its memory is the CPU backend's. It has an executor for BLAS, of which the library does not know,
and a library of its own.
"""

from __future__ import annotations

from typing import Final

from atomr_accel.backends import Backend, Capabilities
from atomr_accel.ops import LaneSpec

HOST: Final = "abacus_accel._host"

BACKEND: Final = Backend(
    name="abacus",
    context=f"{HOST}:AbacusContext",
    memory="atomr_accel.backends.cpu.host.memory:CpuMemory",
    why_absent=lambda: None,
    capabilities=Capabilities(host_memory=True, python_kernels=True),
    executors={
        "blas": f"{HOST}:AbacusBlas",
        "recordings": "atomr_accel.libraries.recordings.host._cpu:CpuRecordings",
    },
)

COUNTING: Final = LaneSpec("counting", {"abacus": f"{HOST}:Counting"})
"""A lane of a library that only this backend runs."""
