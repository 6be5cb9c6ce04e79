"""Parking standbys, by a process that calls the backend's ``Parker``.

The program loads no driver, and a host that is parked cannot ask for its own return.
"""

from __future__ import annotations

from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, final

import trio

from ..._errors import Unsupported
from ...lanes import HostDied, HostHandle, start_host, uninterrupted
from ...wire import Free, MoveProcess

if TYPE_CHECKING:
    from ...wire import DeviceInfo
    from ..core import DeviceCore

PARK_SECONDS: Final = 30.0
"""Time within which a host has to be parked."""

RESTORE_SECONDS: Final = 10.0
"""Time within which a parked host has to return."""


class NotParkedError(Exception):
    """A host cannot be parked, although it is as good as others.

    Args:
        why: the reason.
        most: the number of hosts that can be parked; None: those that are.
    """

    def __init__(self, why: str, most: int | None = None) -> None:
        super().__init__(why)
        self.most: Final = most


@final
@uninterrupted
class Parking:
    """Parks hosts of a device and restores them.

    A process does one step at a time. A rebuild has one of its own, so that it waits for no other
    host's step.
    """

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        self._helpers: dict[bool, HostHandle] = {}  # by whether they serve rebuilds
        self._starting = trio.Lock()

    async def park(self, host: HostHandle, info: DeviceInfo) -> int:
        """Park a host, which has no slabs mapped.

        Returns:
            Bytes of device memory that this has released, or 0 if they are unknown.

        Raises:
            Exception: it is not known to be parked, and must be killed.
        """
        with trio.move_on_after(PARK_SECONDS):
            if True not in self._helpers:
                await self._ask("check", urgent=True)  # it is prepared by then
            return await self._ask("park", host, info)
        raise HostDied(f"it was not parked within {PARK_SECONDS:g} s")

    async def restore(
        self, host: HostHandle, info: DeviceInfo, nbytes: int, *, urgent: bool = False
    ) -> None:
        """Have a parked host run again.

        ``urgent`` means that a rebuild waits for it.

        Raises:
            OutOfMemory: no room; the host is parked as before.
            Exception: it is lost, and must be killed.
        """
        with trio.move_on_after(RESTORE_SECONDS):
            await self._ask("restore", host, info, nbytes, urgent=urgent)
            return
        raise HostDied(f"it was parked, and did not return within {RESTORE_SECONDS:g} s")

    async def check(self) -> None:
        """Raise Unsupported if hosts cannot be parked here."""
        await self._ask("check")

    def close(self) -> None:
        """End the processes. Parked hosts stay parked."""
        for helper in self._helpers.values():
            self._core.lifecycle.discard(helper, {})
        self._helpers.clear()

    async def _ask(
        self,
        step: Literal["check", "park", "restore"],
        host: HostHandle | None = None,
        info: DeviceInfo | None = None,
        nbytes: int = 0,
        *,
        urgent: bool = False,
    ) -> int:
        parker = self._core.backend_description.parker
        if parker is None:
            raise Unsupported(
                f"backend {self._core.backend!r} cannot park hosts; ask for hot ones: "
                "Standby(hot=1)"
            )
        async with self._starting:
            helper = self._helpers.get(urgent)
            if helper is None or not helper.alive:
                if helper is not None:
                    self._core.lifecycle.discard(self._helpers.pop(urgent), {})
                helper = self._helpers[urgent] = await start_host("process")
        pid = 0 if host is None or host.pid is None else host.pid
        if host is not None and not host.alive:
            raise HostDied("it has ended")
        request = MoveProcess(parker, step, pid, "" if info is None else info.uuid, nbytes)
        try:
            reply, _ = await helper.request(request)
        finally:
            if helper.output is not None:
                helper.output.glance()
        assert isinstance(reply, Free)
        return reply.nbytes


async def check_parking(core: DeviceCore) -> None:
    """Find out whether hosts can be parked, before a device promises that.

    Raises:
        Unsupported: they cannot.
        OSError: no process or descriptor is available.
    """
    parking = Parking(core)
    try:
        await parking.check()
    finally:
        parking.close()
        await core.reaper.reap_all()


def host_bytes(pid: int) -> int:
    """Return the bytes of host memory that a process shares with no other; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text("ascii").split()
        return (int(resident) - int(shared)) * PAGESIZE
    return 0
