"""A second host that is warm, so that a rebuild need not wait for Python to start.

Most of a rebuild is the new process: interpreter, imports, loading the vendor's
libraries. None of that touches the device, so it can be done beforehand.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, final

import trio

from ..actors import Backoff
from ..lanes import HostDied, HostHandle, start_host, uninterrupted
from ..wire import Preload

if TYPE_CHECKING:
    from ._core import DeviceCore


_log = logging.getLogger("atomr_accel.device")

_RETRY: Final = Backoff(initial=1.0, base=2.0, factor=2.0, maximum=60.0)
"""When another is tried after one that could not be had."""


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
        self.warm: bool = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Warm a host up whenever there is a context and no warm host."""
        task_status.started()
        failures = 0
        while True:
            await self._core.ready()
            generation = self._core.memory.generation
            try:
                await self._keep_one()
            except Exception as error:  # noqa: BLE001 (whatever it is, the device has a host)
                # Nothing is lost: a rebuild that comes before the next try starts its own.
                failures += 1
                _log.warning("%s: no warm host: %r; trying again", self._core.name, error)
                await trio.sleep(_RETRY.delay(failures))
            else:
                failures = 0
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

    @trio.lowlevel.enable_ki_protection
    async def _keep_one(self) -> None:
        """Start a host, and keep it warm until it is taken.

        Raises:
            HostDied: it ended before.
            Exception: it could not be started, or does not load what the device uses.
        """
        host = self._host = await start_host("process")
        problem: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, host, nursery.cancel_scope)
                try:
                    await self._keep_warm(host)
                except Exception as error:  # noqa: BLE001 (raised below, without a group)
                    problem = error
                nursery.cancel_scope.cancel()
            if problem is None and self._host is host:
                problem = HostDied("the host that was kept warm has ended")
            if problem is not None:
                raise problem
        finally:
            del problem
            if self._host is host:
                self._host = None
                self.warm = False
                host.kill()
                self._core.terminating.append(host)

    async def _watch(self, host: HostHandle, scope: trio.CancelScope) -> None:
        try:
            await host.wait_ended()
            scope.cancel()
        except trio.Cancelled:
            if self._host is host:  # nobody needs its answers any more
                host.kill()
            raise

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
