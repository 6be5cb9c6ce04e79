"""Parkers of the CPU backend that fail in some way. They run in hosts."""

from __future__ import annotations

import os
import signal
import time

from atomr_accel import OutOfMemory, Unsupported
from atomr_accel.backends.cpu.host.parking import CpuParker


class Stops:
    """Stops processes, as the backend's own does; the base of the others."""

    def check(self) -> None:
        """Return: all is there."""

    def park(self, pid: int, uuid: str) -> int:
        """Stop it."""
        return CpuParker().park(pid, uuid)

    def restore(self, pid: int, uuid: str, nbytes: int) -> None:
        """Continue it."""
        CpuParker().restore(pid, uuid, nbytes)


class LosesAll(Stops):
    """No process returns."""

    def restore(self, pid: int, uuid: str, nbytes: int) -> None:
        """Fail, and leave it stopped."""
        raise RuntimeError(f"process {pid} is lost")


class HasNoRoom(Stops):
    """The device has no room for any process."""

    def restore(self, pid: int, uuid: str, nbytes: int) -> None:
        """Refuse, and leave it parked."""
        raise OutOfMemory("all of it is taken", requested=nbytes)


class ParksOneInTwo(Stops):
    """The first process is not parked."""

    failed = False

    def park(self, pid: int, uuid: str) -> int:
        """Fail once."""
        if not ParksOneInTwo.failed:
            ParksOneInTwo.failed = True
            raise RuntimeError(f"process {pid} is busy")
        return super().park(pid, uuid)


class ParksOne(Stops):
    """A process that has parked one is busy with the second for good."""

    done = False

    def park(self, pid: int, uuid: str) -> int:
        """Return once."""
        if ParksOne.done:
            time.sleep(3600)
        ParksOne.done = True
        return super().park(pid, uuid)


class IsNone:
    """A driver that cannot park processes."""

    def check(self) -> None:
        """Say so."""
        raise Unsupported("update the driver")


class Hangs_park(Stops):  # noqa: N801 (named for the step)
    """A driver that never parks anything."""

    def park(self, pid: int, uuid: str) -> int:
        """Hang."""
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().park(pid, uuid)


class Hangs_restore(Stops):  # noqa: N801
    """A driver that never restores anything."""

    def restore(self, pid: int, uuid: str, nbytes: int) -> None:
        """Hang."""
        os.kill(os.getpid(), signal.SIGSTOP)
