"""BLAS against NumPy and SciPy in higher precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from .conformance import HALF, MARKS, REAL, Array, Near, Operation, Sample, conform, product

pytestmark = MARKS


def _gemm_inputs(sample: Sample, m: int, n: int, k: int, ta: bool, tb: bool) -> tuple[Array, ...]:
    a = sample.array(k, m) if ta else sample.array(m, k)
    b = sample.array(n, k) if tb else sample.array(k, n)
    return a, b


def _gemm(device: Any, a: Any, b: Any, *, ta: bool, tb: bool, **_: Any) -> Any:
    return device.blas.gemm(a, b, alpha=0.5, trans_a=ta, trans_b=tb)


def _gemm_expect(a: Array, b: Array, *, ta: bool, tb: bool, **_: Any) -> Near:
    a, b = a.T if ta else a, b.T if tb else b
    return Near(0.5 * (a @ b), 0.5 * (np.abs(a) @ np.abs(b)))


test_conforms = conform(
    [
        Operation(
            "blas.gemm",
            (*HALF, *REAL),
            product(m=[0, 1, 5, 33], n=[1, 7], k=[1, 17], ta=[False, True], tb=[False, True]),
            _gemm_inputs,
            _gemm,
            _gemm_expect,
        )
    ]
)
