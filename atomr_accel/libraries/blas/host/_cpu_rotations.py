"""Givens rotations on the CPU, plain and modified.

SciPy's routines that make them do not tell what becomes of their arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_GAMMA = 4096.0
"""Factors are kept between the square of this and one over it."""


def rotg(a: Array, b: Array) -> tuple[Any, Any, Any, Any]:
    """Return r, z, c and s of the rotation that turns (a, b) into (r, 0).

    For real numbers z alone determines the rotation; for complex ones b is returned unchanged.
    """
    large, small = np.abs(a), np.abs(b)
    norm = np.hypot(large, small)
    if a.dtype.kind == "c":
        if not large:
            return b, b, 0.0, 1.0
        phase = a / large
        return phase * norm, b, large / norm, phase * np.conj(b) / norm
    if not norm:
        return 0.0, 0.0, 1.0, 0.0
    r = np.copysign(norm, a if large > small else b)
    c, s = a / r, b / r
    z = s if large > small else 1 / c if c else 1.0
    return r, z, c, s


def rotm(x: Array, y: Array, param: Array) -> tuple[Array, Array]:
    """A modified rotation of the points (x, y)."""
    flag, h11, h21, h12, h22 = param
    if flag == -2:
        return x.copy(), y.copy()
    one = param.dtype.type(1)
    if flag == 0:
        h11 = h22 = one
    elif flag > 0:
        h12, h21 = one, -one
    return h11 * x + h12 * y, h21 * x + h22 * y


def rotmg(d1: Array, d2: Array, x1: Array, y1: Array) -> tuple[Any, ...]:
    """The modified rotation that makes (x1, 0) of (x1, y1): d1, d2, x1 and its parameters.

    The points are sqrt(d1) * x1 and sqrt(d2) * y1 (Hammarling; Hopkins, TOMS 1997).
    """
    f1, f2, x, y = (number.dtype.type(number) for number in (d1, d2, x1, y1))
    zeros = (f1 * 0,) * 3
    if f1 < 0:
        return (*zeros, [-1, 0, 0, 0, 0])
    p2 = f2 * y
    if p2 == 0:
        return f1, f2, x, [-2, 0, 0, 0, 0]
    p1 = f1 * x
    if abs(p1 * x) > abs(p2 * y):
        h21, h12 = -y / x, p2 / p1
        u = 1 - h12 * h21
        if u <= 0:
            return (*zeros, [-1, 0, 0, 0, 0])
        flag, rows = 0, [[1, h12], [h21, 1]]
        f1, f2, x = f1 / u, f2 / u, x * u
    elif p2 * y < 0:
        return (*zeros, [-1, 0, 0, 0, 0])
    else:
        h11, h22 = p1 / p2, x / y
        u = 1 + h11 * h22
        flag, rows = 1, [[h11, 1], [-1, h22]]
        f1, f2, x = f2 / u, f1 / u, y * u
    f1, x, rows[0], changed = _rescaled(f1, x, rows[0])
    f2, _, rows[1], also = _rescaled(f2, x, rows[1])
    flag = -1 if changed or also else flag
    (h11, h12), (h21, h22) = rows
    parameters = {-1: [h11, h21, h12, h22], 0: [0, h21, h12, 0], 1: [h11, 0, 0, h22]}
    return f1, f2, x, [flag, *parameters[flag]]


def _rescaled(factor: Any, x: Any, row: list[Any]) -> tuple[Any, Any, list[Any], bool]:
    """A factor that is neither too large nor too small, and what goes with it."""
    changed = False
    while factor and not _GAMMA**-2 < abs(factor) < _GAMMA**2:
        step = _GAMMA if abs(factor) <= _GAMMA**-2 else 1 / _GAMMA
        one = type(factor)(step)
        factor, x, row = factor * one * one, x / one, [each / one for each in row]
        changed = True
    return factor, x, row, changed
