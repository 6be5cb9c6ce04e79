"""Statistics of standby hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StandbyMode = Literal["hot", "parked", "warm"]


@dataclass(frozen=True, slots=True)
class StandbyStatistics:
    """The standby hosts of a device at one moment.

    Attributes:
        mode: the best mode that is kept: ``"hot"``, ``"parked"``, or ``"warm"``, also if memory for
            another one is short.
        state: the step of the best one. It is prepared: ``"starting"``, ``"loading"``,
            ``"opening"``, ``"mapping"``, ``"lanes"``, ``"importing"``, ``"init"``, ``"warming up"``
            and ``"ready"``. One to be parked continues with ``"parking"`` and ``"parked"``, and
            returns by ``"restoring"``. One that has died is ``"lost"`` until another replaces it.
            It is ``"waiting"`` without a standby: during a rebuild, just after one was taken, or
            before another attempt.
        kept: number of standbys that are wanted.
        ready: number of standbys that are ready.
        degraded: whether fewer are ready than are wanted, or less far prepared ones.
        problem: the reason why fewer are ready, or why ``warm_up`` failed, in words. None if all is
            well, or if they are just getting ready.
        parked: number of standbys that are parked.
        nbytes: bytes of the device's memory that they take, if the driver reports that.
        host_bytes: bytes of host memory that parked ones take, if the system reports that.
        seconds: time that the last one took to become ready; None before the first.
        used: number of standbys that have taken over.
        died: number of standbys that ended before, or could not be started.
    """

    mode: StandbyMode
    state: str
    kept: int
    ready: int
    degraded: bool
    problem: str | None
    parked: int
    nbytes: int
    host_bytes: int
    seconds: float | None
    used: int
    died: int
