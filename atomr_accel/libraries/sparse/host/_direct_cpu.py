"""Direct solvers on the CPU: SciPy's SuperLU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from ...._dtypes import DTYPES
from ..wire._direct import Drop, Factorize, SolveBy, SparseSystem
from ._cpu import matrix_at, taken_as
from ._direct_failures import not_factorized, require_regular

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream

_ORDERS: Final = {"none": "NATURAL", "amd": "MMD_AT_PLUS_A"}
"""SuperLU's names for orders of columns; it has COLAMD for others."""
_TRANS: Final = ("N", "T", "H")


class _CpuFactors(NamedTuple):
    system: SparseSystem
    matrix: Any
    solver: Any


@final
class CpuDirect:
    """Executes the messages of direct solvers."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self._factors: dict[int, _CpuFactors] = {}
        self.handlers: Final = {
            Drop: self._drop,
            Factorize: self._factorize,
            SolveBy: self._solve,
        }

    def close(self) -> None:
        """Let the factors go."""
        self._factors.clear()

    def _drop(self, message: Drop) -> None:
        self._factors.pop(message.number, None)

    def _factorize(self, message: Factorize) -> None:
        self._context.check()
        system = message.system
        self._factors.pop(message.number, None)
        if not system.matrix.shape[0]:
            return
        stored = matrix_at(self._context, system.matrix, message.parts)
        if not stored.has_canonical_format:
            raise ValueError("a has indices that are not sorted, or there twice")
        matrix = _whole(system, stored)
        solver = _factorized(system, matrix)
        self._factors[message.number] = _CpuFactors(system, matrix, solver)

    def _solve(self, message: SolveBy) -> None:
        self._context.check()
        if not message.n or not message.count:
            return
        factors = self._factors.get(message.number)
        if factors is None:
            raise not_factorized()
        system, matrix, solver = factors
        shape = (message.count, system.matrix.shape[0])
        b, x = (
            self._context.array(address, shape, DTYPES[system.matrix.dtype])
            for address in (message.b, message.x)
        )
        taken = taken_as(matrix, message.trans)
        way = _TRANS[message.trans]
        made = solver.solve(b.T, way)
        for _ in range(system.refinement):
            made = made + solver.solve(b.T - taken @ made, way)
        x[...] = made.T


def _whole(system: SparseSystem, stored: Any) -> Any:
    """The matrix, of which a triangle may be stored."""
    if system.kind == "general" or system.triangle == "full":
        return stored.tocsc()
    part = scipy.sparse.tril(stored) if system.triangle == "lower" else scipy.sparse.triu(stored)
    other = part.T if system.kind == "symmetric" else part.conj().T
    return (part + other - scipy.sparse.diags_array(part.diagonal())).tocsc()


def _factorized(system: SparseSystem, matrix: Any) -> Any:
    """Return SuperLU's factors.

    Raises:
        LinAlgError: a pivot is zero, or a matrix of kind "spd" is not positive definite.
    """
    definite = system.kind == "spd"
    options: dict[str, Any] = {"permc_spec": _ORDERS.get(system.reordering, "COLAMD")}
    if definite:
        options |= {
            "permc_spec": _ORDERS.get(system.reordering, "MMD_AT_PLUS_A"),
            "diag_pivot_thresh": 0.0,
            "options": {"SymmetricMode": True},
        }
    elif system.threshold is not None:
        options["diag_pivot_thresh"] = system.threshold
    try:
        solver = scipy.sparse.linalg.splu(matrix, **options)
    except RuntimeError:  # by which SuperLU says that it is exactly singular
        require_regular(1)
        raise
    pivots = solver.U.diagonal()
    small = np.abs(pivots) < (system.epsilon or 0.0)
    if definite:
        small |= ~(pivots.real > 0)
        small |= (solver.perm_r != solver.perm_c).any()
    require_regular(int(small.sum()))
    return solver
