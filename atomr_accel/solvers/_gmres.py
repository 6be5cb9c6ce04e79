"""GMRES: a basis of a Krylov space at a time, made on the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..wire.options import count
from ._iterating import Callback, info_of, norm, ratio
from ._operators import LinearSystem, Operator, system
from ._scaled import started

if TYPE_CHECKING:
    from ..arrays import GpuRef
    from ..device import Device
    from ..device.batches.record import Recording

_RESTART = 20


async def gmres(
    device: Device,
    A: Operator,  # noqa: N803 - SciPy's name
    b: GpuRef,
    x0: GpuRef | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Operator | None = None,  # noqa: N803 - SciPy's name
    callback: Callback | None = None,
) -> tuple[GpuRef, int]:
    """Solve ``A @ x = b`` by generalized minimal residuals; as ``scipy.sparse.linalg.gmres``.

    Saad and Schultz, "GMRES: a generalized minimal residual algorithm for solving nonsymmetric
    linear systems" (1986), restarted and preconditioned from the right. A basis is made on the
    device, orthogonal by Gram-Schmidt twice; its small least squares problem the program solves.

    ``A`` is any square matrix. A basis has ``restart`` vectors, 20 by default, or n. ``maxiter`` is
    the largest number of bases, 10 n by default, and ``callback`` is called after each, with their
    number and the residual's norm. Other arguments, and the result, are those of ``cg``.
    """
    given = system(device, A, b, M, callback)
    most = 10 * given.n if maxiter is None else count(maxiter, "maxiter", 0)
    size = _RESTART if restart is None else count(restart, "restart")
    size = max(1, min(size, given.n))
    begun = await started(given, x0, rtol, atol)
    given, x, r, tolerance, beta = begun.system, begun.x, begun.r, begun.tolerance, begun.size
    info = info_of(beta, tolerance, most)
    if not (info and most and math.isfinite(beta)):
        return await begun.solution(x), info
    dtype = b.dtype
    basis = await device.full((size + 1, given.n), 0, dtype)
    sums = await device.full((size, size + 1), 0, dtype)  # a row for each vector
    weights = await device.full((size,), 0, dtype)
    length = await device.full((1,), beta, np.float64)
    async with device.record(shared=True) as cycle:
        _orthogonalize(cycle, given, basis, sums, r, size)
    async with device.record(shared=True) as update:
        made = update.blas.gemv(basis[:size], weights, trans=1)
        update.evaluate(x + given.precondition(update, made), out=x)
        update.evaluate(given.b - given.multiply(update, x), out=r)
        update.evaluate(norm(r), out=length)
    for number in range(most):
        await cycle.replay()
        h = (await device.get(sums)).T
        if not np.isfinite(h).all():
            return await begun.solution(x), max(1, most)
        first = np.zeros(size + 1, dtype)
        first[0] = beta
        y = np.linalg.lstsq(h, first, rcond=None)[0].astype(dtype)
        await device.put(y, out=weights)
        await update.replay()
        beta = float((await device.get(length))[0])
        if callback is not None:
            callback(number + 1, begun.plain(beta))
        if not tolerance < beta < math.inf:
            break
    return await begun.solution(x), info_of(beta, tolerance, most)


def _orthogonalize(
    recording: Recording, given: LinearSystem, basis: GpuRef, sums: GpuRef, r: GpuRef, size: int
) -> None:
    """Record Arnoldi's iteration: ``size`` more vectors, from the residual on."""
    recording.evaluate(r * _inverse(r), out=basis[0])
    for j in range(size):
        known = basis[: j + 1]
        w: Any = given.multiply(recording, given.precondition(recording, basis[j]))
        total: Any = None
        for _ in range(2):
            # What is left of the vectors that are there: twice is enough.
            shares = recording.blas.gemv(known, _conjugate(recording, w))
            shares = _conjugate(recording, shares)
            w = recording.evaluate(w - recording.blas.gemv(known, shares, trans=1))
            total = shares if total is None else total + shares
        recording.evaluate(total, out=sums[j, : j + 1])
        recording.evaluate(norm(w).astype(w.dtype), out=sums[j, j + 1 : j + 2])
        recording.evaluate(w * _inverse(w), out=basis[j + 1])


def _conjugate(recording: Recording, x: GpuRef) -> GpuRef:
    """Return the complex conjugate; real numbers unchanged."""
    if x.dtype.kind != "c":
        return x
    made: GpuRef = recording.evaluate(np.conj(x))
    return made


def _inverse(x: GpuRef) -> Any:
    """One by the norm; 0 of nothing."""
    return ratio(1.0, norm(x)).astype(x.dtype)
