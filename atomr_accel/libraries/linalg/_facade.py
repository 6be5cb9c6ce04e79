"""``device.linalg``: linear algebra under NumPy's and SciPy's names."""

from __future__ import annotations

from typing import final

from .._op import D
from .._workspaces import WorkspaceStatistics
from ._functions import Functions
from ._steps import LANE

__all__ = ["LANE", "Linalg"]


@final
class Linalg(Functions[D]):
    """Systems of equations, factorizations, singular values and eigenvalues.

    cuSOLVER on CUDA, LAPACK by SciPy on the CPU. Names, arguments, shapes and results are those of
    ``numpy.linalg``, and of ``scipy.linalg`` for what only that has. Matrices are float32, float64,
    complex64 or complex128; bool and integers count as float64. Leading dimensions count
    matrices. Arguments are refs, any views of them, or expressions, and are never changed.

    **Matrices that fail.** A matrix may be singular, or an iteration may not converge, which only
    the device finds out. The call that is awaited raises ``LinAlgError`` then, with the matrix's
    index. Meanwhile others of the lane go on, and nothing waits: what is wrong is read when the
    call is done. In its results that matrix is NaN, and the other matrices of the stack are as
    they should be. A batch raises as its block is left; a recording's replay raises nothing, so
    look for NaN.

    All methods raise:
        LinAlgError: a matrix failed. For wrong shapes, ``numpy.linalg.LinAlgError``, at once, of
            which the other is a kind; both are ValueErrors.
        TypeError: dtypes that are not solved in, an argument that is no array.
        ValueError: shapes and options that do not fit, a ref of another device.
        GpuRefStale: a ref that may not be read.
        OutOfMemory: no room for results or workspace.
        LibraryError: cuSOLVER or cuBLAS refuses.
        Unsupported: the vendor's library has no such function; or, in a recording, one that waits
            for the device, as those for singular values, eigenvalues and ``refine`` do.
    """

    traced = True

    def statistics(self) -> WorkspaceStatistics:
        """A snapshot of what is kept."""
        return self._known.workspaces.statistics(self._device)
