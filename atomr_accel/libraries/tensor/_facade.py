"""``device.tensor``: sums of products of arrays with any number of axes."""

from __future__ import annotations

from typing import final

from ...ops import D, WorkspaceStatistics
from ._einsum import Einsum


@final
class Tensor(Einsum[D]):
    """Sums of products along any axes, as ``einsum`` names them.

    ``einsum`` works everywhere. The other methods are cuTENSOR's operations, one call each, and
    need the package that contains it. Their arrays may be any views; views with negative strides or
    repeated elements are copied first. They return ``out``, or a new C-contiguous buffer. All
    arrays of a call have one dtype:

    | dtype | compute types |
    |---|---|
    | float16, bfloat16 | 32F |
    | float32 | 32F, 3XTF32, 16F, 16BF |
    | float64, complex128 | 64F, 32F |
    | complex64 | 32F, 3XTF32 |

    The first is the default, so float32 is float32; ``allow_tf32=True`` lets
    ``contract`` and ``contract_trinary`` multiply in TF32. The CPU backend ignores compute
    types: it computes in the type itself, and 16-bit types in float32.

    Plans are kept for each combination of extents, strides, modes, dtypes, operators, compute type
    and alignments. Operations share 64 MiB of scratch memory on CUDA.

    All methods raise:
        ValueError: subscripts, shapes or options that do not fit, arguments that share memory, a
            ref of another device.
        TypeError: unequal or unsupported dtypes, an argument that is not an array of the device.
        GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
        OutOfMemory: no room for the result, or for intermediate results.
    """

    templated = True

    def statistics(self) -> WorkspaceStatistics:
        """Return the workspaces of the device."""
        return self._workspaces.statistics(self.home)
