"""Numbers as the vendor's libraries take them: element types by number, scalars by pointer."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any, Final, final

import numpy as np

from .._dtypes import DTYPES
from ..wire.recent import Recent

DATA_TYPES: Final = {
    "CUDA_R_32F": 0,
    "CUDA_R_64F": 1,
    "CUDA_R_16F": 2,
    "CUDA_R_8I": 3,
    "CUDA_C_32F": 4,
    "CUDA_C_64F": 5,
    "CUDA_C_16F": 6,
    "CUDA_R_32I": 10,
    "CUDA_R_16BF": 14,
    "CUDA_C_16BF": 15,
    "CUDA_R_8F_E4M3": 28,
    "CUDA_R_8F_E5M2": 29,
    "CUDA_R_4F_E2M1": 33,
}
"""``cudaDataType_t`` of ``library_types.h``, for the ``ENUMS`` of a library's table."""

CUDA_TYPES: Final = {
    "float16": DATA_TYPES["CUDA_R_16F"],
    "bfloat16": DATA_TYPES["CUDA_R_16BF"],
    "float32": DATA_TYPES["CUDA_R_32F"],
    "float64": DATA_TYPES["CUDA_R_64F"],
    "complex64": DATA_TYPES["CUDA_C_32F"],
    "complex128": DATA_TYPES["CUDA_C_64F"],
    "int8": DATA_TYPES["CUDA_R_8I"],
    "int32": DATA_TYPES["CUDA_R_32I"],
    "float8_e4m3fn": DATA_TYPES["CUDA_R_8F_E4M3"],
    "float8_e5m2": DATA_TYPES["CUDA_R_8F_E5M2"],
    "float4_e2m1fn": DATA_TYPES["CUDA_R_4F_E2M1"],
}
"""``cudaDataType_t`` of a dtype."""

_C_TYPES: Final[dict[str, Any]] = {"float32": ctypes.c_float, "float64": ctypes.c_double}
_MOST_SCALARS: Final = 1000

_Key = tuple[str, float | tuple[float, float] | str]


@final
class Scalars:
    """Numbers in this process's memory, kept, because calls repeat themselves."""

    def __init__(self) -> None:
        self._pointers: Recent[_Key, Any] = Recent(_MOST_SCALARS)

    def pointer(self, dtype: str, value: float | tuple[float, float]) -> Any:
        """A pointer to a number of that dtype; a complex one has two parts."""
        # 0.0 and -0.0 are equal, but not the same number.
        key = (dtype, value if value and not isinstance(value, tuple) else repr(value))
        pointer = self._pointers.get(key)
        if pointer is None:
            number = complex(*value) if isinstance(value, tuple) else value
            data = np.asarray(number).astype(DTYPES[dtype]).tobytes()
            pointer = byref(ctypes.create_string_buffer(data, len(data)))
            self._pointers.keep(key, pointer)
        return pointer


def number_cell(dtype: str) -> tuple[Any, Any]:
    """A number of that dtype in this process's memory, and a pointer to it for calls.

    Its ``value`` is set before each call; a complex one comes as its two parts. A library has
    read it when it returns, into a graph that is captured, too.
    """
    if dtype in _C_TYPES:
        number = _C_TYPES[dtype]()
        return number, byref(number)
    cell = _NumberCell(dtype)
    return cell, byref(cell.memory)


@final
class _NumberCell:
    """A number that ctypes has no type for, or does not convert to."""

    def __init__(self, dtype: str) -> None:
        kind = DTYPES[dtype]
        self.memory: Final = ctypes.create_string_buffer(kind.itemsize)
        self._number: Final = np.frombuffer(memoryview(self.memory).cast("B"), kind)

    @property
    def value(self) -> Any:
        """The number."""
        return self._number[0]

    @value.setter
    def value(self, value: float | tuple[float, float]) -> None:
        number = complex(*value) if isinstance(value, tuple) else value
        self._number[:] = np.asarray(number).astype(self._number.dtype)
