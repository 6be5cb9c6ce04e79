"""Services on a device that work for one caller at a time."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from .. import Device
from ..actors import Service
from ..actors.util import check_instance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class TakesTurns(Service):
    """Base of services whose calls take turns, in the order in which they came.

    Args:
        device: the device.
        noun: what the service is, for messages.
    """

    def __init__(self, device: Device, noun: str) -> None:
        check_instance("device", device, Device)
        self.device: Final = device
        self._noun = noun
        self._lock = trio.StrictFIFOLock()
        self._over: BaseException | None = None

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Prepare the device, or take up the work again after a restart."""
        async with self._lock:
            await self.device.retry(self._revive)
        task_status.started()
        await trio.sleep_forever()

    def ended(self, cause: BaseException | None) -> None:
        """Refuse calls from now on."""
        self._over = cause or RuntimeError("its block was left")

    def depth(self) -> int:
        """Calls that wait or are in progress."""
        held = self._lock.statistics()
        return held.tasks_waiting + held.locked

    def _check_open(self) -> None:
        if self._over is not None:
            raise RuntimeError(
                f"this {self._noun} must be open to be used, but {self._over}"
            ) from self._over

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._lock:
            self._check_open()
            yield

    @abstractmethod
    async def _revive(self) -> None:
        """Make the buffers and recordings of the service, unless they are there."""
