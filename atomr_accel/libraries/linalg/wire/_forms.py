"""Forms of the stacks that routines work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._messages import Problem


class Form(NamedTuple):
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


def forms(problem: Problem) -> tuple[Form, ...]:
    """Return the forms of a problem's buffers, in the order of the routine's arguments."""
    return _FORMS[problem.routine](problem)


def square_u(problem: Problem) -> bool:
    """Return True if the routine computes all of U, as one call for a whole stack always does."""
    if problem.routine == "gesvdj" and problem.batched:
        return True
    return problem.routine in ("gesvd", "gesvdj", "gesvdp") and bool(problem.options[1])


def _square(problem: Problem) -> Form:
    return Form(problem.sizes[0], problem.sizes[0], problem.dtype)


def _pivots(problem: Problem, count: int) -> Form:
    return Form(count, 1, "int32" if problem.batched else "int64")


def _eigenvalues(problem: Problem) -> Form:
    return Form(problem.sizes[0], 1, _REAL.get(problem.dtype, problem.dtype))


def _lu(problem: Problem) -> tuple[Form, ...]:
    m, n = problem.sizes
    return Form(m, n, problem.dtype), _pivots(problem, min(m, n))


def _system(problem: Problem) -> tuple[Form, ...]:
    n, nrhs = problem.sizes
    return _square(problem), _pivots(problem, n), Form(n, nrhs, problem.dtype)


def _triangular(problem: Problem) -> tuple[Form, ...]:
    n, nrhs = problem.sizes
    return _square(problem), Form(nrhs, n, problem.dtype)


def _refined(problem: Problem) -> tuple[Form, ...]:
    *m, n, nrhs = problem.sizes
    rows, dtype = m[0] if m else n, problem.dtype
    return Form(rows, n, dtype), Form(rows, nrhs, dtype), Form(n, nrhs, dtype)


def _reflectors(problem: Problem) -> tuple[Form, ...]:
    m, n, *k = problem.sizes
    return Form(m, n, problem.dtype), Form(k[0] if k else min(m, n), 1, problem.dtype)


def _singular(problem: Problem) -> tuple[Form, ...]:
    m, n, *rest = problem.sizes
    dtype = problem.dtype
    k = rest[0] if problem.routine == "gesvda" else n
    found = Form(m, n, dtype), Form(k, 1, _REAL.get(dtype, dtype))
    if not problem.options[0]:
        return found
    return *found, Form(m, m if square_u(problem) else k, dtype), Form(n, k, dtype)


def _hermitian(problem: Problem) -> tuple[Form, ...]:
    return _square(problem), _eigenvalues(problem)


def _general(problem: Problem) -> tuple[Form, ...]:
    n, dtype = problem.sizes[0], problem.dtype
    found = _square(problem), Form(n, 1, dtype)
    return (*found, _square(problem)) if problem.options[0] else found


_FORMS: Final[dict[str, Callable[[Problem], tuple[Form, ...]]]] = {
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
        Form(problem.sizes[0], 1, "int64"),
    ),
}
