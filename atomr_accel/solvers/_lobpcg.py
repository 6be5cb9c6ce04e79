"""LOBPCG: some eigenpairs of a large matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from ..wire.options import count, flag, real
from ._iterating import Callback
from ._operators import Operator, applied, require_floats, require_operators

if TYPE_CHECKING:
    from ..arrays import GpuRef
    from ..device import Device

_ITERATIONS = 20


async def lobpcg(
    device: Device,
    A: Operator,  # noqa: N803 - SciPy's name
    X: GpuRef,  # noqa: N803 - SciPy's name
    *,
    M: Operator | None = None,  # noqa: N803 - SciPy's name
    tol: float | None = None,
    maxiter: int | None = None,
    largest: bool = True,
    callback: Callback | None = None,
) -> tuple[np.ndarray[Any, np.dtype[Any]], GpuRef]:
    """The largest or smallest eigenvalues and their vectors; as ``scipy.sparse.linalg.lobpcg``.

    Knyazev, "Toward the optimal preconditioned eigensolver: locally optimal block preconditioned
    conjugate gradient method" (2001). Blocks of vectors stay on the device, in a recorded step;
    eigenvalues of a matrix of three times as many rows as there are vectors the program computes.

    Args:
        device: where ``A`` and ``X`` are.
        A: symmetric or Hermitian. A function gets blocks of vectors, of shape (n, 3 k).
        X: where to begin: shape (n, k), of full rank, with 5 k below n; float32, float64,
            complex64 or complex128. It is not changed.
        M: approximates the inverse of ``A``; positive definite. A function gets (n, k).
        tol: how small the norms of residuals have to be; by default the square root of the
            dtype's precision times n, as SciPy's.
        maxiter: how many iterations at most; 20 by default.
        largest: whether the largest or the smallest ones are wanted.
        callback: a function, called after each iteration, with their number and the largest norm.

    Returns:
        The eigenvalues, an array of shape (k,), the wanted end first; and the vectors, a ref of
        shape (n, k).

    Raises:
        ValueError: shapes or numbers that do not fit; columns of ``X`` that depend on others.
        numpy.linalg.LinAlgError: products with ``A`` or ``M``, or ``X``, hold NaN or infinity.
    """
    require_floats(device, X, "X")
    if X.ndim != 2 or not 0 < 5 * X.shape[1] < X.shape[0]:
        raise ValueError(f"X must have shape (n, k) with 0 < 5 k < n, not {X.shape}")
    n, k = X.shape
    require_operators(A, M, n, X.dtype, callback)
    end = flag(largest, "largest")
    most = _ITERATIONS if maxiter is None else count(maxiter, "maxiter", 0)
    enough = float(np.sqrt(np.finfo(X.dtype).eps)) * n
    enough = enough if tol is None else real(tol, "tol", least=0)

    # The vectors, their preconditioned residuals, and where they came from.
    space = await device.full((n, 3 * k), 0, X.dtype)
    chosen = await device.full((3 * k, 2 * k), 0, X.dtype)
    values = await device.full((k,), 0, X.dtype)
    async with device.record(shared=True) as begin:
        begin.evaluate(X, out=space[:, :k])
    async with device.record(shared=True) as project:
        images = applied(project, A, space)
        grams = [project.blas.gemm(space, each, trans_a=2) for each in (images, space)]
    async with device.record(shared=True) as update:
        made = update.blas.gemm(space, chosen)
        ahead = update.blas.gemm(images, chosen)
        # What was chosen is (vectors, directions), side by side.
        vectors = made[:, :k]
        residual = update.evaluate(ahead[:, :k] - vectors * values)
        norms = update.evaluate(_norms(residual))
        nearer = residual if M is None else applied(update, M, residual)
        update.evaluate(vectors, out=space[:, :k])
        update.evaluate(nearer, out=space[:, k : 2 * k])
        update.evaluate(made[:, k:], out=space[:, 2 * k :])
    await begin.replay()
    found = np.zeros(k)
    for number in range(most + 1):
        await project.replay()
        products, overlaps = [await device.get(each) for each in grams]
        found, weights = _rayleigh_ritz(products, overlaps, k, largest=end)
        directions = weights.copy()
        directions[:k] = 0
        await device.put(np.hstack([weights, directions]).astype(X.dtype), out=chosen)
        await device.put(found.astype(X.dtype), out=values)
        await update.replay()
        worst = float((await device.get(norms)).max())
        if callback is not None:
            callback(number, worst)
        if worst <= enough:
            break
    return found, await device.copy(space[:, :k])


def _norms(x: GpuRef) -> Any:
    """Return the 2-norm of each column."""
    return np.sqrt(np.square(np.abs(x)).astype(np.float64).sum(axis=0))


def _rayleigh_ritz(
    products: Any, overlaps: Any, k: int, *, largest: bool
) -> tuple[np.ndarray[Any, np.dtype[Any]], np.ndarray[Any, np.dtype[Any]]]:
    """The best ``k`` vectors of a space, by how its basis overlaps; those that depend are left out.

    Returns:
        The values, and how the vectors are made of the basis.
    """
    if not (np.isfinite(products).all() and np.isfinite(overlaps).all()):
        raise np.linalg.LinAlgError("products of A, M and X hold NaN or infinity")
    eps = float(np.finfo(overlaps.dtype).eps)
    wide = np.complex128 if overlaps.dtype.kind == "c" else np.float64
    products, overlaps = products.astype(wide), overlaps.astype(wide)
    sizes = np.sqrt(np.abs(np.diag(overlaps)))
    scale = np.where(sizes > 0, 1 / np.where(sizes > 0, sizes, 1), 0)
    # Of columns of length one, so that it shows which ones depend on others.
    overlaps = overlaps * np.outer(scale, scale)
    lengths, axes = scipy.linalg.eigh((overlaps + overlaps.conj().T) / 2)
    good = lengths > eps * len(lengths) * max(lengths[-1], 0)
    basis = scale[:, None] * axes[:, good] / np.sqrt(lengths[good])
    small = basis.conj().T @ products @ basis
    values, ways = scipy.linalg.eigh((small + small.conj().T) / 2)
    order = np.argsort(-values if largest else values)[:k]
    if len(order) < k:
        raise ValueError(f"X has dependent columns: of {k} only {len(order)} are left")
    return values[order], basis @ ways[:, order]
