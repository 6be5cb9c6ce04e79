"""Messages of the solver lane: LAPACK's routines, over stacks of matrices.

Matrices are column-major without gaps, as for the vendor and LAPACK, and follow one another. The
program makes such stacks. A row-major matrix is the transpose of a column-major one, and most
problems are stated for the transpose. Otherwise kernels of the array lane make a copy.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from ....wire import Address, Message
from ...array.wire.several import Step

BATCHED: Final = {
    "geqrf": 64,
    "gesv": 128,
    "gesvdj": 32,
    "getrf": 128,
    "getrs": 128,
    "orgqr": 64,
    "potrf": 128,
    "syevj": 32,
    "trsm": 128,
}
"""Up to which size a stack goes to a function that takes all of it at once. Those of the Jacobi
method take no larger ones; for the others one matrix after the other keeps a device busy then."""

_NO_ROOM: Final = {("orgqr", "complex128"): 32}
"""Smaller limits of some routines and dtypes."""

_RECTANGULAR: Final = frozenset(("geqrf", "gesvdj", "getrf", "orgqr"))
"""Routines of ``BATCHED`` with two sizes; the second size of the others counts right-hand sides."""


NOT_FINITE: Final = -1000
"""Replacement of LAPACK's info for a matrix with NaN or infinity; LAPACK has no such number."""


class SolverProblem(msgspec.Struct, frozen=True, array_like=True):
    """A routine with everything but addresses; equal ones need as much workspace.

    Attributes:
        routine: LAPACK's name, without the type's letter. ``orgqr`` is ``ungqr`` as well.
        dtype: of the matrices, by name.
        batch: how many.
        sizes: as the routine's arguments come: m, n, k.
        options: likewise, numbers: ``uplo`` is 1 for the lower triangle; ``trans`` is 0, 1 or 2.
    """

    routine: str
    dtype: str
    batch: int
    sizes: tuple[int, ...]
    options: tuple[int, ...] = ()

    @property
    def extents(self) -> tuple[int, int]:
        """Rows and columns of each matrix."""
        return self.sizes[0], self.sizes[1] if self.routine in _RECTANGULAR else self.sizes[0]

    @property
    def batched(self) -> bool:
        """True if one call takes the whole stack; pivots of LU are then int32, otherwise int64."""
        m, n = self.extents
        if self.batch < 2 or (self.routine == "getrf" and m != n):
            return False
        most = BATCHED.get(self.routine, 0)
        return max(m, n) <= _NO_ROOM.get((self.routine, self.dtype), most)


class MeasureWorkspace(Message, frozen=True):
    """Ask how many bytes of workspace on the device a problem takes."""

    returns: ClassVar[Any] = int

    problem: SolverProblem


class Compute(Message, frozen=True):
    """Execute a problem.

    Attributes:
        problem: what.
        buffers: addresses of its stacks, in the order of the routine's arguments.
        info: address of an int32 for each matrix: 0, or what LAPACK says.
        workspace: address of scratch memory.
        work: bytes of it; 0 where the program does not know how much it takes.
        failure: what ``LinAlgError`` says where ``info`` is not 0; empty: nothing is wrong then.
    """

    problem: SolverProblem
    buffers: tuple[Address, ...]
    info: Address
    workspace: Address
    work: int
    failure: str


class Require(Message, frozen=True):
    """Raise ``LinAlgError`` if the program found matrices invalid.

    Attributes:
        problem: the problem of the matrices.
        info: address of an int32 for each matrix, 0 for a valid one.
        failure: the error message.
    """

    problem: SolverProblem
    info: Address
    failure: str


class ComputeAll(Message, frozen=True):
    """Problems and the steps around them, one after the other, on one stream.

    Attributes:
        steps: the same messages as when sent alone, including those of the array lane.
    """

    steps: tuple[Step | Compute | Require, ...]
