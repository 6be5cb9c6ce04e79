"""``device.dnn``: neural networks' operations, and graphs of them."""

from __future__ import annotations

from typing import final

from ...ops import D
from ...wire.options import whole
from .attention.caches import Caches
from .graph._run import DnnStatistics
from .graph.user_graph import UserGraphs
from .ops._conv import DnnConvolutions
from .ops._norm import Normalizations
from .ops._pointwise import Activations
from .ops._resample import Resampling
from .rnn.facade import Recurrent
from .routines._facade import DnnRoutines
from .routines._losses import Losses
from .routines._pooling import Pooling
from .routines._sampling import GridSampling


@final
class Dnn(
    DnnConvolutions[D],
    Normalizations[D],
    Activations[D],
    UserGraphs[D],
    Caches[D],
    Recurrent[D],
    Pooling[D],
    Resampling[D],
    GridSampling[D],
    DnnRoutines[D],
    Losses[D],
):
    """Neural networks' operations: cuDNN on CUDA, NumPy on the CPU.

    Every operation is a small graph whose plan is made once and kept, in the host and on
    disk. ``graph`` makes graphs of your own, which run as one kernel where cuDNN can.

    All operations raise:
        ValueError: shapes, sizes, numbers, options or a layout that do not fit, or aliasing.
        TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
        Unsupported: the device does not have this combination.
        GpuRefStale: a ref is of an older generation, or was freed.
        GpuRefSealed: a sealed ref to be written.
        OutOfMemory: there is not enough memory for the result.
    """

    templated = True

    @property
    def plan_limit(self) -> int:
        """Number of plans that are kept in memory. The least recently used are dropped."""
        return self.plans.plans.limit

    @plan_limit.setter
    def plan_limit(self, limit: int) -> None:
        self.plans.limit_to(whole(limit, "plan_limit", 1))

    def clear_plans(self) -> None:
        """Drop all plans and workspaces from memory. Plans on disk stay."""
        self.plans.plans.clear()
        self.plans.workspaces.clear(self.home)

    def statistics(self) -> DnnStatistics:
        """Return the numbers of plans by origin, and bytes of workspace."""
        return self.plans.statistics()
