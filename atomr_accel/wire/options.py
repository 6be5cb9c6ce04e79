"""Options of functions, checked in the caller: flags, whole numbers, real numbers.

A string is not a number and ``"no"`` is not a flag, though Python would take either for true. A
value of the wrong kind raises TypeError, a value out of range raises ValueError.
"""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any, Final

import numpy as np

from .._dtypes import is_float

LARGEST: Final = 2**63 - 1
"""The largest whole number that messages carry, and that lengths of axes are."""

_FLAGS: Final = (bool, np.bool_)


def flag(value: Any, name: str) -> bool:
    """True or False, NumPy's too.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(value, _FLAGS):
        raise TypeError(f"{name} must be True or False, not {_shown(value)}")
    return bool(value)


def whole(value: Any, name: str, least: int | None = None, most: int | None = None) -> int:
    """Return a whole number in a range; True and False are refused.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it is out of range.
    """
    try:
        if isinstance(value, _FLAGS):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        shown = _shown(value)
        raise TypeError(
            f"{name} must be a whole number{_whole_range(least, most)}, not {shown}"
        ) from None
    if (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f"{name} must be a whole number{_whole_range(least, most)}, not {number}")
    return number


def real(
    value: Any,
    name: str,
    *,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    finite: bool = True,
) -> float:
    """Return a real number in a range; True and False are refused.

    Args:
        value: the caller's argument.
        name: the argument's name.
        least: the smallest allowed value.
        most: the largest allowed value.
        below: the value that it has to be less than.
        finite: whether infinities and NaN are refused.

    Raises:
        TypeError: it is not a real number.
        ValueError: it is out of range.
    """
    number = value if type(value) is float else _converted(value, name)
    if (
        (finite and not math.isfinite(number))
        or (least is not None and not number >= least)
        or (most is not None and not number <= most)
        or (below is not None and not number < below)
    ):
        limits = ["finite"] if finite and math.isinf(number) else []
        limits += [] if least is None else [f"at least {least:g}"]
        limits += [] if most is None else [f"at most {most:g}"]
        limits += [] if below is None else [f"below {below:g}"]
        raise ValueError(f"{name} must be {' and '.join(limits) or 'finite'}, not {number}")
    return number


def _converted(value: Any, name: str) -> float:
    if isinstance(value, np.ndarray):
        if value.ndim:
            raise TypeError(f"{name} must be a number, not an array of shape {value.shape}")
        value = value[()]
    # The scalars of ml_dtypes are of no kind that ``numbers`` knows.
    known = isinstance(value, numbers.Real) or (
        isinstance(value, np.generic) and is_float(value.dtype)
    )
    if not known or isinstance(value, _FLAGS):
        raise TypeError(f"{name} must be a real number, not {_shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for a float: {value}") from None


def _whole_range(least: int | None, most: int | None) -> str:
    if least is None:
        return "" if most is None else f" of at most {most}"
    return f" of at least {least}" if most is None else f" from {least} to {most}"


def _shown(value: Any) -> str:
    if type(value).__name__ == "GpuRef":  # hosts do not know the class
        return "a GpuRef; get it from the device first"
    return f"{value!r} of type {type(value).__name__}"
