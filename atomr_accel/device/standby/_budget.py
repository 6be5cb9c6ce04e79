"""Room for standbys in the device's memory, and the choice between hot and warm ones."""

from __future__ import annotations

import logging
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from ..._errors import AccelError, StandbyWarning
from ...lanes import uninterrupted
from ...wire import StickyFault
from ..contexts._prepared import free_memory

if TYPE_CHECKING:
    from ..core import DeviceCore
    from ._spare import Spare
    from ._statistics import StandbyMode

_log = logging.getLogger("atomr_accel.device")


class NoRoomError(Exception):
    """The limit of the device's memory has no room for another context."""


@final
@uninterrupted
class Room:
    """The device's memory that standbys take.

    Args:
        core: the device.
        wanted: the mode that is wanted.

    Attributes:
        wanted: the mode that is wanted.
        mode: the present mode, which is warm if hot ones have no room.
        why: the reason why it is not the mode that is wanted.
        spares: the standbys.
    """

    def __init__(self, core: DeviceCore, wanted: StandbyMode) -> None:
        self._core = core
        self._warned = False
        self.wanted: Final = wanted
        self.mode = wanted
        self.why: str | None = None
        self.spares: Final[list[Spare]] = []

    def be_warm(self, why: str) -> None:
        """Keep warm standbys, because hot ones have no room, and warn once."""
        self.mode, self.why = "warm", why
        if not self._warned:
            self._warned = True
            told = StandbyWarning(f"{self._core.name} keeps a warm standby, not a hot one: {why}")
            try:
                warnings.warn(told, stacklevel=2)
            except StandbyWarning:  # the program wants errors, and this is a task of its own
                _log.warning("%s", told, extra=self._core.log_fields())

    def be_as_wanted(self) -> None:
        """Try the wanted mode again."""
        self.mode, self.why = self.wanted, None

    async def left(self) -> int:
        """Return the free bytes of the device's memory, and the bytes of the program."""
        context = self._core.context
        with suppress(AccelError, OSError, StickyFault):  # its own context sees to that
            if context is not None and (free := await free_memory(context.host)):
                return free + self._core.memory.capacity
        return 0

    async def measure(self, spare: Spare) -> None:
        """Note what a hot one has taken of the device's memory."""
        if spare.left and (left := await self.left()):
            spare.nbytes = max(0, spare.left - left)
        self.account()

    def account(self) -> None:
        """Count what contexts of standbys take against the limit of the device's memory."""
        self._core.memory.reserved = sum(
            spare.nbytes
            for spare in self.spares
            if spare.prepared is not None and not spare.given_up
        )
