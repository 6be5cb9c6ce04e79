"""Hypothesis strategies for arrays of every dtype, in every layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atomr_accel._dtypes import DTYPES

Array = np.ndarray[Any, Any]

dtypes: Final = st.sampled_from(list(DTYPES.values()))

shapes: Final = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)


def random_bits(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Array:
    """An array of arbitrary bits that the dtype can have: NaNs, infinities and all."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype=np.uint8)
    if dtype.kind == "b":
        raw = raw & np.uint8(1)
    elif dtype.name == "float4_e2m1fn":  # four bits, one element a byte
        raw = raw & np.uint8(15)
    return raw.copy().view(dtype).reshape(shape)


def noise(nbytes: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return random bytes."""
    return random_bits((nbytes,), np.dtype(np.uint8), seed)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Contiguous arrays."""
    return random_bits(draw(shapes), draw(dtypes), draw(st.integers(0, 2**32)))


def _each(step: int, ndim: int) -> Any:
    return (*[slice(None, None, step)] * ndim, ...)  # the dots: an array even without dimensions


def _every_other(array: Array) -> Array:
    wide = np.zeros([2 * side for side in array.shape], array.dtype)
    view: Array = wide[_each(2, array.ndim)]
    view[...] = array
    return view


def _reversed(array: Array) -> Array:
    backwards: Array = array[_each(-1, array.ndim)].copy()[_each(-1, array.ndim)]
    return backwards


def _swapped(array: Array) -> Array:
    if array.dtype.kind in "biufc" and array.dtype.itemsize > 1:
        return array.astype(array.dtype.newbyteorder(">"))
    return array


def _read_only(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _unaligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


LAYOUTS: Final[dict[str, Callable[[Array], Array]]] = {
    "contiguous": lambda array: array,
    "fortran": lambda array: np.asfortranarray(array) if array.ndim else array,
    "transposed": lambda array: array.T.copy().T,
    "every other": _every_other,
    "reversed": _reversed,
    "big-endian": _swapped,
    "read-only": _read_only,
    "unaligned": _unaligned,
}
"""Other memory layouts of the same values."""

layouts: Final = st.sampled_from(list(LAYOUTS))
