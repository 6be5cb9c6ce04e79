"""The functions that expressions are made of: NumPy's own, and some of SciPy's."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np

_NUMPY: Final = """
    add subtract multiply divide floor_divide remainder fmod power float_power
    negative positive absolute fabs sign reciprocal square sqrt cbrt
    exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2
    sin cos tan arcsin arccos arctan arctan2 hypot sinh cosh tanh arcsinh arccosh arctanh
    deg2rad rad2deg degrees radians
    equal not_equal less less_equal greater greater_equal
    logical_and logical_or logical_xor logical_not
    bitwise_and bitwise_or bitwise_xor invert left_shift right_shift bitwise_count
    maximum minimum fmax fmin isnan isinf isfinite signbit copysign nextafter spacing
    ldexp heaviside floor ceil trunc rint gcd lcm conjugate
"""
_SCIPY: Final = """
    erf erfc erfinv erfcinv expit logit gamma gammaln psi beta betaln xlogy xlog1py
    ndtr ndtri rel_entr entr i0 i1 j0 j1 y0 y1
"""

UFUNCS: Final = {
    **dict.fromkeys(_NUMPY.split(), "numpy"),
    **dict.fromkeys(_SCIPY.split(), "scipy.special"),
}
"""The module of each ufunc, by its name."""

PAIRS: Final = ("modf", "frexp", "divmod")
"""NumPy's ufuncs with two results."""

REDUCTIONS: Final = (
    *("add", "multiply", "maximum", "minimum", "fmax", "fmin"),
    *("logical_and", "logical_or", "bitwise_and", "bitwise_or", "bitwise_xor"),
)
"""The ufuncs that reduce."""

ARG_REDUCTIONS: Final = ("argmax", "argmin")
"""Reductions that return an index, not a value."""


@cache
def find_ufunc(name: str) -> np.ufunc:
    """A ufunc by its name."""
    found: np.ufunc = getattr(import_module(UFUNCS[name]), name)
    return found
