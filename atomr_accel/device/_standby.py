"""A second host that is warm, so that a rebuild need not wait for Python to start.

Most of a rebuild is the new process: interpreter, imports, loading the vendor's
libraries. None of that touches the device, so it can be done beforehand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import trio

from ..host import Preload
from ..lanes import HostDied, HostHandle, start_host, uninterrupted

if TYPE_CHECKING:
    from ._core import DeviceCore


@final
@uninterrupted
class Standby:
    """Keeps one warm host while a context is up; the next context takes it.

    Attributes:
        warm: whether it has loaded all that the device uses.
    """

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        self._host: HostHandle | None = None
        self._changed = trio.Event()
        self._warmed = trio.Event()
        self.warm = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Warm a host up whenever there is a context and no warm host."""
        task_status.started()
        while True:
            await self._core.ready()
            generation = self._core.memory.generation
            host = self._host = await start_host("process")
            try:
                await self._keep_warm(host)
            except HostDied:
                # Nothing is lost: the next rebuild starts one of its own.
                self._host = None
                self.warm = False
                await host.close()
            finally:
                if self._host is host:
                    self._host = None
                    await host.close()
            await self._core.generation_after(generation)

    async def wait_warm(self) -> None:
        """Wait until there is a warm host."""
        await trio.lowlevel.checkpoint()
        while not self.warm:
            await self._warmed.wait()

    def take(self) -> HostHandle | None:
        """The warm host, which is the caller's from now on."""
        host, self._host = self._host, None
        self.changed()
        return host

    def changed(self) -> None:
        """The host was taken, or the device uses more than it has loaded."""
        self.warm = False
        self._changed.set()
        self._changed = trio.Event()

    async def _keep_warm(self, host: HostHandle) -> None:
        """Load what the device uses, and again when it uses more, until it is taken."""
        loaded: set[str] = set()
        while self._host is host:
            changed = self._changed
            wanted = self._core.executors()
            if wanted - loaded:
                await host.request(Preload(sorted(wanted - loaded)))
                loaded |= wanted
            else:
                self.warm = self._host is host
                self._warmed.set()
                self._warmed = trio.Event()
                await changed.wait()
