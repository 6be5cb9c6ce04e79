"""``device.cub``: reductions, scans, sorts and selections."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ...ops import D
from ._elements import Elements
from ._operators import Operator
from ._reductions import CubReductions
from ._selection import Selections
from ._sorting import Sorts
from .call import CubStatistics


@final
class Cub(CubReductions[D], Sorts[D], Selections[D], Elements[D]):
    """CUB's algorithms for whole devices, on CUDA; NumPy on the CPU.

    They take arrays of any shape as one row. NVRTC builds their kernels at the first call with its
    dtypes and operators, on a separate lane. That takes some seconds, once: builds are kept on
    disk, in ``$ATOMR_CACHE_DIR``.

    An operator is a name, such as ``"plus"``; a function in CUDA C++ that ``operator`` makes known;
    or a Python function of a small subset. The subset is one expression of its arguments and
    numbers, with ``+ - * /``, comparisons, ``and or not``, ``min``, ``max``, ``abs`` and ``x if
    condition else y``. It is computed in the dtype of its arguments.

    All methods raise:
        ValueError: arrays of different lengths, an unknown operator.
        TypeError: unequal dtypes, one that has no arithmetic or no order, a function outside the
            subset, an argument that is not a GpuRef.
        GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
        OutOfMemory: no room for the results.
        Unsupported: on the CPU backend, an operator in CUDA C++ without ``cpu=``.
    """

    templated = True

    def operator(
        self, source: str, name: str, cpu: Callable[..., object] | None = None
    ) -> Operator:
        """Make an operator from CUDA C++.

        Args:
            source: declares a ``__device__`` function of one or two elements. What the headers of
                CUDA and of ``cuda/std`` have can be included.
            name: the function's name.
            cpu: the function for the CPU backend: a NumPy ufunc, or a Python function of NumPy
                scalars, picklable by cloudpickle.

        Returns:
            What algorithms take as an operator. It is compiled when one is built with it.
        """
        return Operator(source, name, cpu)

    def statistics(self) -> CubStatistics:
        """Return a snapshot of the numbers of builds, and of the workspace."""
        return self._builds.statistics()
