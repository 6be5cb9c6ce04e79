"""The lanes of collectives: one that takes part in them, and one that is free to end them."""

from __future__ import annotations

from typing import Final

from ...ops import LaneSpec

_HOST: Final = "atomr_accel.libraries.nccl.host"

# Collectives wait for other devices, so their time does not count as a hang of this one: the
# world has its own deadline. Their own thread and stream keep nothing else waiting.
COLLECTIVES: Final = LaneSpec(
    "nccl",
    {"cpu": f"{_HOST}._cpu:CpuCollectives", "cuda": f"{_HOST}._cuda:CudaCollectives"},
    watched=False,
    own_thread=True,
    parkable=False,
)
"""Lane on which ranks join communicators and take part in collectives."""

ABORTS: Final = LaneSpec(
    "nccl-aborts",
    {"cpu": f"{_HOST}._cpu:CpuAborts", "cuda": f"{_HOST}._cuda:CudaAborts"},
    watched=False,
    own_thread=True,
    parkable=False,
)
"""Lane that answers at once, also while the other waits for a rank that is gone."""
