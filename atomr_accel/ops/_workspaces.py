"""Scratch memory that ops of one lane share.

Ops write to their workspace, so those that have the same one run one after the other. Small
ops leave most of a device idle; so when many are in flight together they get different ones,
up to the number of streams the lane has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, final

from .._dtypes import DTYPES

if TYPE_CHECKING:
    from ..arrays import GpuRef
    from ..memory import Block
    from ._library import DeviceView
    from ._request import Preparer

TOGETHER: Final = 8
"""Number of ops in a row that share a workspace. A lane launches as many on one stream before it
goes on to the next, so they would run one after the other anyway.
"""


@dataclass(frozen=True, slots=True)
class WorkspaceStatistics:
    """Memory that a library keeps.

    Attributes:
        workspace: bytes of the workspaces that its ops share.
    """

    workspace: int


@dataclass(slots=True, eq=False)
class WorkspaceSet:
    """Workspaces of the device, a batch or a recording.

    Attributes:
        refs: the workspaces, the last used one last.
        run: the number of ops in a row that have used the last one.
    """

    refs: list[GpuRef] = field(default_factory=list)
    run: int = 0


@final
class Workspaces:
    """The workspaces of a lane, kept from op to op.

    Batches and recordings have their own workspaces, which end with them: their memory may be
    allocated late, and a recording's has to keep its address. So each keeps its own, in
    ``scratch``.

    Args:
        max_streams: the largest number of them at a time.
        small: bytes. An op that needs more occupies the whole device, so there is only one such
            workspace.
    """

    def __init__(self, max_streams: int, small: int) -> None:
        self._slots = max_streams
        self._small = small

    def obtain(self, preparer: Preparer, nbytes: int) -> Block:
        """Return a workspace for one op, which has to name it as written.

        Args:
            preparer: the op's preparer; it makes the workspace, if there is none.
            nbytes: how large it has to be at least.
        """
        return preparer.obtain(partial(self._take, nbytes))

    def _take(self, nbytes: int, preparer: Preparer) -> Block:
        device = preparer.home
        kept = device.scratch.get(self)
        if kept is None:
            kept = device.scratch[self] = WorkspaceSet()
        epoch = device.memory.epoch
        last = kept.refs[-1] if kept.refs else None
        if last is not None and last.block.epoch is epoch and last.nbytes >= nbytes:
            # By far the most common case: what the op before it has got.
            busy = bool(last.block.writer)
            if not busy or kept.run < TOGETHER:
                kept.run = kept.run + 1 if busy else 1
                return last.block
        there = [ref for ref in kept.refs if ref.block.epoch is epoch]
        fitting = [ref for ref in there if ref.nbytes >= nbytes]
        most = self._slots if nbytes <= self._small else 1
        idle = [ref for ref in fitting if not ref.block.writer]
        if idle or len(fitting) >= most:
            chosen = (idle or fitting)[0]
        else:
            # Drop workspaces that are too small first, to make room for the new one.
            kept.refs = there = fitting if len(there) >= most else there
            chosen = preparer.output((nbytes,), DTYPES["uint8"])
        kept.run = kept.run + 1 if chosen is last else 1
        kept.refs = [*(ref for ref in there if ref is not chosen), chosen]
        return chosen.block

    def nbytes(self, device: DeviceView) -> int:
        """Return the bytes that all kept workspaces of a device use."""
        epoch = device.memory.epoch
        kept = device.scratch.get(self, WorkspaceSet())
        return sum(ref.block.size for ref in kept.refs if ref.block.epoch is epoch)

    def statistics(self, device: DeviceView) -> WorkspaceStatistics:
        """Return a snapshot of the memory that is kept for a device."""
        return WorkspaceStatistics(self.nbytes(device))

    def clear(self, device: DeviceView) -> None:
        """Free the memory after the ops in flight."""
        device.scratch.pop(self, None)
