"""SciPy's functions of banded matrices, and square roots, made of those for dense ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ..._errors import Unsupported
from ...arrays.expressions import Operand, cast, constant, index
from ...arrays.expressions.expression import ufunc, where
from ...ops import ARRAY_LANE as ARRAY
from ...ops import D, op
from ...wire.options import whole
from ._derived import DerivedFunctions
from ._spectra import Eigen
from ._steps import LinalgSteps, solved_in

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import Request

_EPS: Final = {"float32": float(np.finfo(np.float32).eps), "float64": float(np.finfo(float).eps)}


class BandedFunctions(DerivedFunctions[D]):
    """Systems and eigenvalues of bands, which are made dense, and square roots of matrices."""

    @op
    def sqrtm(self, A: Operand, *, hermitian: bool = False) -> Request[GpuRef]:  # noqa: N803
        """Square roots of matrices; as ``scipy.linalg.sqrtm``, by ``eig`` and ``solve``.

        Roots of matrices that have too few eigenvectors lose digits, or are refused.

        Args:
            A: shape (..., n, n).
            hermitian: the matrices are, and have no negative eigenvalues; then by ``eigh``.

        Returns:
            Of the same shape: complex, as only the device knows whether all roots are real; with
            ``hermitian`` of the dtype of ``A``, and NaN if an eigenvalue is negative.

        Raises:
            Unsupported: without ``hermitian``, where ``eig`` is.
        """

        def build(steps: LinalgSteps) -> GpuRef:
            stack = steps.stack(self._operand(A, "A"), square=True)
            if not stack.ref.size:
                return steps.fresh(stack.ref)
            if not hermitian:
                w, v = steps.do(self._own.eig(stack.ref))
                scaled = steps.evaluate(v * ufunc("sqrt", w)[..., None, :])
                # x @ v = scaled, transposed
                return steps.contiguous(steps.do(self._own.solve(v.mT, scaled.mT)).mT)
            w, v = self._eigh(steps, stack.ref, None, True, 1, None, None, vectors=True)
            size: Any = abs(w)
            small = size.max(-1, keepdims=True) * (stack.n * _EPS[w.dtype.name])
            root = ufunc("sqrt", where(abs(w) <= small, ufunc("maximum", w, 0), w))
            left = steps.evaluate(v * cast(steps.evaluate(root)[..., None, :], stack.dtype))
            return steps.matmul(left, v, trans_b=2)

        return self._calls("sqrtm", build, ARRAY)

    @op
    def eigh_tridiagonal(
        self,
        d: Operand,
        e: Operand,
        eigvals_only: bool = False,
        select: Literal["a", "i", "v"] = "a",
        select_range: tuple[int, int] | None = None,
    ) -> Request[Any]:
        """Eigenvalues of tridiagonal matrices; as ``scipy.linalg.eigh_tridiagonal``, by ``eigh``.

        The matrices are made dense.

        Args:
            d: the diagonals, real, shape (..., n).
            e: those above and below, shape (..., n - 1).
            eigvals_only: return no eigenvectors.
            select: ``"a"`` for all, ``"i"`` for those of ``select_range``.
            select_range: the first and the last, counted from 0.

        Returns:
            ``(w, v)``, ascending, or only ``w``.

        Raises:
            Unsupported: ``select="v"``.
        """
        x, y = self._operand(d, "d"), self._operand(e, "e")
        n = x.shape[-1] if x.shape else 0
        if not n or y.shape != (*x.shape[:-1], n - 1):
            raise ValueError(f"d and e must have shapes that fit, not {x.shape} and {y.shape}")
        if "c" in (x.dtype.kind, y.dtype.kind):
            raise TypeError("d and e must be real, not complex")
        if select == "v":
            raise Unsupported("select='v': only the device knows how many there are; select all")
        if select not in ("a", "i") or (select == "i") != (select_range is not None):
            raise ValueError("select must be 'a', or 'i' with select_range")

        def build(steps: LinalgSteps) -> Eigen | GpuRef:
            given = steps.joint(x, y)
            diagonal, beside = (steps.ref(each) for each in given)
            matrices = steps.output((*x.shape, n), diagonal.dtype)
            steps.evaluate(constant(0, diagonal.dtype) * index(matrices.shape, 0), matrices)
            for of, offset in ((diagonal, 0), (beside, -1), (beside, 1)):
                if of.size:
                    steps.evaluate(of, matrices.diagonal(offset, -2, -1))
            found = self._eigh(
                steps, matrices, None, True, 1, select_range, None, vectors=not eigvals_only
            )
            return found[0] if eigvals_only else Eigen(*found)

        return self._calls("eigh_tridiagonal", build)

    @op
    def solve_banded(self, l_and_u: tuple[int, int], ab: Operand, b: Operand) -> Request[GpuRef]:
        """The x of ``a @ x = b``, a banded; as ``scipy.linalg.solve_banded``, by ``solve``.

        The matrices are made dense. ``sparse.solve_banded`` solves systems of three or five
        diagonals without that.

        Args:
            l_and_u: diagonals below and above the main one.
            ab: the diagonals, shape (..., l + u + 1, n): ``ab[u + i - j, j]`` is the element of row
                i and column j.
            b: as of ``solve``.

        Returns:
            Of b's shape, broadcast.
        """
        low, up = (whole(each, "l_and_u", least=0) for each in l_and_u)
        x = self._bands(ab, low + up + 1)

        def build(steps: LinalgSteps) -> GpuRef:
            made: GpuRef = steps.do(self._own.solve(self._dense(steps, x, low, up), b))
            return made

        return self._calls("solve_banded", build, ARRAY)

    @op
    def solveh_banded(self, ab: Operand, b: Operand, *, lower: bool = False) -> Request[GpuRef]:
        """The x of ``a @ x = b``, positive definite bands; as ``scipy.linalg.solveh_banded``.

        By ``cholesky`` and ``cho_solve``. The matrices are made dense.

        Args:
            ab: the diagonals of one triangle, shape (..., u + 1, n), as of ``solve_banded``.
            b: as of ``cho_solve``.
            lower: whether that is the lower one, so that the main diagonal comes first.

        Returns:
            Of b's shape, broadcast.
        """
        x = self._bands(ab, None)
        reach = x.shape[-2] - 1

        def build(steps: LinalgSteps) -> GpuRef:
            whole = self._dense(steps, x, reach if lower else 0, 0 if lower else reach)
            factor = steps.do(self._own.cholesky(whole, lower=lower))
            made: GpuRef = steps.do(self._own.cho_solve((factor, lower), b))
            return made

        return self._calls("solveh_banded", build, ARRAY)

    def _bands(self, ab: Operand, count: int | None) -> Operand:
        x = self._operand(ab, "ab")
        rows = x.shape[-2] if len(x.shape) > 1 else 0
        if not rows or rows != (count or rows):
            raise ValueError(f"ab must have shape (..., {count or 'u + 1'}, n), not {x.shape}")
        return x

    def _dense(self, steps: LinalgSteps, ab: Operand, low: int, up: int) -> GpuRef:
        """The matrices of bands, with zeros elsewhere."""
        bands = steps.cast(steps.ref(ab, "ab"), solved_in(ab.dtype))
        band = steps.ref(bands)
        n = band.shape[-1]
        shape = (*band.shape[:-2], n, n)
        made = steps.output(shape, band.dtype)
        if not made.size:
            return made
        steps.evaluate(constant(0, band.dtype) * index(shape, 0), made)
        for row in range(low + up + 1):
            offset = up - row
            if abs(offset) < n:
                kept = band[..., row, max(offset, 0) : n + min(offset, 0)]
                steps.evaluate(kept, made.diagonal(offset, -2, -1))
        return made
