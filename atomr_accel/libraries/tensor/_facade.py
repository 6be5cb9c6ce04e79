"""``device.tensor``: sums of products of arrays with any number of axes."""

from __future__ import annotations

from typing import final

from .._op import D
from .._workspaces import WorkspaceStatistics
from ._einsum import Einsum


@final
class Tensor(Einsum[D]):
    """Sums of products along any axes, as ``einsum`` names them.

    ``einsum`` is for everybody. The other methods are cuTENSOR's operations, one call each, and
    need the package that brings it. Their arrays may be any views; those that go backwards, or
    repeat elements, are copied first. All arrays of a call have one dtype:

    | dtype | compute types |
    |---|---|
    | float16, bfloat16 | 32F |
    | float32 | 32F, TF32, 3XTF32, 16F, 16BF |
    | float64, complex128 | 64F, 32F |
    | complex64 | 32F, TF32, 3XTF32 |

    The first is the default, so float32 is float32, not TF32. The CPU backend computes in the
    type itself, 16-bit ones in float32, whatever else is asked for.

    Plans are kept, by everything that they depend on: extents, strides, modes, dtypes, operators,
    compute type, alignments. Operations share 64 MiB of scratch memory on CUDA.

    All methods raise:
        ValueError: subscripts, shapes or options that do not fit, arguments that share memory,
            a ref of another device.
        TypeError: unequal or unsupported dtypes, an argument that is no array of the device.
        GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
        OutOfMemory: no room for the result, or for what is computed in between.
    """

    traced = True

    def statistics(self) -> WorkspaceStatistics:
        """A snapshot of what is kept."""
        return self._workspaces.statistics(self._device)
