"""Options of functions, checked in the caller: flags, whole numbers, real numbers, texts.

Every public number of the package passes through ``whole``, ``count`` or ``real``. They return a
plain int or float. Scalars of NumPy, arrays without dimensions, fractions and other members of
``numbers.Real`` are converted, because their arithmetic differs from Python's: a ``float32`` rounds
a clock to 24 bits, and trio hands a deadline to the system unchanged. A Decimal is refused, because
it does not mix with floats. A string is not a number
and ``"no"`` is not a flag, though Python would take either for true. A value of the wrong kind
raises TypeError, a value out of range raises ValueError.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from .._dtypes import is_float
from .._errors import said_of

LARGEST: Final = 2**63 - 1
"""The largest whole number that messages carry, and that lengths of axes are."""

_FLAGS: Final = (bool, np.bool_)


def flag(value: Any, name: str) -> bool:
    """True or False, NumPy's too."""
    if not isinstance(value, _FLAGS):
        raise TypeError(f"{name} must be True or False, not {_shown(value)}")
    return bool(value)


def whole(value: Any, name: str, least: int | None = None, most: int | None = None) -> int:
    """Return a whole number in a range; True and False are refused."""
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
        limits = _whole_range(least, most)
        raise ValueError(f"{name} must be a whole number{limits}, not {_digits(number)}")
    return number


def count(value: Any, name: str, least: int = 1, most: int | None = None) -> int:
    """Return a number of things: a whole number in a range.

    Without ``most`` it has to fit 64 bits. Floats are computed of counts, and larger ones would
    not convert.
    """
    number = whole(value, name, least, most)
    if number > LARGEST:
        raise ValueError(f"{name} must be below 2**63, not {_digits(number)}")
    return number


def real(
    value: Any,
    name: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    infinity: bool = False,
    finite: bool = True,
) -> float:
    """Return a real number in a range; True and False are refused.

    ``least`` and ``most`` are allowed themselves, ``above`` and ``below`` are not. ``infinity``
    allows infinities within these limits, and ``finite=False`` allows them and NaN.
    """
    number = value if type(value) is float else _converted(value, name)
    if (
        (finite and not (math.isfinite(number) or (infinity and math.isinf(number))))
        or (least is not None and not number >= least)
        or (most is not None and not number <= most)
        or (above is not None and not number > above)
        or (below is not None and not number < below)
    ):
        bounded = infinity or most is not None or below is not None
        limits = ["finite"] if finite and not bounded and math.isinf(number) else []
        limits += [] if above is None else [f"more than {above:g}"]
        limits += [] if least is None else [f"at least {least:g}"]
        limits += [] if most is None else [f"at most {most:g}"]
        limits += [] if below is None else [f"below {below:g}"]
        otherwise = "a number" if infinity else "finite"
        given = value if isinstance(value, int | float) else number
        raise ValueError(f"{name} must be {' and '.join(limits) or otherwise}, not {given}")
    return number


def text(value: Any, name: str, least: int = 0) -> str:
    """Return a text that UTF-8 can encode, of ``least`` characters or more."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {_shown(value)}")
    if len(value) < least:
        raise ValueError(f"{name} must be a text of some characters, not an empty one")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be text without lone surrogates, not {value!r}") from None
    return value


def several(value: Any, name: str) -> tuple[Any, ...]:
    """Return an iterable as a tuple; strings are refused, whose parts are characters."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(
            f"{name} must be a list or another iterable, not {_shown(value)}; write [...]"
        )
    return tuple(value)


def set_fields(made: object, **values: object) -> None:
    """Set checked fields of a frozen dataclass, in its ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(made, name, value)


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
        shown = _shown(value)
        raise ValueError(f"{name} must be within the range of floats, not {shown}") from None


def _whole_range(least: int | None, most: int | None) -> str:
    if least is None:
        return "" if most is None else f" of at most {most}"
    return f" of at least {least}" if most is None else f" from {least} to {most}"


def _shown(value: Any) -> str:
    if type(value).__name__ == "GpuRef":  # hosts do not know the class
        return "a GpuRef; get it from the device first"
    what = said_of(value)
    if isinstance(value, int):
        return f"{_digits(value)} of type {what}"
    try:
        return what if what.startswith("coroutine") else f"{value!r} of type {what}"
    except ValueError:  # Python writes no whole number of thousands of digits
        return f"one of type {what}"


def _digits(number: int) -> str:
    """Write a number for an error message: one that is huge by its size."""
    bits = number.bit_length()
    return repr(number) if bits <= 256 else f"one of {bits} bits"
