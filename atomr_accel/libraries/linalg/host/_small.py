"""Kernels of our own for stacks of small matrices: a warp for each."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, final

from ....executors.cuda_kernels import KernelArguments
from ....executors.device_code import CudaSource
from ._sizes import LinalgWorkspace, WorkspaceSizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..wire._messages import SolverProblem
    from ._cuda import Solver

SOURCE: Final = CudaSource(__package__, "small.cu")
THREADS: Final = 32

TYPES: Final = {
    "float32": "float",
    "float64": "double",
    "complex64": "complex_of<float>",
    "complex128": "complex_of<double>",
}

_MOST: Final = {"potrf": 32, "getrf": 32, "gesv": 32, "geqrf": 64, "orgqr": 64}
"""Rows and columns that a kernel takes at most, as long as they have room in shared memory."""

_WIDEST: Final = {"complex128": 32}
_LEAST: Final = 8


def room_of(problem: SolverProblem) -> int:
    """For how many rows and columns a kernel of these matrices has room; 0 if there is none."""
    extent = max(problem.extents)
    most = min(_MOST.get(problem.routine, 0), _WIDEST.get(problem.dtype, 64))
    return max(_LEAST, 1 << (extent - 1).bit_length()) if 0 < extent <= most else 0


@final
class Small:
    """A kernel that takes a whole stack."""

    whole = True

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
        del work
        name = f"{problem.routine}<{TYPES[problem.dtype]}, {room_of(problem)}>"
        # Of a system the pivots are nobody's business, and its factors neither.
        given = (buffers[0], buffers[-1]) if problem.routine == "gesv" else buffers
        numbers = (*given, info, problem.batch, *problem.sizes, *problem.options)
        arguments = KernelArguments(struct.pack(f"{len(numbers)}Q", *numbers))
        kernels = solver.kernels
        kernels.prepare_blocks(kernels.function(name), problem.batch, THREADS, 0, arguments)()
