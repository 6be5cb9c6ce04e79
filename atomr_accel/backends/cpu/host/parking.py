"""Parking hosts of the CPU backend: their processes are stopped."""

from __future__ import annotations

import os
import signal
from typing import final


@final
class CpuParker:
    """Stops processes, and continues them."""

    def check(self) -> None:
        """Return, because every machine can stop processes."""

    def park(self, pid: int, uuid: str) -> int:
        """Stop a process. It has no memory of the device left, because that is unmapped."""
        del uuid
        os.kill(pid, signal.SIGSTOP)
        return 0

    def restore(self, pid: int, uuid: str, nbytes: int) -> None:
        """Continue a process."""
        del uuid, nbytes
        os.kill(pid, signal.SIGCONT)
