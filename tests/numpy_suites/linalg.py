"""The functions of ``numpy.linalg`` and ``scipy.linalg``, by ``device.linalg``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
from numpy.linalg import _linalg as theirs

from . import shared
from .shared import Array
from .shared import plain as _array

on_device: Final = partial(shared.on_device, "linalg")


def _wrapped(like: Any) -> Callable[[Any], Any]:
    """Return a function that makes matrices of results for matrices, as NumPy does."""
    return theirs._makearray(like)[1]  # type: ignore[attr-defined, no-any-return]


def _only(**options: Any) -> None:
    """Skip a test that takes an option which ``device.linalg`` does not have."""
    for name, (value, wanted) in options.items():
        if value is not wanted and value != wanted:
            pytest.skip(f"device.linalg has no option {name}={value!r}")


def _lower(triangle: str) -> bool:
    if triangle.upper() not in ("L", "U"):
        raise ValueError("UPLO argument must be 'L' or 'U'")
    return triangle.upper() == "L"


def _scalar(value: Array) -> Any:
    return value[()]


# --- numpy.linalg ---------------------------------------------------------------------------


class NumPy:
    """``numpy.linalg``."""

    @staticmethod
    def solve(a: Any, b: Any) -> Any:
        return _wrapped(b)(on_device("solve", _array(a), _array(b)))

    @staticmethod
    def inv(a: Any) -> Any:
        return _wrapped(a)(on_device("inv", _array(a)))

    @staticmethod
    def cholesky(a: Any, /, *, upper: bool = False) -> Any:
        return _wrapped(a)(on_device("cholesky", _array(a), lower=not upper))

    @staticmethod
    def qr(a: Any, mode: str = "reduced") -> Any:
        if mode not in ("reduced", "complete", "r", "raw"):
            raise ValueError(f"Unrecognized mode '{mode}'")
        wrap = _wrapped(a)
        if mode == "r":
            return wrap(on_device("qr_r", _array(a)))
        made = on_device("qr", _array(a), mode)
        return tuple(made) if mode == "raw" else theirs.QRResult(*map(wrap, made))

    @staticmethod
    def eig(a: Any) -> Any:
        w, v = on_device("eig", _array(a))
        if not np.iscomplexobj(a) and not w.imag.any():  # which only the device knows
            w, v = w.real, v.real
        return theirs.EigResult(w, _wrapped(a)(v))

    @staticmethod
    def eigvals(a: Any) -> Any:
        w = on_device("eigvals", _array(a))
        return w.real if not np.iscomplexobj(a) and not w.imag.any() else w

    @staticmethod
    def eigh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803
        w, v = on_device("eigh", _array(a), lower=_lower(UPLO))
        return theirs.EighResult(w, _wrapped(a)(v))

    @staticmethod
    def eigvalsh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803
        return on_device("eigvalsh", _array(a), lower=_lower(UPLO))

    @staticmethod
    def svd(
        a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
    ) -> Any:
        _only(hermitian=(hermitian, False))
        if not compute_uv:
            return on_device("svdvals", _array(a))
        u, s, vh = on_device("svd", _array(a), full_matrices)
        wrap = _wrapped(a)
        return theirs.SVDResult(wrap(u), s, wrap(vh))

    @staticmethod
    def svdvals(x: Any, /) -> Any:
        return on_device("svdvals", _array(x))

    @staticmethod
    def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
        _only(rcond=(np.ndim(rcond), 0))
        if rcond is not None and rtol is not None:
            raise ValueError("`rtol` and `rcond` can't be both set.")
        given = rtol if rcond is None else rcond
        made = on_device("pinv", _array(a), None if given is None else float(given), hermitian)
        return _wrapped(a)(made)

    @staticmethod
    def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
        if np.ndim(a) != 2:
            raise np.linalg.LinAlgError(f"{np.ndim(a)}-dimensional array given")
        small = None if rcond is None else float(rcond)
        x, residuals, rank, s = on_device("lstsq", _array(a), _array(b), small)
        m, n = np.shape(a)
        wrap = _wrapped(b)
        # NumPy decides on this by the rank, which the device does not.
        far = np.atleast_1d(residuals) if rank == n and m > n else np.array([], residuals.dtype)
        return wrap(x), wrap(far), int(rank), s

    @staticmethod
    def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:  # noqa: N803
        _only(tol=(np.ndim(tol), 0), rtol=(rtol, None))
        array = _array(A)
        if array.ndim < 2:
            return int(not np.all(array == 0))
        return _scalar(
            on_device("matrix_rank", array, None if tol is None else float(tol), hermitian)
        )

    @staticmethod
    def det(a: Any) -> Any:
        return _scalar(on_device("det", _array(a)))

    @staticmethod
    def slogdet(a: Any) -> Any:
        return theirs.SlogdetResult(*map(_scalar, on_device("slogdet", _array(a))))

    @staticmethod
    def cond(x: Any, p: Any = None) -> Any:
        return _scalar(on_device("cond", _array(x), p))

    @staticmethod
    def matrix_power(a: Any, n: Any) -> Any:
        if np.asarray(a).dtype.kind not in "fc":
            pytest.skip("powers of integers, which device.linalg has in float64")
        return _wrapped(a)(on_device("matrix_power", _array(a), n))

    @staticmethod
    def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002
        return _scalar(on_device("norm", _array(x), ord, axis, keepdims))


# --- scipy.linalg ---------------------------------------------------------------------------


def _finite(*arrays: Any, check: bool = True) -> list[Array]:
    found = [_array(each) for each in arrays]
    if check and not all(np.isfinite(each).all() for each in found):
        raise ValueError("array must not contain infs or NaNs")
    return found


class SciPy:
    """``scipy.linalg``; what the device does not tell of, such as ill conditions, is not here."""

    @staticmethod
    def cholesky(
        a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
    ) -> Any:
        (array,) = _finite(a, check=check_finite)
        return on_device("cholesky", array, lower=lower)

    @staticmethod
    def cho_solve(
        c_and_lower: Any, b: Any, overwrite_b: bool = False, check_finite: bool = True
    ) -> Any:
        factor, sides = _finite(c_and_lower[0], b, check=check_finite)
        return on_device("cho_solve", (factor, bool(c_and_lower[1])), sides)

    @staticmethod
    def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
        (array,) = _finite(a, check=check_finite)
        return tuple(on_device("lu_factor", array))

    @staticmethod
    def lu_solve(
        lu_and_piv: Any,
        b: Any,
        trans: Any = 0,
        overwrite_b: bool = False,
        check_finite: bool = True,
    ) -> Any:
        lu, piv = lu_and_piv
        lu, sides = _finite(lu, b, check=check_finite)
        return on_device("lu_solve", (lu, _array(piv)), sides, trans)

    @staticmethod
    def solve_triangular(
        a: Any,
        b: Any,
        trans: Any = 0,
        lower: bool = False,
        unit_diagonal: bool = False,
        overwrite_b: bool = False,
        check_finite: bool = True,
    ) -> Any:
        matrices, sides = _finite(a, b, check=check_finite)
        return on_device("solve_triangular", matrices, sides, trans, lower, unit_diagonal)

    @staticmethod
    def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True, **options: Any) -> Any:
        _only(assume_a=(options.get("assume_a"), None))
        return on_device("inv", *_finite(a, check=check_finite))

    @staticmethod
    def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
        return _scalar(on_device("det", *_finite(a, check=check_finite)))

    @staticmethod
    def ldl(
        A: Any,  # noqa: N803
        lower: bool = True,
        hermitian: bool = True,
        overwrite_a: bool = False,
        check_finite: bool = True,
    ) -> Any:
        (array,) = _finite(A, check=check_finite)
        return tuple(on_device("ldl", array, lower, hermitian))

    @staticmethod
    def polar(a: Any, side: str = "right") -> Any:
        return tuple(on_device("polar", _array(a), side))

    @staticmethod
    def svdvals(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
        return on_device("svdvals", *_finite(a, check=check_finite))

    @staticmethod
    def svd(
        a: Any,
        full_matrices: bool = True,
        compute_uv: bool = True,
        overwrite_a: bool = False,
        check_finite: bool = True,
        lapack_driver: str = "gesdd",
    ) -> Any:
        if lapack_driver not in ("gesdd", "gesvd"):
            raise ValueError(f"lapack_driver must be gesdd or gesvd, not {lapack_driver!r}")
        (array,) = _finite(a, check=check_finite)
        if not compute_uv:
            return on_device("svdvals", array)
        return tuple(on_device("svd", array, full_matrices))

    @staticmethod
    def eigh(
        a: Any,
        b: Any = None,
        *,
        lower: bool = True,
        eigvals_only: bool = False,
        overwrite_a: bool = False,
        overwrite_b: bool = False,
        type: int = 1,  # noqa: A002
        check_finite: bool = True,
        subset_by_index: Any = None,
        subset_by_value: Any = None,
        driver: Any = None,
    ) -> Any:
        _only(subset_by_value=(subset_by_value, None), driver=(driver, None))
        options: dict[str, Any] = {"lower": lower, "type": type}
        if subset_by_index is not None:
            _only(b=(b, None))
            options["subset_by_index"] = tuple(map(int, subset_by_index))
        arrays = _finite(a, *([] if b is None else [b]), check=check_finite)
        made = on_device("eigvalsh" if eigvals_only else "eigh", *arrays, **options)
        return made if eigvals_only else tuple(made)

    @staticmethod
    def expm(A: Any) -> Any:  # noqa: N803
        return on_device("expm", _array(A))


ADAPTED: Final = {
    "numpy": {
        name: each.__func__ for name, each in vars(NumPy).items() if isinstance(each, staticmethod)
    },
    "scipy": {
        name: each.__func__ for name, each in vars(SciPy).items() if isinstance(each, staticmethod)
    },
}
"""The functions by package."""

__all__ = ["ADAPTED"]
