"""Functions of complex numbers in kernels: NumPy's values, and its special ones."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ... import seeds
from ..host_kernels import needs_compiler
from .generated import Case, Leaves, aligned, run_all

pytestmark = [needs_compiler, pytest.mark.slow]

Array = np.ndarray[Any, Any]

FUNCTIONS = (
    *(np.exp, np.sinh, np.cosh, np.tanh, np.sin, np.cos, np.tan, np.sqrt, np.log),
    *(np.arcsin, np.arccos, np.arctan, np.arcsinh, np.arccosh, np.arctanh),
)
ENDS = (0.0, 0.5, 1.0, 2.5, np.inf, np.nan)
ALL = tuple(sign * each for each in ENDS for sign in (1, -1))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_values_and_special_values(dtype: type[np.complexfloating], tmp_path: Path) -> None:
    rng = np.random.default_rng(seeds.draw())
    special = np.array([complex(x, y) for x, y in itertools.product(ALL, ALL)], dtype)
    plain = (rng.uniform(-3, 3, 200) + 1j * rng.uniform(-3, 3, 200)).astype(dtype)
    sizes = 10.0 ** rng.uniform(-6, 6, (2, 200)) * rng.choice([-1, 1], (2, 200))
    plain = np.concatenate([plain, (sizes[0] + 1j * sizes[1]).astype(dtype)])
    leaves = Leaves()
    x, y = leaves.put(aligned(special)), leaves.put(aligned(plain))
    made = run_all([Case(leaves, [f(x), f(y)]) for f in FUNCTIONS], tmp_path)
    wrong: list[tuple[object, ...]] = []
    with np.errstate(all="ignore"):
        for function, (ends, values) in zip(FUNCTIONS, made, strict=True):
            wanted = function(plain)
            far = abs(values - wanted) > 20 * np.finfo(dtype).eps * abs(wanted)
            wrong += [(function.__name__, plain[at], values[at]) for at in np.flatnonzero(far)]
            wrong += differing(function.__name__, special, ends, function(special))
    assert not wrong, "\n".join(map(str, wrong))


def differing(name: str, given: Array, got: Array, wanted: Array) -> list[tuple[object, ...]]:
    """Return the elements with a part whose value is wrong, or whose defined sign is."""
    wrong: list[tuple[object, ...]] = []
    for part, beside in (("real", "imag"), ("imag", "real")):
        one, other = getattr(got, part), getattr(wanted, part)
        bad = np.isnan(one) != np.isnan(other)
        bad |= np.isfinite(one) != np.isfinite(other)
        bad |= np.isfinite(one) & (abs(one - other) > 20 * np.finfo(one.dtype).eps * abs(wanted))
        # The sign next to NaN, or of zeros computed from NaN, is undefined.
        told = ~np.isnan(other) & ~np.isnan(getattr(wanted, beside))
        told &= (other != 0) | ~np.isnan(given)
        bad |= told & (np.signbit(one) != np.signbit(other))
        wrong += [(name, given[at], got[at], wanted[at]) for at in np.flatnonzero(bad)]
    return wrong
