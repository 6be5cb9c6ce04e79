"""A factor of zero: what BLAS does not read then does not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, GpuRef

from ...harness import opened
from ..conformance import on_cuda

Call = Callable[[Device, GpuRef, GpuRef, GpuRef], Any]

CALLS: dict[str, Call] = {
    "gemm": lambda d, a, x, to: d.blas.gemm(a, a, out=to, alpha=0, beta=1),
    "gemm, batched": lambda d, a, x, to: d.blas.gemm(
        a.reshape(1, 3, 3), a.reshape(1, 3, 3), out=to.reshape(1, 3, 3), alpha=0, beta=1
    ),
    "gemm_grouped": lambda d, a, x, to: d.blas.gemm_grouped(
        a, a.reshape(1, 3, 3), [3], out=to, alpha=0, beta=1
    ),
    "symm": lambda d, a, x, to: d.blas.symm(a, a, out=to, alpha=0, beta=1),
    "syrk": lambda d, a, x, to: d.blas.syrk(a, out=to, alpha=0, beta=1),
    "syr2k": lambda d, a, x, to: d.blas.syr2k(a, a, out=to, alpha=0, beta=1),
    "gemv": lambda d, a, x, to: d.blas.gemv(a, x, out=to[0], alpha=0, beta=1),
    "symv": lambda d, a, x, to: d.blas.symv(a, x, out=to[0], alpha=0, beta=1),
    "ger": lambda d, a, x, to: d.blas.ger(x, x, a=to, alpha=0),
    "syr": lambda d, a, x, to: d.blas.syr(x, a=to, alpha=0),
    "axpy": lambda d, a, x, to: d.blas.axpy(x, to[0], a=0),
}


@pytest.mark.skipif(on_cuda(), reason="cuBLAS does not say whether it reads them")
async def test_unread_triangle_may_hold_anything() -> None:
    async with opened(isolation="thread") as device:
        for name, call in CALLS.items():
            for bad in np.nan, np.inf:
                a = await device.put(np.full((3, 3), bad, np.float32))
                to = await device.put(np.eye(3, dtype=np.float32))
                await call(device, a, a[0], to)
                np.testing.assert_array_equal(await device.get(to), np.eye(3), err_msg=name)
        for routine in device.blas.trmm, device.blas.trsm:
            made = await routine(a, await device.put(np.ones((3, 3), np.float32)), alpha=0)
            assert not (await device.get(made)).any()
