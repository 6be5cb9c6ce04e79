"""By how much two arrays differ: in units in the last place, and absolutely."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

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
"""What results of another backend may differ by, as a part of the largest element.

What has no entry, such as integers, has to be equal.
"""


@dataclass(frozen=True, slots=True)
class Deviation:
    """How an array differs from what was recorded.

    Attributes:
        index: of the element that differs most.
        recorded: what it was.
        replayed: what it is.
        absolute: the largest difference; NaN where one of the two is no number.
        ulps: as many numbers of the dtype lie between the two; None for complex ones.
        count: how many elements differ by more than they may.
        size: how many there are.
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


def deviation(
    recorded: np.ndarray[Any, Any], replayed: np.ndarray[Any, Any], tolerance: float
) -> Deviation | None:
    """How an array differs from another of its shape and dtype, if by more than it may.

    Args:
        recorded: as it was.
        replayed: as it is.
        tolerance: what elements may differ by, as a part of the largest finite one; 0: they have
            to be equal bit for bit, but for NaNs, which are all alike.
    """
    if recorded.size == 0 or recorded.tobytes() == replayed.tobytes():
        return None
    wide: Any = np.complex128 if recorded.dtype.kind == "c" else np.float64
    if recorded.dtype.kind in "biu":
        wide = object  # which has whole numbers of any size
    was, now = (each.astype(wide) for each in (recorded, replayed))
    same = _bits(recorded) == _bits(replayed)
    if wide is object:
        apart = np.abs(was.astype(object) - now.astype(object)).astype(np.float64)
        differs = ~same
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(was - now)
            finite = np.isfinite(was)
            largest = float(np.abs(was[finite]).max()) if finite.any() else 0.0
            within = apart <= tolerance * largest if tolerance else np.zeros(apart.shape, bool)
        differs = ~(same | within | (np.isnan(was) & np.isnan(now)))
    if not differs.any():
        return None
    rank = np.where(differs, np.nan_to_num(apart, nan=np.inf, posinf=np.inf), -1.0)
    index = tuple(int(at) for at in np.unravel_index(int(np.argmax(rank)), recorded.shape))
    return Deviation(
        index,
        was[index].item() if hasattr(was[index], "item") else was[index],
        now[index].item() if hasattr(now[index], "item") else now[index],
        float(apart[index]),
        ulps_between(recorded[index], replayed[index]),
        int(differs.sum()),
        recorded.size,
    )


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Elements as they are stored, one value each."""
    size = array.dtype.itemsize
    if size == 16:
        halves = np.ascontiguousarray(array).reshape(-1).view(np.uint64).reshape(-1, 2)
        first: np.ndarray[Any, Any] = np.empty(len(halves), [("a", "u8"), ("b", "u8")])
        first["a"], first["b"] = halves.T
        return first.reshape(array.shape)
    return np.ascontiguousarray(array).reshape(-1).view(f"u{size}").reshape(array.shape)


def ulps_between(one: Any, other: Any) -> int | None:
    """How many numbers of a real dtype lie between two of them, plus one; None for complex ones.

    Infinity follows the largest number; a NaN lies behind it.
    """
    dtype = np.asarray(one).dtype
    if dtype.kind == "c":
        return None
    if dtype.kind in "biu":
        return abs(int(one) - int(other))
    return abs(_ordered(one, dtype) - _ordered(other, dtype))


def _ordered(value: Any, dtype: np.dtype[Any]) -> int:
    """The place of a float among all floats."""
    bits = int(np.asarray(value, dtype).view(f"u{dtype.itemsize}"))
    sign = 1 << (8 * dtype.itemsize - 1)
    return sign - bits if bits & sign else bits
