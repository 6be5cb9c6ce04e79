"""Room for standbys in the device's memory, and the choice between hot and warm ones."""

from __future__ import annotations

import logging
import math
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from ..._errors import AccelError, StandbyWarning
from ...lanes import uninterrupted
from ...wire import StickyFault
from ..contexts._prepared import free_memory
from ._parking import NotParkedError

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

    Parked ones may take ``host_memory`` bytes of host memory, or any number. With ``optional`` a
    warm one is as good as one of the mode that is wanted, so that no warning is due.

    Attributes:
        wanted: the mode that is wanted.
        mode: the present mode, which is warm if hot ones have no room.
        why: the reason why it is not the mode that is wanted.
        most_parked: number of standbys that can be parked, as far as that is known.
        spares: the standbys.
        used_at: the time when the last one took over.
    """

    def __init__(
        self,
        core: DeviceCore,
        wanted: StandbyMode,
        host_memory: int | None = None,
        *,
        optional: bool = False,
    ) -> None:
        self._core = core
        self._host_memory: Final = host_memory
        self.most_parked = math.inf
        self._optional: Final = optional
        self._warned = optional
        self.used_at = -math.inf
        self.wanted = wanted
        self.mode = wanted
        self.why: str | None = None
        self.spares: Final[list[Spare]] = []

    @property
    def short(self) -> bool:
        """True if standbys are less far prepared than the program asked for."""
        return self.mode != self.wanted and not self._optional

    def want_warm(self) -> None:
        """Keep warm standbys for good."""
        self.wanted = self.mode = "warm"

    def be_warm(self, why: str) -> None:
        """Keep warm standbys, because hot ones have no room, and warn once."""
        self.mode, self.why = "warm", why
        kind = "parked" if self.wanted == "parked" else "hot"
        self._warn(f"keeps a warm standby, not a {kind} one: {why}")

    def park_fewer(self, why: str, most: int | None) -> None:
        """Park no more standbys than ``most``, or than are parked, and warn once."""
        parked = sum(spare.parked for spare in self.spares)
        self.most_parked = parked if most is None else most
        if self.wanted == "parked" and not self.most_parked:
            self.be_warm(why)
        else:
            self.why = why
            self._warn(f"parks {self.most_parked} standbys, not as many as are wanted: {why}")

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            told = StandbyWarning(f"{self._core.name} {text}")
            try:
                warnings.warn(told, stacklevel=2)
            except StandbyWarning:  # the program wants errors, and this is a task of its own
                _log.warning("%s", told, extra=self._core.log_fields())

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory that parked standbys take."""
        return sum(spare.host_bytes for spare in self.spares if spare.parked)

    def check_host_memory(self) -> None:
        """Check the budget of host memory, which the last one that was parked may exceed."""
        if self._host_memory is not None and self.host_bytes > self._host_memory:
            most = sum(spare.parked for spare in self.spares) - 1
            raise NotParkedError(
                f"{most + 1} parked standbys take {self.host_bytes} bytes of host memory, and "
                f"host_memory is {self._host_memory}",
                most,
            )

    def be_as_wanted(self) -> None:
        """Try the wanted mode again."""
        self.mode, self.why, self.most_parked = self.wanted, None, math.inf

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
            if spare.prepared is not None and not spare.given_up and not spare.parked
        )
