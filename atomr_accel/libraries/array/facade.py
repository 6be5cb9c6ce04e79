"""``device.array``: NumPy's functions that are more than expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ops import D
from ._calculus import Calculus
from ._contractions import Contractions
from ._creation import Creation
from ._exponentials import Exponentials
from ._joining import Joining
from ._moments import Moments
from ._reductions import ArrayReductions
from ._repeating import Repeating
from ._scans import Scans
from ._searching import Searching
from ._sets import Sets
from .evaluate import evaluator_of

if TYPE_CHECKING:
    from ...ops import DeviceView
    from ...wire.recent import Recent
    from ..cub.facade import Cub


class ArrayFunctions(
    Creation[D],
    Joining[D],
    Repeating[D],
    ArrayReductions[D],
    Searching[D],
    Scans[D],
    Contractions[D],
    Sets[D],
    Calculus[D],
    Moments[D],
    Exponentials[D],
):
    """NumPy's functions for making, changing, choosing, sorting and reducing arrays.

    They have NumPy's names, arguments and defaults, and take any views. They return new arrays
    unless they say otherwise; parts and reversed arrays are views, and not awaited. Every function
    that has ``out=`` in NumPy has it here, and so have ``sort``, ``argsort``, ``tril``, ``triu``
    and ``where``.

    All methods raise:
        TypeError, ValueError, IndexError, OverflowError: what NumPy raises for such arguments.
        TypeError: a dtype without an order, for those that sort or search.
        GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
        OutOfMemory: no room for the result.
        Unsupported: in a batch or a recording, if only the device knows the result's size; without
            CUB, sorts of rows of more than 2048 elements, distinct elements and searches.
    """

    templated = True

    def __init__(self, device: DeviceView, cub: Cub[Any]) -> None:
        super().__init__(device, cub)
        evaluator = evaluator_of(device.memory)
        self.caches: tuple[Recent[Any, Any], ...] = (evaluator.plans, evaluator.kernels)
