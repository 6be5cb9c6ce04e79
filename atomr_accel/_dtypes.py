"""The element types, in one table.

NumPy has no bfloat16 or fp8; ``ml_dtypes`` adds them as NumPy dtypes, so a dtype is a
``numpy.dtype`` everywhere in this package. On the wire it is its name.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    dtype.name: dtype
    for dtype in (
        *map(
            np.dtype,
            ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        ),
        *map(np.dtype, ("float16", "float32", "float64", "complex64", "complex128")),
        np.dtype(ml_dtypes.bfloat16),
        np.dtype(ml_dtypes.float8_e4m3fn),
        np.dtype(ml_dtypes.float8_e5m2),
        np.dtype(ml_dtypes.float4_e2m1fn),
    )
}
"""The dtypes a buffer may have, by name."""

NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
"""The names of dtypes, which NumPy makes anew each time one is asked for."""

_KNOWN: Final = {dtype: dtype for dtype in DTYPES.values()}

bfloat16: Final = DTYPES["bfloat16"]


REAL_KINDS: Final = frozenset("biuf")
NUMBER_KINDS: Final = frozenset("biufc")
"""Kinds of numbers, as ``number_kind`` gives them."""


def _added_kind(name: str) -> str:
    if "complex" in name:
        return "c"
    return "u" if name.startswith("uint") else "i" if name.startswith("int") else "f"


_ADDED_KINDS: Final = {
    value: _added_kind(name)
    for name, value in vars(ml_dtypes).items()
    if isinstance(value, type) and issubclass(value, np.generic)
}


def number_kind(dtype: np.dtype[Any]) -> str:
    """The kind of elements: NumPy's letter, also for the dtypes that ``ml_dtypes`` adds.

    ``dtype.kind`` does not tell: it is ``"f"`` for float8_e5m2, and ``"V"`` for the others.

    Returns:
        ``"b"``, ``"i"``, ``"u"``, ``"f"`` or ``"c"``; another letter if elements are not numbers.
    """
    return _ADDED_KINDS.get(dtype.type, dtype.kind)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return True if elements are real floats."""
    return number_kind(dtype) == "f"


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Return True if elements are floats, real or complex."""
    return number_kind(dtype) in "fc"


def is_added(dtype: np.dtype[Any]) -> bool:
    """Return True if ``ml_dtypes`` adds the dtype."""
    return dtype.type in _ADDED_KINDS


SCALARS: Final = frozenset((bool, int, float, complex, *np.sctypeDict.values(), *_ADDED_KINDS))
"""Classes that name a dtype. They are immutable, unlike attributes of a program's classes."""

HALVES: Final = frozenset(dtype for dtype in NAMES if is_float(dtype) and dtype.itemsize < 4)
"""Floats narrower than 32 bits, whose sums are made in float32."""


def native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array in this machine's byte order, which device memory and dtype names have."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_dtype(dtype: object) -> np.dtype[Any]:
    """Return ``dtype`` as one of the table's dtypes.

    Args:
        dtype: any argument of ``numpy.dtype``, or a name of the table.

    Raises:
        TypeError: this is not a dtype, or device memory cannot hold it (objects, strings,
            structures, dates, foreign byte order).
    """
    if isinstance(dtype, np.dtype):
        # Not ``dtype`` itself: equal ones need not be identical (unpickled ones are not),
        # and everybody else compares by identity.
        known = _KNOWN.get(dtype)
        if known is not None:
            return known
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if isinstance(dtype, int):
        raise TypeError(
            f"dtype must be a dtype such as numpy.float32, not {dtype}; "
            "write a shape as a tuple: (3, 4)"
        )
    resolved = np.dtype(dtype)  # type: ignore[call-overload]
    known = _KNOWN.get(resolved)
    if known is None:
        raise TypeError(
            f"dtype {resolved} cannot live in device memory; use one of {', '.join(DTYPES)}"
        )
    return known
