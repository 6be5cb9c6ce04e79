"""Differences of two arrays: in units in the last place, and absolute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from .._dtypes import DTYPES
from ..wire.options import real

TOLERANCES: Final[Mapping[str, float]] = MappingProxyType(
    {
        "float64": 1e-12,
        "complex128": 1e-12,
        "float32": 1e-5,
        "complex64": 1e-5,
        "float16": 1e-2,
        "bfloat16": 4e-2,
        "float8_e4m3fn": 0.13,
        "float8_e5m2": 0.26,
        "float4_e2m1fn": 0.5,
    }
)
"""Default tolerances between backends by dtype, as a fraction of the largest element.

Results of a dtype without an entry, such as integers, must be
equal."""


def check_tolerance(
    tolerance: float | Mapping[str, float] | None,
) -> float | Mapping[str, float] | None:
    """Return the ``tolerance`` of a replay with its numbers checked."""
    if tolerance is None:
        return None
    if isinstance(tolerance, Mapping):
        for name in tolerance:
            if name not in DTYPES:
                raise ValueError(f"tolerance has the names of dtypes, and none is {name!r}")
        return {name: _checked(f"tolerance[{name!r}]", tolerance[name]) for name in tolerance}
    return _checked("tolerance", tolerance)


def _checked(what: str, value: float) -> float:
    return real(value, what, least=0, infinity=True)


@dataclass(frozen=True, slots=True)
class Deviation:
    """Difference of an array from the recorded one.

    Attributes:
        index: the index of the element that differs most.
        recorded: the recorded value of that element.
        replayed: the replayed value of that element.
        absolute: the difference of the two; NaN if one of them is not a number.
        ulps: the distance of the two in numbers of the dtype; None if they are complex.
        count: the number of elements that differ by more than the tolerance.
        size: the number of elements.
    """

    index: tuple[int, ...]
    recorded: complex
    replayed: complex
    absolute: float
    ulps: int | None
    count: int
    size: int

    def __str__(self) -> str:
        ulps = "" if self.ulps is None else f" ({self.ulps} ulps)"
        at = ", ".join(map(str, self.index))
        return (
            f"{self.count} of {self.size} elements differ, most of all [{at}]: {self.replayed} "
            f"instead of {self.recorded}, by {self.absolute:.6g}{ulps}"
        )


@dataclass(slots=True)
class Compared:
    """Comparisons of the outputs of one method.

    Attributes:
        outputs: the number of outputs that were compared.
        largest: the largest difference as a fraction of the tolerance. 0 means that all are equal
            bit for bit, and above 1 means that one is out of tolerance. It is infinite if one
            differs where the tolerance is 0, or if one of two values is not a number.
    """

    outputs: int = 0
    largest: float = 0.0


def deviation(
    recorded: np.ndarray[Any, Any], replayed: np.ndarray[Any, Any], tolerance: float
) -> tuple[float, Deviation | None]:
    """Compare two arrays of the same shape and dtype.

    Args:
        recorded: the recorded array.
        replayed: the replayed array.
        tolerance: the largest allowed difference of elements, as a fraction of the largest finite
            one. With 0 they must be equal bit for bit, except that all NaNs are equal.

    Returns:
        The largest difference as in ``Compared.largest``; and the deviation if it is out of
        tolerance, else None.
    """
    if recorded.size == 0 or recorded.tobytes() == replayed.tobytes():
        return 0.0, None
    wide: Any = np.complex128 if recorded.dtype.kind == "c" else np.float64
    if recorded.dtype.kind in "biu":
        wide = object  # which has whole numbers of any size
    was, now = (each.astype(wide) for each in (recorded, replayed))
    same = _bits(recorded) == _bits(replayed)
    if wide is object:
        apart = np.asarray(np.abs(was - now), np.float64)  # of one number it is no array
        may = 0.0
        differs = ~same
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(was - now)
            finite = np.isfinite(was)
            largest = float(np.abs(was[finite]).max()) if finite.any() else 0.0
        may = tolerance * largest
        same |= np.isnan(was) & np.isnan(now)
        differs = ~same & ~(apart <= may if tolerance else np.zeros(apart.shape, bool))
    unlike = np.nan_to_num(apart[~same], nan=np.inf, posinf=np.inf)
    furthest = float(unlike.max(initial=0.0))
    share = furthest / may if may else math.inf if differs.any() else 0.0
    if not differs.any():
        return share, None
    rank = np.where(differs, np.nan_to_num(apart, nan=np.inf, posinf=np.inf), -1.0)
    index = tuple(int(at) for at in np.unravel_index(int(np.argmax(rank)), recorded.shape))
    return share, Deviation(
        index,
        was[index].item() if hasattr(was[index], "item") else was[index],
        now[index].item() if hasattr(now[index], "item") else now[index],
        float(apart[index]),
        ulps_between(recorded[index], replayed[index]),
        int(differs.sum()),
        recorded.size,
    )


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bits of the elements, one value each."""
    size = array.dtype.itemsize
    if size == 16:
        halves = np.ascontiguousarray(array).reshape(-1).view(np.uint64).reshape(-1, 2)
        first: np.ndarray[Any, Any] = np.empty(len(halves), [("a", "u8"), ("b", "u8")])
        first["a"], first["b"] = halves.T
        return first.reshape(array.shape)
    return np.ascontiguousarray(array).reshape(-1).view(f"u{size}").reshape(array.shape)


def ulps_between(one: Any, other: Any) -> int | None:
    """Return the number of steps between two numbers of a real dtype; None if they are complex.

    Infinity follows the largest number, and NaNs follow infinity.
    """
    dtype = np.asarray(one).dtype
    if dtype.kind == "c":
        return None
    if dtype.kind in "biu":
        return abs(int(one) - int(other))
    return abs(_ordered(one, dtype) - _ordered(other, dtype))


def _ordered(value: Any, dtype: np.dtype[Any]) -> int:
    """Return the place of a float among all floats."""
    bits = int(np.asarray(value, dtype).view(f"u{dtype.itemsize}"))
    sign = 1 << (8 * dtype.itemsize - 1)
    return sign - bits if bits & sign else bits
