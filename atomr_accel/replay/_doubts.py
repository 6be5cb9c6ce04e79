"""Which buffers of a replay do not hold what was recorded, or may not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

from ..lanes import DeviceInstrument
from ..memory import repeats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..memory import Block, GpuRef


@final
class Doubts(DeviceInstrument):
    """Buffers whose content is not known, and why; told of each op, since ops pass that on.

    What an op reads it may leave in all that it writes. What it only writes it may read as well,
    as functions do that ``run`` calls, so that counts where a buffer is the program's; workspaces
    are not, and nothing is read there that others have left.

    Args:
        buffers: those of the program, by their numbers.

    Attributes:
        cause: why nobody knows what is written now; None: it is what was recorded.
    """

    def __init__(self, buffers: Mapping[int, GpuRef]) -> None:
        self._buffers: Final = buffers
        self._reasons: Final[WeakKeyDictionary[Block, str]] = WeakKeyDictionary()
        self.cause: str | None = None

    def op_submitted(self, op: Any) -> None:
        """Have doubt in what an op writes if there is some in what it uses."""
        if self.cause is None and not self._reasons:
            return
        writes = {block.base for block in op.writes}
        reason = self.cause or self.among(block.base for block in op.reads)
        if reason is None:
            doubtful = {block for block in writes if block in self._reasons}
            if doubtful:
                ours = {ref._block.base for ref in self._buffers.values()}
                reason = self.among(doubtful & ours)
        if reason is not None:
            for block in writes:
                self._reasons.setdefault(block, reason)

    def among(self, blocks: Iterable[Block]) -> str | None:
        """Why some of these whole blocks may hold anything; None: they hold what they should."""
        return next((self._reasons[each] for each in blocks if each in self._reasons), None)

    def add(self, number: int, reason: str) -> None:
        """Nobody knows what a buffer holds, unless nothing can write it."""
        ref = self._buffers.get(number)
        if ref is not None and not ref.sealed:
            self.add_block(ref._block, reason)

    def add_block(self, block: Block, reason: str) -> None:
        """Nobody knows what some memory holds."""
        self._reasons.setdefault(block.base, reason)

    def settle(self, ref: GpuRef) -> None:
        """It is known what a buffer holds; of a view of a part, that says nothing of the rest."""
        block = ref._block.base
        if ref.nbytes == block.nbytes and not repeats(ref.shape, ref.strides):
            self._reasons.pop(block, None)
