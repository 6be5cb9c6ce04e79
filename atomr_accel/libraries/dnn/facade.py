"""``device.dnn``: neural networks' operations, and graphs of them."""

from __future__ import annotations

from typing import final

from ...ops import D, require_no_race
from ...wire.options import flag, whole
from .attention.paged import Caches
from .graph._run import DnnStatistics
from .graph.user_graph import Graphs
from .ops._conv import Convolutions
from .ops._norm import Normalizations
from .ops._pointwise import Activations
from .ops._resample import Resampling
from .rnn.facade import Recurrent
from .routines._facade import Routines
from .routines._losses import Losses
from .routines._pooling import Pooling


@final
class Dnn(
    Convolutions[D],
    Normalizations[D],
    Activations[D],
    Graphs[D],
    Caches[D],
    Recurrent[D],
    Pooling[D],
    Resampling[D],
    Routines[D],
    Losses[D],
):
    """Neural networks' operations: cuDNN on CUDA, NumPy on the CPU.

    Every operation is a small graph whose plan is made once and kept, in the host and on
    disk. ``graph`` makes graphs of your own, which run as one kernel where cuDNN can.
    """

    traced = True

    @property
    def autotune(self) -> bool:
        """``True`` if the first run of each graph tries all of its plans and keeps the fastest.

        If ``False``, the vendor's heuristics choose. Equivalent to
        ``torch.backends.cudnn.benchmark``. Setting it raises ``ValueError`` on a device that was
        opened with ``deterministic=True``.
        """
        return self._plans.autotune

    @autotune.setter
    def autotune(self, autotune: bool) -> None:
        require_no_race(self._device, autotune=flag(autotune, "autotune"))
        self._plans.autotune = bool(autotune)

    @property
    def allow_tf32(self) -> bool:
        """``True`` if products of float32 may round their factors to ten bits, to run faster.

        Off by default. Equivalent to ``torch.backends.cudnn.allow_tf32``.
        """
        return self._plans.tf32

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        self._plans.tf32 = flag(allow, "allow_tf32")

    @property
    def plan_limit(self) -> int:
        """Number of plans that are kept in memory. The least recently used are dropped."""
        return self._plans.limit

    @plan_limit.setter
    def plan_limit(self, limit: int) -> None:
        self._plans.limit_to(self._device, whole(limit, "plan_limit", 1))

    def clear_plans(self) -> None:
        """Drop all plans and workspaces from memory. Plans on disk stay."""
        self._plans.evict(self._device, 0)
        self._plans.workspaces.clear(self._device)

    def statistics(self) -> DnnStatistics:
        """Return numbers of plans, hits and misses, and bytes of workspace."""
        return self._plans.statistics(self._device)
