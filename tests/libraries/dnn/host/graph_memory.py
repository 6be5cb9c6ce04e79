"""Memory of the tensors of a graph, for kernels that are compiled for the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def memory(address: int, nbytes: int) -> Array:
    """The bytes at an address of this process."""
    there: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(there, np.uint8)


def addresses_of(arrays: dict[int, Array]) -> dict[int, int]:
    return {id_: array.ctypes.data for id_, array in arrays.items()}
