"""Numbers by value, converted without loss for a parameter or a field of a struct."""

from __future__ import annotations

import cmath
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from typing import TypeGuard

_RANK: Final = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}
"""Kinds in the order in which a value of one may stand for the next."""


def is_scalar(value: object) -> TypeGuard[complex | np.generic]:
    """Return whether a value is a number, Python's or NumPy's."""
    return isinstance(value, (bool, int, float, complex, np.generic))


def scalar_for(value: object, expected: np.dtype[Any], name: str, declared: str) -> np.generic:
    """Convert a number to the expected dtype, if that changes only its width."""
    if not is_scalar(value):
        raise TypeError(f"{name} must be a scalar for '{declared}', not {type(value).__name__}")
    # NumPy makes an object of an int that fits none of its types.
    kind = "i" if type(value) is int else np.asarray(value).dtype.kind
    if _RANK.get(kind, 9) > _RANK.get(expected.kind, 3):
        raise TypeError(
            f"{name} must be {expected.name}, because the kernel declares "
            f"'{declared}', not {value!r}"
        )
    if isinstance(value, np.generic) and value.dtype.itemsize > expected.itemsize:
        raise TypeError(
            f"{name} is a {value.dtype.name}, which is wider than "
            f"'{declared}'; convert it with numpy.{expected.name}(...)"
        )
    lost: str | None = None
    if expected.kind in "iu":
        limits = np.iinfo(expected)
        if not limits.min <= int(value) <= limits.max:  # type: ignore[arg-type]
            lost = f"{limits.min} to {limits.max}"
    elif not isinstance(value, np.generic):
        try:
            with np.errstate(over="ignore"):
                narrowed = complex(expected.type(value))
            if cmath.isfinite(value) and not cmath.isfinite(narrowed):
                lost = f"up to {ml_dtypes.finfo(expected).max}"  # type: ignore[no-untyped-call]
        except OverflowError as error:
            lost = str(error)
    if lost is not None:
        raise OverflowError(f"{name} does not fit '{declared}' ({lost}): {value!r:.40}")
    result: np.generic = expected.type(value)
    return result
