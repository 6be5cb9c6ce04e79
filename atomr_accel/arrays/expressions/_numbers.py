"""Numbers in expressions, as NumPy has them and as words."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ..._dtypes import as_dtype, number_kind
from .promotion import MANY

Number = complex | np.generic
"""A number; complex stands for float, int and bool, too."""

Known = tuple[tuple[np.generic, tuple[int, ...]], np.dtype[Any]]
"""A number, also as words of four bytes, and its dtype."""


def number_of(value: Number, dtype: np.dtype[Any] | None = None) -> Known:
    """A number of a dtype, by default of that which NumPy gives it."""
    if type(value) is int or (type(value) is float and value):
        return _known_number(value, dtype)
    if type(value) is float:
        return _zero(math.copysign(1, value), dtype)
    return _number(value, dtype)


@lru_cache(MANY, typed=True)
def _known_number(value: float, dtype: np.dtype[Any] | None) -> Known:
    return _number(value, dtype)


@lru_cache
def _zero(sign: float, dtype: np.dtype[Any] | None) -> Known:
    return _number(math.copysign(0.0, sign), dtype)


def _number(value: Number, dtype: np.dtype[Any] | None) -> Known:
    number = np.asarray(value)
    if dtype is None:
        dtype = as_dtype(number.dtype)
    if number.dtype is not dtype:
        if dtype.kind in "iu" and number_kind(number.dtype) in ("i", "u", "f"):
            value = int(value)  # type: ignore[arg-type] # which refuses NaN and infinity
        with np.errstate(all="ignore"):
            # From Python's number, because integers are held against the bounds so.
            number = np.asarray(value, dtype) if isinstance(value, int) else number.astype(dtype)
    one: Any = number[()]
    return with_words(one), dtype


def with_words(number: np.generic) -> tuple[np.generic, tuple[int, ...]]:
    """A number, and as words of four bytes."""
    data = number.tobytes()
    starts = range(0, len(data), 4)
    return number, tuple([int.from_bytes(data[at : at + 4], "little") for at in starts])
