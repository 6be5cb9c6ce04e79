"""Scans of long rows by the kernel of ``scan_tiles.cuh``: one launch, without scratch memory."""

from __future__ import annotations

from typing import Final

from .._dtypes import DTYPES
from .device_code import C_TYPES

THREADS: Final = 256
_STATE: Final = 1 << 16
"""Words of 16 bytes that tiles of a launch tell each other at most."""
SCAN_MACROS: Final = {"THREADS": THREADS, "SCAN_STATE": _STATE}
"""Constants of the kernel."""

_HALF: Final = ("float16", "bfloat16")
_COMPLEX: Final = {"complex64": "c64", "complex128": "c128"}


def scan_types(dtype: str, kind: str) -> str:
    """Return the arguments of templates: an element, the type of its sums, and the operator.

    Args:
        dtype: the dtype of the elements, by name.
        kind: ``"add"`` or ``"multiply"``.
    """
    element = _COMPLEX.get(dtype) or C_TYPES[dtype]
    return f"{element}, {'float' if dtype in _HALF else element}, {kind.capitalize()}"


def scan_threads(dtype: str, length: int) -> int:
    """Return the threads for a row."""
    return -(-length // _tile(dtype)) * THREADS


def most_scanned(dtype: str) -> int:
    """Return the largest number of elements that one launch scans."""
    words = max(1, DTYPES[dtype].itemsize // 8)
    return (_STATE // words - 1) * THREADS // (THREADS + 1) * _tile(dtype)


def _tile(dtype: str) -> int:
    """The elements of a tile: 32 for each thread, or 8 words of 16 bytes."""
    return THREADS * min(32, 128 // DTYPES[dtype].itemsize)
