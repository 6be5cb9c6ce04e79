"""``device.linalg``: linear algebra under NumPy's and SciPy's names."""

from __future__ import annotations

from typing import final

from ...ops import D, WorkspaceStatistics
from ._banded import BandedFunctions
from ._steps import LANE

__all__ = ["LANE", "Linalg"]


@final
class Linalg(BandedFunctions[D]):
    """Systems of equations, factorizations, singular values and eigenvalues.

    cuSOLVER on CUDA, LAPACK by SciPy on the CPU. Names, arguments, shapes and results are those of
    ``numpy.linalg``, and of ``scipy.linalg`` for functions that only it has. Matrices are float32,
    float64, complex64 or complex128; bool and integers count as float64. Leading dimensions count
    matrices. Arguments are refs, any views of them, or expressions, and are never changed. Results
    are new buffers: only ``multi_dot`` has ``out=``.

    **Matrices that fail.** A matrix may be singular, or an iteration may not converge, which only
    the device can detect. The awaited call then raises ``LinAlgError`` with the matrix's index.
    Other calls of the lane continue meanwhile: the failure is read when the call is done. In the
    results that matrix is NaN, and the other matrices of the stack are correct. A batch raises when
    its block ends. A replay of a recording raises nothing, so check its results for NaN.

    All methods raise:
        LinAlgError: a matrix failed. Wrong shapes raise its base class ``numpy.linalg.LinAlgError``
            at once. Both are ValueErrors.
        TypeError: an unsupported dtype, an argument that is not an array.
        ValueError: shapes and options that do not fit, a ref of another device.
        GpuRefStale: a ref that may not be read.
        OutOfMemory: no room for results or workspace.
        LibraryError: cuSOLVER or cuBLAS refuses.
        Unsupported: the vendor's library has no such function; or, in a recording, a function that
            waits for the device, as those for singular values, eigenvalues and ``refine`` do.
    """

    templated = True

    def statistics(self) -> WorkspaceStatistics:
        """Return the workspaces of the device."""
        return self._known.workspaces.statistics(self.home)
