"""LU factorizations pivot partially: no multiplier is larger than one, by one of two norms."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device

from ...harness import on_shared
from ..conformance import MARKS

pytestmark = MARKS


def permuted(matrix: Any, swaps: Any) -> Any:
    """The rows of a matrix after exchanges."""
    made = matrix.copy()
    for at, other in enumerate(swaps):
        made[[at, other]] = made[[other, at]]
    return made


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(["float32", "float64", "complex64", "complex128"]),
    stack=st.integers(1, 3),
    m=st.integers(1, 40),
    n=st.integers(1, 40),
    seed=st.integers(0, 2**16),
)
@on_shared
async def test_factors_make_up_the_matrix_and_pivots_are_the_largest(
    device: Device, dtype: str, stack: int, m: int, n: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((stack, m, n))
    if dtype.startswith("complex"):
        a = a + 1j * draw.standard_normal((stack, m, n))
    host, k = a.astype(dtype), min(m, n)
    eps = 8 * float(np.finfo(dtype).eps)
    lu, piv = [await device.get(x) for x in await device.linalg.lu_factor(await device.put(host))]
    for each, factors, swaps in zip(host, lu, piv, strict=True):
        lower = np.tril(factors[:, :k], -1) + np.eye(m, k, dtype=dtype)
        upper = np.triu(factors[:k])
        size = np.abs(lower) @ np.abs(upper)  # what rounding errors are relative to
        assert (np.abs(lower @ upper - permuted(each, swaps)) <= k * eps * size).all()
        multipliers, pivots = np.tril(lower, -1), np.diagonal(upper)
        eliminated = multipliers * pivots
        # LAPACK takes |re| + |im| for the size of a complex number; others take its modulus.
        sums = np.abs(eliminated.real) + np.abs(eliminated.imag)
        by_sum = (sums <= (np.abs(pivots.real) + np.abs(pivots.imag)) * (1 + k * eps)).all()
        by_modulus = (np.abs(multipliers) <= 1 + k * eps).all()
        assert by_sum or by_modulus
