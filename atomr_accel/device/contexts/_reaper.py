"""Hosts that were killed, until they have ended."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, TypeVar, final

import trio

from ..._errors import OutOfMemory
from ...lanes import END_SECONDS, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...lanes import HostHandle

T = TypeVar("T")


@final
@uninterrupted
class Reaper:
    """Waits for the ends of hosts that were killed, and runs callbacks that had to wait for them.

    A device and its shadows share one.

    Attributes:
        terminating: hosts that were killed and may not have ended yet.
        quarantined: callbacks to run once a host has ended. A killed host may still be moving data
            when its ops are answered.
    """

    def __init__(self) -> None:
        self.terminating: Final[list[HostHandle]] = []
        self.quarantined: Final[list[tuple[HostHandle, Callable[[], None]]]] = []
        self._gone: Final[weakref.WeakSet[HostHandle]] = weakref.WeakSet()

    async def reap(self, host: HostHandle) -> None:
        """Wait until a killed host has ended, so that its memory is not accessed any more."""
        await host.wait_ended()
        self._reaped(host)

    async def make_room(self) -> bool:
        """Wait until killed hosts have ended, because their memory is free only then.

        Returns:
            True if there were any.
        """
        hosts = list(self.terminating)
        for host in hosts:
            with trio.move_on_after(END_SECONDS):
                await self.reap(host)
        return bool(hosts)

    async def with_room(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``attempt``, which runs again if killed hosts had the memory.

        Raises:
            OutOfMemory: memory is short although they have ended.
        """
        try:
            return await attempt()
        except OutOfMemory:
            if not await self.make_room():
                raise
        return await attempt()

    async def reap_all(self) -> None:
        """Wait until the hosts that were killed have ended, as long as that makes sense."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for host in self.terminating:
                    nursery.start_soon(host.close)
        for host in list(self.terminating):
            if host.ended:
                self._reaped(host)
            else:
                host.abandon()

    def _reaped(self, host: HostHandle) -> None:
        if host in self.terminating:
            self.terminating.remove(host)
        self._gone.add(host)
        over = [callback for dead, callback in self.quarantined if dead is host]
        self.quarantined[:] = [entry for entry in self.quarantined if entry[0] is not host]
        for callback in over:
            callback()

    def quarantine(self, host: HostHandle, callback: Callable[[], None]) -> None:
        """Call back once ``host`` has ended, which may be moving data until then."""
        if host in self._gone:
            callback()
        else:
            self.quarantined.append((host, callback))
