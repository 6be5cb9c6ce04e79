"""Buffers of a replay that may differ from the recorded ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

from ..arrays import repeats
from ..lanes import DeviceInstrument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..arrays import GpuRef
    from ..memory import Block


@final
class Doubts(DeviceInstrument):
    """Buffers with unknown content, and the reasons, which ops carry over to other buffers.

    An op carries doubts about its inputs over to all its outputs. An output of an op may also be
    read, as by functions that ``run`` calls. A doubt about an output therefore counts too if the
    output is a buffer of the program. It does not count for a workspace, because ops never read the
    previous content of one.

    Attributes:
        cause: the reason why writes have unknown content now; None if they are as recorded.
    """

    def __init__(self, buffers: Mapping[int, GpuRef]) -> None:
        self._buffers: Final = buffers
        self._reasons: Final[WeakKeyDictionary[Block, str]] = WeakKeyDictionary()
        self.cause: str | None = None

    def op_submitted(self, op: Any) -> None:
        """Mark the outputs of an op as doubtful if its inputs are."""
        if self.cause is None and not self._reasons:
            return
        writes = {block.base for block in op.writes}
        reason = self.cause or self.among(block.base for block in op.reads)
        if reason is None:
            doubtful = {block for block in writes if block in self._reasons}
            if doubtful:
                ours = {ref.block.base for ref in self._buffers.values()}
                reason = self.among(doubtful & ours)
        if reason is not None:
            for block in writes:
                self._reasons.setdefault(block, reason)

    def among(self, blocks: Iterable[Block]) -> str | None:
        """Return the reason why one of these whole blocks is doubtful; None if none is."""
        return next((self._reasons[each] for each in blocks if each in self._reasons), None)

    def add(self, number: int, reason: str) -> None:
        """Mark a buffer as doubtful, unless it is sealed."""
        ref = self._buffers.get(number)
        if ref is not None and not ref.sealed:
            self.add_block(ref.block, reason)

    def add_block(self, block: Block, reason: str) -> None:
        """Mark the whole block of some memory as doubtful."""
        self._reasons.setdefault(block.base, reason)

    def settle(self, ref: GpuRef) -> None:
        """Mark a buffer as known, unless ``ref`` is a view of only a part of it."""
        block = ref.block.base
        if ref.nbytes == block.nbytes and not repeats(ref.shape, ref.strides):
            self._reasons.pop(block, None)
