"""The distributions that draws ask for.

Continuous ones are rows of a table: by name, with what their parameters have to be.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ..._dtypes import NAMES
from ._arguments import interval, not_negative, number, positive_shape, shape_parameter
from .wire._distributions import integer_distribution
from .wire._messages import Distribution

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

_WORDS: Final = 2**64

Parameters = tuple[float, ...]


def _each(**checks: Callable[[Any, str, str], float]) -> Callable[..., Parameters]:
    """Check parameters one by one, each by what stands behind its name."""

    def check(dtype: str, *values: Any) -> Parameters:
        given = zip(checks.items(), values, strict=True)
        return tuple(convert(value, name, dtype) for (name, convert), value in given)

    return check


CONTINUOUS: Final[dict[str, Callable[..., Parameters]]] = {
    "uniform": lambda dtype, low, high: interval(low, high, dtype),
    "normal": _each(loc=number, scale=not_negative),
    "lognormal": _each(mean=number, sigma=not_negative),
    "exponential": _each(scale=not_negative),
    "cauchy": _each(loc=number, scale=not_negative),
    "gamma": _each(shape=shape_parameter, scale=not_negative),
    "beta": _each(a=positive_shape, b=positive_shape),
}
"""Functions from a dtype's name and the caller's parameters to the parameters of draws."""


def continuous(name: str, dtype: np.dtype[Any], *values: Any) -> Distribution:
    """Return a row of ``CONTINUOUS`` with the caller's parameters."""
    try:
        return _checked(name, dtype, *values)
    except TypeError:
        pass  # one of them is no number, or cannot be hashed
    return _checked.__wrapped__(name, dtype, *values)


@lru_cache(1024, typed=True)
def _checked(name: str, dtype: np.dtype[Any], *values: Any) -> Distribution:
    kind = NAMES[dtype]
    return Distribution(name, kind, CONTINUOUS[name](kind, *values))


def integers(dtype: str, least: int, span: int) -> Distribution:
    """Return the distribution of ``span`` integers from ``least`` on, all equally likely."""
    name = integer_distribution(span, dtype)
    return Distribution(name, dtype, low=least % _WORDS, span=span % _WORDS)


def search(dtype: str, least: int) -> Distribution:
    """Integers from ``least`` on, by a table of their distribution function."""
    return Distribution("search", dtype, low=least % _WORDS)
