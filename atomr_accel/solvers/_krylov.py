"""Solvers with short recurrences: conjugate gradients, BiCGSTAB and MINRES."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..wire.options import count
from ._iterating import Callback, dot, info_of, iterate, norm, progress, ratio
from ._operators import LinearSystem, Operator, system
from ._scaled import started

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..arrays import GpuRef
    from ..device import Device
    from ..device.batches.record import Recording
    from ._iterating import Progress

    Step = Callable[[Recording, Progress], None]

_EVERY = 10


async def cg(
    device: Device,
    A: Operator,  # noqa: N803 - SciPy's name
    b: GpuRef,
    x0: GpuRef | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Operator | None = None,  # noqa: N803 - SciPy's name
    callback: Callback | None = None,
    every: int = _EVERY,
) -> tuple[GpuRef, int]:
    """Solve ``A @ x = b`` by conjugate gradients; as ``scipy.sparse.linalg.cg``.

    Hestenes and Stiefel, "Methods of conjugate gradients for solving linear systems" (1952).

    Args:
        device: where ``A`` and ``b`` are.
        A: symmetric or Hermitian, positive definite.
        b: shape (n,), float32, float64, complex64 or complex128.
        x0: where to begin, shape (n,); zeros by default. It is not changed.
        rtol: relative to the norm of ``b``: how small the residual's has to be.
        atol: the same, absolute.
        maxiter: how many iterations at most; 10 n by default.
        M: approximates the inverse of ``A``; positive definite.
        callback: a function, called every time that the program looks, with the iterations so far
            and the residual's norm.
        every: after how many iterations the program looks.

    Returns:
        The solution, and 0; zeros for a ``b`` of zeros. Without convergence, the latest iterate,
        which may hold NaN, and ``maxiter``, at least 1. That is the case after ``maxiter``
        iterations, or as soon as the residual's norm is NaN or infinite, which a NaN or infinity in
        ``b`` makes it at once. It is also the case if ``b - A @ x``, computed in the dtype of
        ``b``, is not small enough, and beginning again from ``x`` no longer halves it. None of
        these raises an error.

    Raises:
        TypeError: other dtypes, no operator, or a function that does not return a ref.
        ValueError: shapes or numbers that do not fit.
    """
    given = system(device, A, b, M, callback)

    async def begin(given: LinearSystem, x: GpuRef, r: GpuRef) -> Step:
        rho, p = await _scalar(given, 0.0), await _zeros(given)

        def step(recording: Recording, state: Progress) -> None:
            z = given.precondition(recording, r)
            new = recording.evaluate(dot(r, z))
            state.keep(recording, p, z + ratio(new, rho) * p)
            state.keep(recording, rho, new)
            q = given.multiply(recording, p)
            alpha = recording.evaluate(ratio(new, recording.evaluate(dot(p, q))))
            state.keep(recording, x, x + alpha * p)
            state.keep(recording, r, r - alpha * q)
            state.end(recording, norm(r))

        return step

    return await _solve(given, x0, rtol, atol, maxiter, callback, every, begin)


async def bicgstab(
    device: Device,
    A: Operator,  # noqa: N803 - SciPy's name
    b: GpuRef,
    x0: GpuRef | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Operator | None = None,  # noqa: N803 - SciPy's name
    callback: Callback | None = None,
    every: int = _EVERY,
) -> tuple[GpuRef, int]:
    """Solve ``A @ x = b`` by BiCGSTAB; as ``scipy.sparse.linalg.bicgstab``.

    Van der Vorst, "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG" (1992). ``A`` is any
    square matrix. Other arguments, and the result, are those of ``cg``.
    """
    given = system(device, A, b, M, callback)

    async def begin(given: LinearSystem, x: GpuRef, r: GpuRef) -> Step:
        shadow = await device.copy(r)
        rho, alpha, omega = [await _scalar(given, value) for value in (1.0, 1.0, 1.0)]
        p, v = await _zeros(given), await _zeros(given)

        def step(recording: Recording, state: Progress) -> None:
            new = recording.evaluate(dot(shadow, r))
            beta = recording.evaluate(ratio(new, rho) * ratio(alpha, omega))
            state.keep(recording, rho, new)
            state.keep(recording, p, r + beta * (p - omega * v))
            nearer = given.precondition(recording, p)
            state.keep(recording, v, given.multiply(recording, nearer))
            state.keep(recording, alpha, ratio(new, recording.evaluate(dot(shadow, v))))
            s = recording.evaluate(r - alpha * v)
            toward = given.precondition(recording, s)
            t = given.multiply(recording, toward)
            across, along = recording.evaluate(dot(t, s)), recording.evaluate(dot(t, t))
            state.keep(recording, omega, ratio(across, along))
            state.keep(recording, x, x + alpha * nearer + omega * toward)
            state.keep(recording, r, s - omega * t)
            state.end(recording, norm(r))

        return step

    return await _solve(given, x0, rtol, atol, maxiter, callback, every, begin)


async def minres(
    device: Device,
    A: Operator,  # noqa: N803 - SciPy's name
    b: GpuRef,
    x0: GpuRef | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Operator | None = None,  # noqa: N803 - SciPy's name
    callback: Callback | None = None,
    every: int = _EVERY,
) -> tuple[GpuRef, int]:
    """Solve ``A @ x = b`` by minimal residuals; as ``scipy.sparse.linalg.minres``.

    Paige and Saunders, "Solution of sparse indefinite systems of linear equations" (1975). ``A`` is
    symmetric or Hermitian, perhaps indefinite, and ``M`` positive definite. Residuals are measured
    in the norm of ``M``, relative to the first one. Other arguments, and the result, are those of
    ``cg``.
    """
    given = system(device, A, b, M, callback)

    async def begin(given: LinearSystem, x: GpuRef, r: GpuRef) -> Step:
        # Vectors and numbers of the last step, and of the one before it.
        v, before = r, await _zeros(given)
        w, w_before = await _zeros(given), await _zeros(given)
        gamma, eta = await _scalar(given, 0.0), await _scalar(given, 0.0)
        gamma_before, c, c_before = [await _scalar(given, 1.0) for _ in range(3)]
        s, s_before = await _scalar(given, 0.0), await _scalar(given, 0.0)
        scale = await device.full((1,), 1, np.float64)

        async with device.record(shared=True) as recording:
            first = recording.evaluate(np.sqrt(dot(v, given.precondition(recording, v))))
            recording.evaluate(ratio(norm(v), np.abs(first).astype(np.float64)), out=scale)
            recording.copy(first, gamma)
            recording.copy(first, eta)
        await recording.replay()

        def step(recording: Recording, state: Progress) -> None:
            z = recording.evaluate(given.precondition(recording, v) * ratio(1.0, gamma))
            q = given.multiply(recording, z)
            delta = recording.evaluate(dot(z, q))
            new = recording.evaluate(
                q - ratio(delta, gamma) * v - ratio(gamma, gamma_before) * before
            )
            wide = recording.evaluate(np.sqrt(dot(new, given.precondition(recording, new))))
            a0 = recording.evaluate(c * delta - c_before * s * gamma)
            a1 = recording.evaluate(np.sqrt(a0 * a0 + wide * wide))
            a2 = recording.evaluate(s * delta + c_before * c * gamma)
            a3 = recording.evaluate(s_before * gamma)
            # Where the basis ends in the null space there is nothing to rotate: the residual stays.
            c_new = recording.evaluate(ratio(a0, a1))
            s_new = recording.evaluate(np.where(a1 == 0, 1, ratio(wide, a1)))
            toward = recording.evaluate((z - a3 * w_before - a2 * w) * ratio(1.0, a1))
            state.keep(recording, x, x + c_new * eta * toward)
            for target, value in (
                *((before, v), (v, new), (w_before, w), (w, toward), (gamma_before, gamma)),
                *((gamma, wide), (c_before, c), (c, c_new), (s_before, s), (s, s_new)),
            ):
                state.keep(recording, target, value)
            state.keep(recording, eta, -s_new * eta)
            state.end(recording, np.abs(eta).astype(np.float64) * scale)

        return step

    options = (x0, rtol, atol, maxiter, callback, every)
    return await _solve(given, *options, begin, follows=M is None)


async def _solve(
    given: LinearSystem,
    x0: GpuRef | None,
    rtol: float,
    atol: float,
    maxiter: int | None,
    callback: Callback | None,
    every: int,
    begin: Any,
    *,
    follows: bool = True,
) -> tuple[GpuRef, int]:
    """Record some steps of the solver that ``begin`` prepares, and replay them.

    A solver that follows its residual by a recurrence begins again if the residual itself is larger
    than that and than the tolerance, as long as it halves.
    """
    device = given.device
    most = 10 * given.n if maxiter is None else count(maxiter, "maxiter", 0)
    steps = min(count(every, "every"), max(most, 1))  # it ends there anyway
    begun = await started(given, x0, rtol, atol)
    x, r, tolerance, size = begun.x, begun.r, begun.tolerance, begun.size
    found, done = size, 0
    while not size <= tolerance and done < most and math.isfinite(size):
        step: Step = await begin(begun.system, x, r)
        state = await progress(device, size, tolerance, most - done)
        async with device.record(shared=True) as recording:
            for _ in range(steps):
                state.begin(recording)
                step(recording, state)
        found, taken = await iterate(device, recording, state, begun.callback(callback, done))
        done += taken
        if not (found <= tolerance and follows):
            break
        r = await begun.system.residual(x)
        found = await begun.norm(r)
        if not found < size / 2:
            break
        size = found
    return await begun.solution(x), info_of(found, tolerance, most)


async def _zeros(given: LinearSystem) -> GpuRef:
    return await given.device.full(given.b.shape, 0, given.b.dtype)


async def _scalar(given: LinearSystem, value: float) -> GpuRef:
    return await given.device.full((1,), value, given.b.dtype)
