"""Number of messages of ``device.linalg`` calls: a problem is sent with the steps around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...harness import opened
from ..array.calls import Count

CALLS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "solve": (lambda linalg, a: linalg.solve(a, a), ["linalg.solve"]),
    "solve, one side": (lambda linalg, a: linalg.solve(a, a[0]), ["linalg.solve"]),
    "cholesky": (lambda linalg, a: linalg.cholesky(a), ["linalg.cholesky"]),
    "inv": (lambda linalg, a: linalg.inv(a), ["linalg.inv"]),
    "det": (lambda linalg, a: linalg.det(a), ["linalg.det"]),
    "qr": (lambda linalg, a: linalg.qr(a), ["linalg.qr"]),
    "svd": (lambda linalg, a: linalg.svd(a), ["linalg.svd"]),
    "svd, scaled": (lambda linalg, a: linalg.svd(a, algorithm="gesvdp"), ["linalg.svd"]),
    "eigh": (lambda linalg, a: linalg.eigh(a), ["linalg.eigh"]),
    "eigh of an expression": (lambda linalg, a: linalg.eigh(a + a), ["linalg.eigh"]),
    "matrix_rank": (lambda linalg, a: linalg.matrix_rank(a), ["linalg.matrix_rank"]),
    "norm": (lambda linalg, a: linalg.norm(a), ["linalg.norm"]),
    "norm, spectral": (lambda linalg, a: linalg.norm(a, 2), ["linalg.norm"]),
    "polar": (
        lambda linalg, a: linalg.polar(a),
        ["linalg.several", "blas.gemm", "array.several", "linalg.polar"],
    ),
}


async def test_how_many_messages_calls_take() -> None:
    count = Count()
    async with opened(instruments=[count]) as device:
        a = await device.put(np.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]]))
        for name, (call, expected) in CALLS.items():
            for _ in range(3):  # asked for workspace the first time, traced from the second one on
                count.names.clear()
                await call(device.linalg, a)
            assert len(count.names) <= len(expected), name
