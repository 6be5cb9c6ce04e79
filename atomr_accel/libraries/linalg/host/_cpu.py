"""The solver lane on the CPU: LAPACK for one matrix after the other, by SciPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ....host.host import IMPORTS
from ....wire.interface import Later
from ...array.host.cpu import CpuArrayExecutor
from ...array.wire.indexing import CopyAll
from ..wire._forms import forms, square_u
from ..wire._messages import (
    NOT_FINITE,
    Compute,
    ComputeAll,
    MeasureWorkspace,
    Require,
    SolverProblem,
)
from ._failures import execute_all, require_success

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream

Array = np.ndarray[Any, Any]


@final
class CpuSolver:
    """Executes the solver lane's messages."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        self._context: Final = context
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            MeasureWorkspace: self._plan,
            Compute: self._compute,
            Require: self._require,
        }
        steps = CpuArrayExecutor(context, stream).of_steps | self.handlers
        self.handlers[ComputeAll] = partial(execute_all, steps)
        self.handlers[CopyAll] = steps[CopyAll]

    def close(self) -> None:
        """Nothing is held."""

    def _plan(self, message: MeasureWorkspace) -> int:
        del message
        return 0  # LAPACK's work arrays are SciPy's business

    def _compute(self, message: Compute) -> Later | None:
        self._context.check()
        problem = message.problem
        info = self._info(message)
        info[...] = 0
        stacks = [
            self._stack(address, problem.batch, *form)
            for address, form in zip(message.buffers, forms(problem), strict=True)
        ]
        for at in range(problem.batch if all(problem.sizes[:2]) else 0):
            info[at] = ROUTINES[problem.routine](problem, *[stack[at] for stack in stacks])
        return Later(partial(require_success, message, info.copy())) if message.failure else None

    def _require(self, message: Require) -> Later:
        self._context.check()
        return Later(partial(require_success, message, self._info(message).copy()))

    def _info(self, message: Compute | Require) -> Array:
        """A number for each matrix."""
        return self._context.array(message.info, (message.problem.batch,), DTYPES["int32"])

    def _stack(self, address: int, batch: int, rows: int, columns: int, dtype: str) -> Array:
        """Column-major matrices."""
        stack = self._context.array(address, (batch, columns, rows), DTYPES[dtype])
        return stack.transpose(0, 2, 1)


@cache
def _lapack(name: str, dtype: str) -> Any:
    with IMPORTS.late():
        from scipy.linalg import get_lapack_funcs  # which few programs need

    return get_lapack_funcs(name, dtype=DTYPES[dtype])


@cache
def _blas(name: str, dtype: str) -> Any:
    with IMPORTS.late():
        from scipy.linalg import get_blas_funcs

    return get_blas_funcs(name, dtype=DTYPES[dtype])


def _complex(problem: SolverProblem) -> bool:
    return problem.dtype.startswith("complex")


# --- linear systems -----------------------------------------------------------------------


def _potrf(problem: SolverProblem, a: Array) -> int:
    a[...], info = _lapack("potrf", problem.dtype)(a, lower=1, clean=False)
    return int(info)


def _getrf(problem: SolverProblem, a: Array, pivots: Array) -> int:
    a[...], swaps, info = _lapack("getrf", problem.dtype)(a)
    pivots[:, 0] = swaps + 1
    return int(info)


def _getrs(problem: SolverProblem, a: Array, pivots: Array, b: Array) -> int:
    (trans,) = problem.options
    if b.size:
        swaps = pivots[:, 0] - 1
        b[...] = _lapack("getrs", problem.dtype)(a, swaps.astype(np.int32), b, trans=trans)[0]
    return 0


def _gesv(problem: SolverProblem, a: Array, pivots: Array, b: Array) -> int:
    return _getrf(problem, a, pivots) or _getrs(problem, a, pivots, b)


def _refined(problem: SolverProblem, a: Array, b: Array, x: Array) -> int:
    """Solve in full precision: that a lower one was asked for is about speed."""
    _, _, x[...], info = _lapack("gesv", problem.dtype)(a, b) if b.size else (0, 0, b, 0)
    return int(info)


def _gels(problem: SolverProblem, a: Array, b: Array, x: Array) -> int:
    if not b.size:
        return 0
    _, solved, info = _lapack("gels", problem.dtype)(a, b)
    x[...] = solved[: len(x)]
    return int(info)


def _trsm(problem: SolverProblem, a: Array, b: Array) -> int:
    lower, trans, unit = problem.options
    if b.size:
        one = DTYPES[problem.dtype].type(1)
        b[...] = _blas("trsm", problem.dtype)(
            one, a, b, side=1, lower=lower, trans_a=trans, diag=unit
        )
    return 0


# --- orthogonal factors -------------------------------------------------------------------


def _geqrf(problem: SolverProblem, a: Array, tau: Array) -> int:
    a[...], tau[:, 0], _, info = _lapack("geqrf", problem.dtype)(a)
    return int(info)


def _orgqr(problem: SolverProblem, a: Array, tau: Array) -> int:
    name = "ungqr" if _complex(problem) else "orgqr"
    a[...], _, info = _lapack(name, problem.dtype)(a, tau[:, 0])
    return int(info)


# --- singular values and eigenvalues --------------------------------------------------------


def _gesvd(problem: SolverProblem, a: Array, s: Array, *vectors: Array) -> int:
    """Singular values; the solver's other routines give V in the place of its adjoint."""
    u, values, vh, info = _lapack("gesdd", problem.dtype)(
        a, compute_uv=bool(vectors), full_matrices=square_u(problem)
    )
    s[:, 0] = values[: len(s)]
    right = vh if problem.routine == "gesvd" else vh.conj().T
    for to, made in zip(vectors, (u, right), strict=False):
        to[...] = made[tuple(map(slice, to.shape))]
    return int(info)


def _syevd(problem: SolverProblem, a: Array, w: Array) -> int:
    wanted, lower = problem.options
    name = "heevd" if _complex(problem) else "syevd"
    w[:, 0], made, info = _lapack(name, problem.dtype)(a, compute_v=wanted, lower=lower)
    if wanted:
        a[...] = made
    return int(info)


def _syevdx(problem: SolverProblem, a: Array, w: Array) -> int:
    wanted, lower = problem.options
    _, first, last = problem.sizes
    name = "heevr" if _complex(problem) else "syevr"
    values, made, count, _, info = _lapack(name, problem.dtype)(
        a, compute_v=wanted, lower=lower, range="I", il=first, iu=last
    )
    w[:count, 0] = values[:count]
    if wanted:
        a[:, :count] = made[:, :count]
    return int(info)


def _sygvd(problem: SolverProblem, a: Array, b: Array, w: Array) -> int:
    kind, wanted, lower = problem.options
    name = "hegvd" if _complex(problem) else "sygvd"
    w[:, 0], made, info = _lapack(name, problem.dtype)(
        a, b, itype=kind, jobz="V" if wanted else "N", uplo="L" if lower else "U"
    )
    if wanted:
        a[...] = made
    return int(info)


def _geev(problem: SolverProblem, a: Array, w: Array, *vectors: Array) -> int:
    wanted = bool(problem.options[0])
    w[:, 0], _, right, info = _lapack("geev", problem.dtype)(a, compute_vl=False, compute_vr=wanted)
    for to in vectors:
        to[...] = right
    return int(info)


def _ldl(problem: SolverProblem, a: Array, d: Array, permutation: Array) -> int:
    with IMPORTS.late():
        from scipy.linalg import ldl

    lower, hermitian = problem.options
    if hermitian:
        np.fill_diagonal(a, a.diagonal().real.copy())  # SciPy warns of what it ignores
    # Of the triangle that is read it is known, and the other one does not matter.
    a[...], d[...], permutation[:, 0] = ldl(
        a, lower=bool(lower), hermitian=bool(hermitian), check_finite=False
    )
    return 0


# --- all of them ----------------------------------------------------------------------------


def _finite(routine: Callable[..., int], *, lower: int | None = None, inputs: int = 1) -> Any:
    """Wrap a routine to refuse NaN and infinity, with which LAPACK may iterate without end.

    Args:
        routine: runs the problem otherwise.
        lower: the option that selects the lower triangle, or else the upper one; the other may hold
            anything.
        inputs: the number of matrices that it reads.
    """

    def checked(problem: SolverProblem, *buffers: Array) -> int:
        for a in buffers[:inputs]:
            read = a
            if lower is not None:
                read = np.tril(a) if problem.options[lower] else np.triu(a)
            if not np.isfinite(read).all():
                return NOT_FINITE
        return routine(problem, *buffers)

    return checked


ROUTINES: Final[dict[str, Callable[..., int]]] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "getrs": _getrs,
    "gesv": _gesv,
    "irs_gesv": _refined,
    "irs_gels": _gels,
    "trsm": _trsm,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "gesvd": _finite(_gesvd),
    "gesvdj": _finite(_gesvd),
    "gesvdp": _finite(_gesvd),
    "gesvdr": _finite(_gesvd),
    "gesvda": _finite(_gesvd),
    "syevd": _finite(_syevd, lower=1),
    "syevj": _finite(_syevd, lower=1),
    "syevdx": _finite(_syevdx, lower=1),
    "sygvd": _finite(_sygvd, lower=2, inputs=2),
    "geev": _finite(_geev),
    "ldl": _finite(_ldl, lower=0),
}
"""Functions that run a routine on one matrix and return LAPACK's info."""
