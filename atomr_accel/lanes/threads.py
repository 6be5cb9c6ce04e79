"""Number of OpenBLAS threads in hosts, where NumPy and SciPy compute with them.

By default OpenBLAS starts one thread per core. They wait for work without sleeping, so they take
the cores from the program and from other lanes. Small products on few cores suffer most.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "OPENBLAS_NUM_THREADS"
_SETTINGS: Final = (VARIABLE, "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables that OpenBLAS reads; the first one set counts."""

_CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = _CGROUPS) -> int:
    """Return the number of cores for this process, by its affinity and its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota(cgroups)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroups: Path) -> float | None:
    """Return the number of cores a container may use at a time; None without a limit."""
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
    """Return the thread count for hosts and the variable that sets it; "" if none is set.

    The default is half of the cores. The others are for the program and for the threads of lanes.
    """
    for name in _SETTINGS:
        value = environment.get(name, "")
        if value.isdigit() and int(value):
            return int(value), name
    return max(1, usable_cores(cgroups) // 2), ""


def with_threads(environment: Mapping[str, str], cgroups: Path = _CGROUPS) -> dict[str, str]:
    """Return the environment of a host; settings of the program stay."""
    count, name = openblas_threads(environment, cgroups)
    return {**environment, **({} if name else {VARIABLE: str(count)})}
