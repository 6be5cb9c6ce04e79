"""Tensor maps, encoded by the driver for the current address of an array."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Final

from ...._dtypes import DTYPES
from ....backends.cuda.host.driver import check, driver

if TYPE_CHECKING:
    from ..wire.messages import TiledMap

TENSOR_MAP_BYTES: Final = 128
"""Size of a ``CUtensorMap``."""

TENSOR_MAP_STRIDE: Final = 16
"""Smallest stride in bytes that ``cuTensorMapEncodeTiled`` takes."""


@lru_cache(maxsize=256)
def encoded(message: TiledMap, pointer: int) -> bytes:
    """A tensor map (``cuTensorMapEncodeTiled``); the vendor counts axes from the innermost."""
    item = DTYPES[message.dtype].itemsize
    shape = message.shape[::-1]
    # The driver refuses a null pointer for the strides of one axis, although it reads none.
    strides = [size * item for size in accumulate(shape, mul)][:-1] or [TENSOR_MAP_STRIDE]
    made = check(
        "cuTensorMapEncodeTiled",
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType(message.kind),
            len(shape),
            pointer,
            [driver.cuuint64_t(size) for size in shape],
            [driver.cuuint64_t(stride) for stride in strides],
            [driver.cuuint32_t(size) for size in message.box[::-1]],
            [driver.cuuint32_t(step) for step in message.steps[::-1]],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle(message.swizzle),
            driver.CUtensorMapL2promotion(message.promotion),
            driver.CUtensorMapFloatOOBfill(message.fill),
        ),
    )
    return ctypes.string_at(int(made.getPtr()), TENSOR_MAP_BYTES)
