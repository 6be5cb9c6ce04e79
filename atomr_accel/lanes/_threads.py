"""How many threads OpenBLAS has in hosts, which NumPy and SciPy compute with there.

By default it has one for each core. They wait for work without sleeping, so they take the cores
from the program and from other lanes: on two cores, a small product then takes 40 times as long.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "OPENBLAS_NUM_THREADS"
_SETTINGS: Final = (VARIABLE, "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""What OpenBLAS goes by, the first that is set."""

_CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = _CGROUPS) -> int:
    """How many cores this process may keep busy: by its affinity, and by its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota(cgroups)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroups: Path) -> float | None:
    """How many cores a container may have at a time; None without a limit."""
    try:  # version 2 has both in one file
        limit, period = (cgroups / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            limit, period = (
                (cgroups / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="ascii").strip()
                for name in ("quota", "period")
            )
        except (OSError, ValueError):
            return None
    if not (limit.isdigit() and period.isdigit() and int(period)):  # "max", and -1
        return None
    return int(limit) / int(period)


def openblas_threads(
    environment: Mapping[str, str] = os.environ, cgroups: Path = _CGROUPS
) -> tuple[int, str]:
    """How many there are in hosts, and the variable that says it; "" if the program sets none.

    Half of the cores: the others are for the program, and for the threads of lanes.
    """
    for name in _SETTINGS:
        value = environment.get(name, "")
        if value.isdigit() and int(value):
            return int(value), name
    return max(1, usable_cores(cgroups) // 2), ""


def with_threads(environment: Mapping[str, str], cgroups: Path = _CGROUPS) -> dict[str, str]:
    """The environment of a host; what the program has set stays."""
    count, name = openblas_threads(environment, cgroups)
    return {**environment, **({} if name else {VARIABLE: str(count)})}
