"""Batched factorizations on the CPU: LAPACK for one matrix after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...._dtypes import DTYPES
from ....executors.indices import require_within
from ....host.host import IMPORTS
from ..wire._messages import Factor

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext

_INT32 = DTYPES["int32"]


def factor(context: CpuContext, message: Factor) -> None:
    """Execute a ``Factor`` message."""
    with IMPORTS.late():
        from scipy.linalg import get_lapack_funcs

    dtype = DTYPES[message.dtype]
    batch, m, n, nrhs = message.batch, message.m, message.n, message.nrhs
    a = context.array(message.a, (batch, m, n), dtype)
    name = "getrf" if message.routine == "matinv" else message.routine
    routine: Any = get_lapack_funcs(name, dtype=dtype)
    solved = {"getrs": (n, nrhs), "gels": (n, nrhs)}.get(message.routine, (m, n))
    c = context.array(message.c, (batch, *solved), dtype)
    info = np.zeros(batch, _INT32)
    if message.routine == "getrf":
        piv = context.array(message.pivots, (batch, n), _INT32)
        for i in range(batch if n else 0):
            c[i], piv[i], info[i] = routine(a[i])
    elif message.routine == "getrs":
        piv = _pivots(context, message)
        b = context.array(message.b, (batch, n, nrhs), dtype)
        for i in range(batch if n and nrhs else 0):
            c[i] = routine(a[i], piv[i], b[i], trans=message.trans)[0]
    elif message.routine == "getri":
        piv = _pivots(context, message)
        for i in range(batch if n else 0):
            c[i], info[i] = routine(a[i], piv[i])
    elif message.routine == "matinv":
        invert: Any = get_lapack_funcs("getri", dtype=dtype)
        for i in range(batch if n else 0):
            lu, swaps, info[i] = routine(a[i])
            c[i] = invert(lu, swaps)[0]
    elif message.routine == "geqrf":
        tau = context.array(message.tau, (batch, min(m, n)), dtype)
        for i in range(batch if tau.size else 0):
            c[i], tau[i] = routine(a[i])[:2]
    else:
        b = context.array(message.b, (batch, m, nrhs), dtype)
        for i in range(batch if n and nrhs else 0):
            _, x, info[i] = routine(a[i], b[i])
            c[i] = x[:n]
    if message.info:
        result: Any = context.array(message.info, (batch,), _INT32)
        result[...] = info


def _pivots(context: CpuContext, message: Factor) -> np.ndarray[Any, Any]:
    """The exchanged rows, all of which exist: LAPACK does not look."""
    pivots = context.array(message.pivots, (message.batch, message.n), _INT32)
    require_within(pivots, 0, message.n - 1, "piv")
    return pivots
