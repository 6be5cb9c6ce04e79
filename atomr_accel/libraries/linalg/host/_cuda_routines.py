"""The vendor's functions behind each routine, and the workspace they take.

A routine takes one matrix at a time, or a whole stack. Pointers are those of the device, to
column-major matrices without gaps.
"""

from __future__ import annotations

from ctypes import byref, c_double, c_int, c_int64, c_size_t
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from ...._dtypes import DTYPES
from ...._errors import LibraryError, Unsupported
from ....executors.numbers import CUDA_TYPES
from ..wire._forms import forms, square_u
from ._prototypes import ENUMS, LETTERS, LOWER_PRECISIONS, SINGULAR, symbol
from ._sizes import LinalgWorkspace, WorkspaceSizes, aligned
from ._small import Small, room_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..wire._messages import SolverProblem
    from ._cuda import Solver

_REAL: Final = {"complex64": "float32", "complex128": "float64"}
_NOTHING: Final = (0, 0, 0, 0)
_RIGHT: Final = 1
_CONJUGATE: Final = ENUMS["CUBLAS_OP_C"]
_ALL, _SOME, _NONE = b"ASN"

WAITING: Final = frozenset(
    {
        *("geev", "gesvd", "gesvda", "gesvdj", "gesvdp", "gesvdr", "irs_gels", "irs_gesv"),
        *("syevd", "syevdx", "syevj", "sygvd"),
    }
)
"""Routines that read the device's results before they return."""

SILENT: Final = frozenset({"geqrf", "getrs", "trsm"})
"""Routines that may report no info."""


class SolverRoutine(Protocol):
    """A way to run a routine."""

    @property
    def whole(self) -> bool:
        """True if one call takes a whole stack."""

    def sizes(self, solver: Solver, problem: SolverProblem) -> WorkspaceSizes:
        """The workspace of a problem."""

    def run(
        self,
        solver: Solver,
        problem: SolverProblem,
        buffers: Sequence[int],
        info: int,
        work: LinalgWorkspace,
    ) -> None:
        """Queue it."""


@final
class _Int64Function:
    """A function of the 64-bit interface, with workspace on both sides."""

    whole = False

    def __init__(self, name: str, arguments: Callable[..., tuple[Any, ...]]) -> None:
        self._name = f"cusolverDn{name}"
        self._arguments = arguments

    def sizes(self, solver: Solver, problem: SolverProblem) -> WorkspaceSizes:
        device, host = c_size_t(), c_size_t()
        arguments = self._arguments(problem, _NOTHING)
        solver.call(
            f"{self._name}_bufferSize", solver.params, *arguments, byref(device), byref(host)
        )
        return WorkspaceSizes(device.value, host.value)

    def run(
        self,
        solver: Solver,
        problem: SolverProblem,
        buffers: Sequence[int],
        info: int,
        work: LinalgWorkspace,
    ) -> None:
        arguments = self._arguments(problem, buffers)
        solver.call(self._name, solver.params, *arguments, *work, info)


@final
class _PolarSvd:
    """``Xgesvdp``, by a polar decomposition: several times faster than ``Xgesvd``, and as accurate.

    Where a singular value is so near to zero that it would not get there, it moves all of them, and
    says by how much. Then ``Xgesvd`` computes them again.

    Where no vectors are wanted the library writes them all the same (12.0 does, at addresses that
    are null then), so there is room for them behind the copy of the matrix.
    """

    whole = False

    def __init__(self, otherwise: _Int64Function) -> None:
        self._otherwise = otherwise

    def sizes(self, solver: Solver, problem: SolverProblem) -> WorkspaceSizes:
        device, host = c_size_t(), c_size_t()
        solver.call(
            *("cusolverDnXgesvdp_bufferSize", solver.params, *_gesvdp(problem, _NOTHING)),
            *(byref(device), byref(host)),
        )
        other = self._otherwise.sizes(solver, problem)
        most = max(device.value, other.vendor), max(host.value, other.host)
        return WorkspaceSizes(
            *most, self._nbytes(problem) if problem.options[0] else self._room(problem)[2]
        )

    def run(
        self,
        solver: Solver,
        problem: SolverProblem,
        buffers: Sequence[int],
        info: int,
        work: LinalgWorkspace,
    ) -> None:
        a, s, *vectors = buffers
        solver.blas.copy(work.more, a, self._nbytes(problem))
        moved = c_double()
        room = vectors or [work.more + at for at in self._room(problem)[:2]]
        arguments = _gesvdp(problem, (a, s, *room))
        solver.call("cusolverDnXgesvdp", solver.params, *arguments, *work, info, byref(moved))
        if moved.value == 0 and not solver.read(info):
            return
        adjoint = a  # of V, which is no larger
        again = (work.more, s, *((vectors[0], adjoint) if vectors else ()))
        self._otherwise.run(solver, problem, again, info, work)
        if vectors:
            n, dtype = problem.sizes[1], problem.dtype
            one = solver.scalars.pointer(dtype, _number(dtype, 1.0))
            nothing = solver.scalars.pointer(dtype, _number(dtype, 0.0))
            turned = (_CONJUGATE, _CONJUGATE, n, n, one, adjoint, n, nothing, adjoint, n)
            solver.blas.call(f"cublas{LETTERS[dtype]}geam_64", *turned, vectors[1], n)

    def _nbytes(self, problem: SolverProblem) -> int:
        m, n = problem.sizes
        return m * n * DTYPES[problem.dtype].itemsize

    def _room(self, problem: SolverProblem) -> tuple[int, int, int]:
        """Return the offsets of U, of V and of the end, in memory that begins with a matrix."""
        (m, n), size = problem.sizes, DTYPES[problem.dtype].itemsize
        left = aligned(m * n * size)
        return left, 2 * left, 2 * left + n * n * size


@final
class _ByLetter:
    """A function with a letter for the dtype, whose workspace is counted in elements.

    ``tails`` are the arguments behind the workspace: of what asks for its size, and of the function
    itself.
    """

    def __init__(
        self,
        name: str,
        arguments: Callable[..., tuple[Any, ...]],
        tails: Callable[[Solver, SolverProblem], tuple[tuple[Any, ...], tuple[Any, ...]]] = (
            lambda _solver, _problem: ((), ())
        ),
        *,
        whole: bool = False,
    ) -> None:
        self._name = name
        self._arguments = arguments
        self._tails = tails
        self.whole = whole

    def sizes(self, solver: Solver, problem: SolverProblem) -> WorkspaceSizes:
        elements = c_int()
        solver.call(
            f"{symbol(self._name, problem.dtype)}_bufferSize",
            *self._arguments(problem, _NOTHING),
            byref(elements),
            *self._tails(solver, problem)[0],
        )
        return WorkspaceSizes(elements.value * DTYPES[problem.dtype].itemsize)

    def run(
        self,
        solver: Solver,
        problem: SolverProblem,
        buffers: Sequence[int],
        info: int,
        work: LinalgWorkspace,
    ) -> None:
        solver.call(
            symbol(self._name, problem.dtype),
            *self._arguments(problem, buffers),
            work.device,
            work.nbytes // DTYPES[problem.dtype].itemsize,
            info,
            *self._tails(solver, problem)[1],
        )


@final
class _Lu:
    """Factors and, for a system, solves: ``Xgetrf`` and ``Xgetrs``."""

    whole = False

    def __init__(self, *, factors: bool, solves: bool) -> None:
        self._factors = factors
        self._solves = solves

    def sizes(self, solver: Solver, problem: SolverProblem) -> WorkspaceSizes:
        if not self._factors:
            return WorkspaceSizes(more=4)
        m, n = self._extents(problem)
        kind = CUDA_TYPES[problem.dtype]
        device, host = c_size_t(), c_size_t()
        solver.call(
            *("cusolverDnXgetrf_bufferSize", solver.params, m, n, kind, 0, m, kind),
            *(byref(device), byref(host)),
        )
        return WorkspaceSizes(device.value, host.value, 4)

    def run(
        self,
        solver: Solver,
        problem: SolverProblem,
        buffers: Sequence[int],
        info: int,
        work: LinalgWorkspace,
    ) -> None:
        m, n = self._extents(problem)
        kind = CUDA_TYPES[problem.dtype]
        a, pivots, *b = buffers
        if self._factors:
            arguments = (m, n, kind, a, m, pivots, kind)
            solver.call("cusolverDnXgetrf", solver.params, *arguments, *work, info)
        if self._solves:
            nrhs, trans = problem.sizes[1], problem.options[0]
            sides = (trans, n, nrhs, kind, a, n, pivots, kind, b[0], n)
            # What it says would be in the place of what getrf has said.
            solver.call("cusolverDnXgetrs", solver.params, *sides, work.more)

    def _extents(self, problem: SolverProblem) -> tuple[int, int]:
        n = problem.sizes[0]
        return (n, n) if self._solves else (n, problem.sizes[1])


@final
class _Refined:
    """A system that is solved in a lower precision, and refined."""

    whole = False

    def __init__(self, name: str) -> None:
        self._name = name

    def sizes(self, solver: Solver, problem: SolverProblem) -> WorkspaceSizes:
        nbytes = c_size_t()
        function, pivots = self._function(problem), self._pivots(problem)
        solver.call(
            f"{function}_bufferSize", *self._arguments(problem, _NOTHING, 0), 0, byref(nbytes)
        )
        return WorkspaceSizes(nbytes.value, 0, pivots)

    def run(
        self,
        solver: Solver,
        problem: SolverProblem,
        buffers: Sequence[int],
        info: int,
        work: LinalgWorkspace,
    ) -> None:
        iterations = c_int()
        status = solver.call(
            self._function(problem),
            *self._arguments(problem, buffers, work.more),
            *(work.device, work.nbytes, byref(iterations), info),
            accepts=SINGULAR,
        )
        if status:
            solver.blas.fill(info, 1)

    def _function(self, problem: SolverProblem) -> str:
        precision = ("float32", "tfloat32", "bfloat16", "float16")[problem.options[0]]
        letter = LOWER_PRECISIONS[problem.dtype][precision]
        return f"cusolverDn{LETTERS[problem.dtype]}{letter}{self._name}"

    def _pivots(self, problem: SolverProblem) -> int:
        return 4 * problem.sizes[0] if self._name == "gesv" else 0

    def _arguments(
        self, problem: SolverProblem, buffers: Sequence[int], pivots: int
    ) -> tuple[Any, ...]:
        a, b, x = buffers[:3]
        *m, n, _ = problem.sizes
        rows = m[0] if m else n
        given = (*problem.sizes, a, rows)
        return (*given, b, rows, x, n) if m else (*given, pivots, b, rows, x, n)


@final
class _Triangular:
    """``cublas<t>trsm_64``: from the right, as a row-major matrix is a transpose."""

    whole = False

    def sizes(self, solver: Solver, problem: SolverProblem) -> WorkspaceSizes:
        del solver, problem
        return WorkspaceSizes()

    def run(
        self,
        solver: Solver,
        problem: SolverProblem,
        buffers: Sequence[int],
        info: int,
        work: LinalgWorkspace,
    ) -> None:
        del info, work
        a, b = buffers
        n, nrhs = problem.sizes
        one = solver.scalars.pointer(problem.dtype, _number(problem.dtype, 1.0))
        letter = LETTERS[problem.dtype]
        arguments = (*_triangle(problem), nrhs, n, one, a, n, b, nrhs)
        solver.blas.call(f"cublas{letter}trsm_v2_64", *arguments)


@final
class _StackedFunction:
    """A function that takes all matrices of a stack by pointers.

    Args:
        tables: how many tables of them it takes.
        call: makes the call, given the solver, the problem, buffers, tables and info.
    """

    whole = True

    def __init__(self, tables: int, call: Callable[..., None]) -> None:
        self._tables = tables
        self._call = call

    def sizes(self, solver: Solver, problem: SolverProblem) -> WorkspaceSizes:
        del solver
        return WorkspaceSizes(more=8 * problem.batch * self._tables)

    def run(
        self,
        solver: Solver,
        problem: SolverProblem,
        buffers: Sequence[int],
        info: int,
        work: LinalgWorkspace,
    ) -> None:
        # Pivots come behind the first buffer, as they are; the last one is pointed to again.
        pointed = (0, -1)[: self._tables]
        found = forms(problem)
        tables = []
        for number, at in enumerate(pointed):
            step = found[at].rows * found[at].columns * DTYPES[found[at].dtype].itemsize
            table = work.more + 8 * problem.batch * number
            tables.append(solver.point(table, buffers[at], step, problem.batch))
        self._call(solver, problem, buffers, tables, info)


def _potrf_all(
    solver: Solver, problem: SolverProblem, _buffers: Sequence[int], tables: list[int], info: int
) -> None:
    n, name = problem.sizes[0], f"cusolverDn{LETTERS[problem.dtype]}potrfBatched"
    solver.call(name, _uplo(1), n, tables[0], n, info, problem.batch)


def _getrf_all(
    solver: Solver, problem: SolverProblem, buffers: Sequence[int], tables: list[int], info: int
) -> None:
    n, name = problem.sizes[0], f"cublas{LETTERS[problem.dtype]}getrfBatched"
    solver.blas.call(name, n, tables[0], n, buffers[1], info, problem.batch)


def _getrs_all(
    solver: Solver, problem: SolverProblem, buffers: Sequence[int], tables: list[int], _info: int
) -> None:
    (n, nrhs), (trans,) = problem.sizes, problem.options
    a, b = tables
    _checked(solver, problem, "getrs", trans, n, nrhs, a, n, buffers[1], b, n)


def _gesv_all(
    solver: Solver, problem: SolverProblem, buffers: Sequence[int], tables: list[int], info: int
) -> None:
    _getrf_all(solver, problem, buffers, tables, info)
    _getrs_all(solver, problem, buffers, tables, info)


def _geqrf_all(
    solver: Solver, problem: SolverProblem, _buffers: Sequence[int], tables: list[int], _info: int
) -> None:
    m, n = problem.sizes
    _checked(solver, problem, "geqrf", m, n, tables[0], m, tables[1])


def _trsm_all(
    solver: Solver, problem: SolverProblem, _buffers: Sequence[int], tables: list[int], _info: int
) -> None:
    n, nrhs = problem.sizes
    one = solver.scalars.pointer(problem.dtype, _number(problem.dtype, 1.0))
    name = f"cublas{LETTERS[problem.dtype]}trsmBatched"
    arguments = (*_triangle(problem), nrhs, n, one, tables[0], n, tables[1], nrhs)
    solver.blas.call(name, *arguments, problem.batch)


def _checked(solver: Solver, problem: SolverProblem, routine: str, *arguments: Any) -> None:
    """Call a function that says which argument it refuses, before the batch's size."""
    name = f"cublas{LETTERS[problem.dtype]}{routine}Batched"
    refused = c_int()
    solver.blas.call(name, *arguments, byref(refused), problem.batch)
    if refused.value:
        raise LibraryError(
            f"{name} refuses its argument {-refused.value}",
            library="cublas",
            call=name,
            status=refused.value,
            status_name="illegal argument",
        )


# --- arguments ------------------------------------------------------------------------------


def _uplo(lower: int) -> int:
    return ENUMS["CUBLAS_FILL_MODE_LOWER" if lower else "CUBLAS_FILL_MODE_UPPER"]


def _number(dtype: str, value: float) -> float | tuple[float, float]:
    return (value, 0.0) if dtype in _REAL else value


def _triangle(problem: SolverProblem) -> tuple[int, int, int, int]:
    lower, trans, unit = problem.options
    return _RIGHT, _uplo(lower), trans, unit


def _kinds(problem: SolverProblem) -> tuple[int, int]:
    """The numbers of the matrices' dtype, and of the real one of its precision."""
    return CUDA_TYPES[problem.dtype], CUDA_TYPES[_REAL.get(problem.dtype, problem.dtype)]


def _potrf(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    n, (kind, _) = problem.sizes[0], _kinds(problem)
    return _uplo(1), n, kind, buffers[0], n, kind


def _geqrf(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    (m, n), (kind, _) = problem.sizes, _kinds(problem)
    return m, n, kind, buffers[0], m, kind, buffers[1], kind


def _orgqr(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    m, n, k = problem.sizes
    return m, n, k, buffers[0], m, buffers[1]


def _syevd(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    n, (kind, real) = problem.sizes[0], _kinds(problem)
    vectors, lower = problem.options
    return vectors, _uplo(lower), n, kind, buffers[0], n, real, buffers[1], kind


_BOUND: Final = c_double()
_FOUND: Final = c_int64()


def _syevdx(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    (n, first, last), (kind, real) = problem.sizes, _kinds(problem)
    vectors, lower = problem.options
    matrix = (_uplo(lower), n, kind, buffers[0], n)
    wanted = (byref(_BOUND), byref(_BOUND), first, last, byref(_FOUND))
    return vectors, ENUMS["CUSOLVER_EIG_RANGE_I"], *matrix, *wanted, real, buffers[1], kind


def _syevj(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    n, (vectors, lower) = problem.sizes[0], problem.options
    return vectors, _uplo(lower), n, buffers[0], n, buffers[1]


def _sygvd(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    n, (kind, vectors, lower) = problem.sizes[0], problem.options
    a, b, w = buffers[:3]
    return kind, vectors, _uplo(lower), n, a, n, b, n, w


def _geev(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    n, vectors, (kind, _) = problem.sizes[0], problem.options[0], _kinds(problem)
    a, w, *v = (*buffers, 0)
    left = (kind, 0, n)
    return 0, vectors, n, kind, a, n, kind, w, *left, kind, v[0], n, kind


def _gesvd(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    (m, n), (kind, real) = problem.sizes, _kinds(problem)
    a, s, u, v = (*buffers, 0, 0)[:4]
    job = (_ALL if square_u(problem) else _SOME) if problem.options[0] else _NONE
    return job, job, m, n, kind, a, m, real, s, kind, u, m, kind, v, n, kind


def _gesvdp(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    (m, n), (kind, real) = problem.sizes, _kinds(problem)
    a, s, u, v = (*buffers, 0, 0)[:4]
    wanted = problem.options[0], int(not square_u(problem))
    return *wanted, m, n, kind, a, m, real, s, kind, u, m, kind, v, n, kind


def _gesvdr(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    (m, n, k, more), (kind, real) = problem.sizes, _kinds(problem)
    a, s, u, v = buffers
    sizes = (m, n, k, more, problem.options[1])
    return _SOME, _SOME, *sizes, kind, a, m, real, s, kind, u, m, kind, v, n, kind


def _gesvdj(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    (m, n), vectors = problem.sizes, problem.options[0]
    a, s, u, v = (*buffers, 0, 0)[:4]
    return vectors, int(not square_u(problem)), m, n, a, m, s, u, m, v, n


def _gesvdj_all(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    vectors, _, *rest = _gesvdj(problem, buffers)
    return vectors, *rest


def _gesvda(problem: SolverProblem, buffers: Sequence[int]) -> tuple[Any, ...]:
    (m, n, k), (a, s, u, v) = problem.sizes, buffers[:4]
    return 1, k, m, n, a, m, m * n, s, k, u, m, m * k, v, n, n * k


def _gesvda_tails(
    _solver: Solver, problem: SolverProblem
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return (problem.batch,), ((c_double * problem.batch)(), problem.batch)


_GESVD: Final = _Int64Function("Xgesvd", _gesvd)

_ONE_BY_ONE: Final[dict[str, SolverRoutine]] = {
    "potrf": _Int64Function("Xpotrf", _potrf),
    "getrf": _Lu(factors=True, solves=False),
    "getrs": _Lu(factors=False, solves=True),
    "gesv": _Lu(factors=True, solves=True),
    "irs_gesv": _Refined("gesv"),
    "irs_gels": _Refined("gels"),
    "trsm": _Triangular(),
    "geqrf": _Int64Function("Xgeqrf", _geqrf),
    "orgqr": _ByLetter("orgqr", _orgqr),
    "gesvd": _GESVD,
    "gesvdj": _ByLetter(
        "gesvdj", _gesvdj, lambda solver, _problem: ((solver.gesvdj,), (solver.gesvdj,))
    ),
    "gesvdp": _PolarSvd(_GESVD),
    "gesvdr": _Int64Function("Xgesvdr", _gesvdr),
    "gesvda": _ByLetter("gesvdaStridedBatched", _gesvda, _gesvda_tails, whole=True),
    "syevd": _Int64Function("Xsyevd", _syevd),
    "syevj": _ByLetter(
        "syevj", _syevj, lambda solver, _problem: ((solver.syevj,), (solver.syevj,))
    ),
    "syevdx": _Int64Function("Xsyevdx", _syevdx),
    "sygvd": _ByLetter("sygvd", _sygvd),
    "geev": _Int64Function("Xgeev", _geev),
}

_AT_ONCE: Final[dict[str, SolverRoutine]] = {
    "potrf": _StackedFunction(1, _potrf_all),
    "getrf": _StackedFunction(1, _getrf_all),
    "getrs": _StackedFunction(2, _getrs_all),
    "gesv": _StackedFunction(2, _gesv_all),
    "trsm": _StackedFunction(2, _trsm_all),
    "geqrf": _StackedFunction(2, _geqrf_all),
    "gesvdj": _ByLetter(
        "gesvdjBatched",
        _gesvdj_all,
        lambda solver, problem: ((solver.gesvdj, problem.batch),) * 2,
        whole=True,
    ),
    "syevj": _ByLetter(
        "syevjBatched",
        _syevj,
        lambda solver, problem: ((solver.syevj, problem.batch),) * 2,
        whole=True,
    ),
}


_SMALL: Final = Small()


def routine_of(problem: SolverProblem) -> SolverRoutine:
    """Return the routine that runs a problem."""
    if problem.batched and room_of(problem):
        return _SMALL
    table = _AT_ONCE if problem.batched else _ONE_BY_ONE
    found = table.get(problem.routine)
    if found is None:
        raise Unsupported(f"cuSOLVER has no {problem.routine} in the form of SciPy's results")
    return found
