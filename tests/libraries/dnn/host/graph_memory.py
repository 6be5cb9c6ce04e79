"""Memory of the tensors of a graph, for kernels that are compiled for the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from atomr_accel.libraries.dnn.host._cpu import interpret
from atomr_accel.libraries.dnn.wire._element_types import INTEGERS
from atomr_accel.libraries.dnn.wire._graph import DnnGraph

from ...conformance import dtype_of, eps_of

Array = np.ndarray[Any, Any]


def memory(address: int, nbytes: int) -> Array:
    """The bytes at an address of this process."""
    there: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(there, np.uint8)


def addresses_of(arrays: dict[int, Array]) -> dict[int, int]:
    return {id_: array.ctypes.data for id_, array in arrays.items()}


def filled(graph: DnnGraph, rng: np.random.Generator) -> dict[int, Array]:
    """Memory for a graph's buffers, with positive and negative numbers."""
    arrays = {}
    for id_ in graph.buffers():
        tensor = graph.tensors[id_]
        values: Array = rng.uniform(-2, 2, tensor.extent)
        if tensor.dtype == "bool":
            values = values > 0
        if tensor.dtype in INTEGERS:
            limits = np.iinfo(tensor.dtype)
            values = rng.integers(limits.min, limits.max, tensor.extent, limits.dtype)
        arrays[id_] = values.astype(dtype_of(tensor.dtype))
    return arrays


def compare(graph: DnnGraph, got: dict[int, Array], arrays: dict[int, Array], scalars: Any) -> None:
    """Hold what a kernel wrote against the CPU backend."""
    expected = {id_: array.copy() for id_, array in arrays.items()}
    interpret(graph, addresses_of(expected), scalars, memory)
    for id_ in graph.written():
        dtype = got[id_].dtype
        if dtype.kind in "biu":
            np.testing.assert_array_equal(got[id_], expected[id_])
            continue
        one, other = got[id_].astype(float), expected[id_].astype(float)
        np.testing.assert_allclose(
            one, other, rtol=32 * eps_of(dtype), atol=64 * eps_of(dtype), equal_nan=True
        )
