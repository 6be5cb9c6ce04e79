"""Forms of the stacks that routines work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._messages import SolverProblem


class MatrixForm(NamedTuple):
    """The matrices of a stack, column-major; vectors have one column.

    Attributes:
        rows: of each.
        columns: of each.
        dtype: by name.
    """

    rows: int
    columns: int
    dtype: str


_REAL: Final = {"complex64": "float32", "complex128": "float64"}


def forms(problem: SolverProblem) -> tuple[MatrixForm, ...]:
    """Return the forms of a problem's buffers, in the order of the routine's arguments."""
    return _FORMS[problem.routine](problem)


def square_u(problem: SolverProblem) -> bool:
    """Return True if the routine computes all of U, as one call for a whole stack always does."""
    if problem.routine == "gesvdj" and problem.batched:
        return True
    return problem.routine in ("gesvd", "gesvdj", "gesvdp") and bool(problem.options[1])


def _square(problem: SolverProblem) -> MatrixForm:
    return MatrixForm(problem.sizes[0], problem.sizes[0], problem.dtype)


def _pivots(problem: SolverProblem, count: int) -> MatrixForm:
    return MatrixForm(count, 1, "int32" if problem.batched else "int64")


def _eigenvalues(problem: SolverProblem) -> MatrixForm:
    return MatrixForm(problem.sizes[0], 1, _REAL.get(problem.dtype, problem.dtype))


def _lu(problem: SolverProblem) -> tuple[MatrixForm, ...]:
    m, n = problem.sizes
    return MatrixForm(m, n, problem.dtype), _pivots(problem, min(m, n))


def _system(problem: SolverProblem) -> tuple[MatrixForm, ...]:
    n, nrhs = problem.sizes
    return _square(problem), _pivots(problem, n), MatrixForm(n, nrhs, problem.dtype)


def _triangular(problem: SolverProblem) -> tuple[MatrixForm, ...]:
    n, nrhs = problem.sizes
    return _square(problem), MatrixForm(nrhs, n, problem.dtype)


def _refined(problem: SolverProblem) -> tuple[MatrixForm, ...]:
    *m, n, nrhs = problem.sizes
    rows, dtype = m[0] if m else n, problem.dtype
    return MatrixForm(rows, n, dtype), MatrixForm(rows, nrhs, dtype), MatrixForm(n, nrhs, dtype)


def _reflectors(problem: SolverProblem) -> tuple[MatrixForm, ...]:
    m, n, *k = problem.sizes
    return MatrixForm(m, n, problem.dtype), MatrixForm(k[0] if k else min(m, n), 1, problem.dtype)


def _singular(problem: SolverProblem) -> tuple[MatrixForm, ...]:
    m, n, *rest = problem.sizes
    dtype = problem.dtype
    k = rest[0] if problem.routine == "gesvda" else n
    found = MatrixForm(m, n, dtype), MatrixForm(k, 1, _REAL.get(dtype, dtype))
    if not problem.options[0]:
        return found
    return *found, MatrixForm(m, m if square_u(problem) else k, dtype), MatrixForm(n, k, dtype)


def _hermitian(problem: SolverProblem) -> tuple[MatrixForm, ...]:
    return _square(problem), _eigenvalues(problem)


def _general(problem: SolverProblem) -> tuple[MatrixForm, ...]:
    n, dtype = problem.sizes[0], problem.dtype
    found = _square(problem), MatrixForm(n, 1, dtype)
    return (*found, _square(problem)) if problem.options[0] else found


_FORMS: Final[dict[str, Callable[[SolverProblem], tuple[MatrixForm, ...]]]] = {
    "potrf": lambda problem: (_square(problem),),
    "getrf": _lu,
    "getrs": _system,
    "gesv": _system,
    "irs_gesv": _refined,
    "irs_gels": _refined,
    "trsm": _triangular,
    "geqrf": _reflectors,
    "orgqr": _reflectors,
    "gesvd": _singular,
    "gesvdj": _singular,
    "gesvdp": _singular,
    "gesvdr": _singular,
    "gesvda": _singular,
    "syevd": _hermitian,
    "syevj": _hermitian,
    "syevdx": _hermitian,
    "sygvd": lambda problem: (_square(problem), _square(problem), _eigenvalues(problem)),
    "geev": _general,
    "ldl": lambda problem: (
        _square(problem),
        _square(problem),
        MatrixForm(problem.sizes[0], 1, "int64"),
    ),
}
