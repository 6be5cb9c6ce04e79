"""``device.tensor``: sums of products of arrays with any number of axes."""

from __future__ import annotations

from typing import final

from .._op import D
from ._einsum import Einsum


@final
class Tensor(Einsum[D]):
    """Sums of products along any axes, as ``einsum`` names them.

    All methods raise:
        ValueError: subscripts, shapes or options that do not fit, arguments that share memory,
            a ref of another device.
        TypeError: unequal or unsupported dtypes, an argument that is no array of the device.
        GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
        OutOfMemory: no room for the result, or for what is computed in between.
    """

    traced = True
