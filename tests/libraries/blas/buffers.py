"""Buffers of every dtype and shape for bad calls of BLAS and BLASLt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..conformance import dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device

DTYPES = {
    "b2": "bfloat16",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "i1": "int8",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "e4": "float8_e4m3fn",
    "e5": "float8_e5m2",
    "q4": "float4_e2m1fn",
}
"""Short names of dtypes."""

Call = tuple[str, "Callable[[Any, Any], Any]", type[Exception], str]


class Refs:
    """Buffers by name: ``f4_3x5`` is a float32 of shape (3, 5), ``f4_03x5`` another."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._made: dict[str, Any] = {}

    async def make(self, names: set[str]) -> None:
        """Put those on the device."""
        for name in names:
            kind, _, sizes = name.partition("_")
            shape = tuple(int(size) for size in sizes.split("x")) if sizes else ()
            short = DTYPES
            zeros = np.zeros(shape, dtype_of(short[kind]))
            self._made[name] = await self._device.put(zeros)

    def __getattr__(self, name: str) -> Any:
        return self._made[name]
