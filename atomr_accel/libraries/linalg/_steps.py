"""The steps of a call: problems for the solver, products, and expressions around them.

Vendors are column-major, and their routines overwrite their arguments. A problem therefore runs on
a copy. The copy holds either the matrix, which the routine sees transposed, or its transpose, which
the routine sees as the matrix. Most problems can be solved with the transpose, so that no other
data moves. Otherwise the copy itself transposes, which takes no extra time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from ..._dtypes import DTYPES, NAMES
from ...arrays.expressions import Operand, cast, constant, index
from ...arrays.expressions.expression import where
from ...ops import (
    D,
    LaneSpec,
    Request,
    Submission,
    Workspaces,
    copying,
    require_int32,
)
from ...wire.recent import Recent
from ..array.steps import LAUNCHED, ArrayPart, CallSteps, MergeRule
from .wire._messages import Compute, ComputeAll, MeasureWorkspace, Require, SolverProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...arrays import GpuRef
    from ...memory import Epoch
    from ...ops import AsRequests, DeviceView, Preparer
    from ..array.facade import ArrayFunctions
    from ..blas.facade import Blas
    from ..cub.facade import Cub

T = TypeVar("T")

LANE: Final = LaneSpec(
    "solver",
    {
        "cpu": "atomr_accel.libraries.linalg.host._cpu:CpuSolver",
        "cuda": "atomr_accel.libraries.linalg.host._cuda:CudaSolver",
    },
    max_streams=4,
    own_thread=True,
)
"""The solver's lane. It has its own thread, because some routines read results of the device before
they return."""

_SOLVED: Final = MergeRule(
    LANE,
    "linalg.several",
    LAUNCHED.lanes | {LANE.name},
    LAUNCHED.kinds | {Compute, Require},
    ComputeAll,
)
"""Problems and the expressions around them, which go to the lane of the problem in one message."""

INT32: Final = DTYPES["int32"]
INT64: Final = DTYPES["int64"]
FLOAT64: Final = DTYPES["float64"]
DTYPES_OF: Final = ("float32", "float64", "complex64", "complex128")
REAL_OF: Final = {"complex64": DTYPES["float32"], "complex128": FLOAT64}
COMPLEX_OF: Final = {"float32": DTYPES["complex64"], "float64": DTYPES["complex128"]}

_SMALL: Final = 16 << 20
"""Bytes of workspace up to which calls may run side by side."""

_MOST_PROBLEMS: Final = 2048
"""Largest number of problems whose workspace is known."""


class SolverStack(NamedTuple):
    """Matrices over leading dimensions.

    Attributes:
        ref: their buffer, of one of the dtypes that the solver takes.
        lead: the leading dimensions.
        batch: how many there are.
        m: rows of each.
        n: columns.
    """

    ref: GpuRef
    lead: tuple[int, ...]
    batch: int
    m: int
    n: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the matrices."""
        return self.ref.dtype


class LinalgState(NamedTuple):
    """The state of the facade, shared by all its copies.

    Attributes:
        blas: makes requests for products.
        work: bytes of workspace by problem, with the generation whose host reported them.
    """

    blas: Blas[AsRequests]
    work: Recent[SolverProblem, tuple[Epoch, int]]
    workspaces: Workspaces


class LinalgSteps(CallSteps):
    """The steps of a call of ``device.linalg``, while it is prepared."""

    def __init__(
        self, preparer: Preparer, cub: Cub[AsRequests], known: LinalgState, lane: LaneSpec = LANE
    ) -> None:
        super().__init__(preparer, cub, lane, (LAUNCHED, _SOLVED))
        self._known: Final = known

    # --- arguments ------------------------------------------------------------------------

    def stack(self, x: Operand, name: str = "a", *, square: bool = False) -> SolverStack:
        """Matrices that the caller gave; whole numbers are float64."""
        ref = self.cast(self.ref(x, name), solved_in(x.dtype))
        if len(ref.shape) < 2:
            raise np.linalg.LinAlgError(
                f"{name} has shape {ref.shape}, but must be at least two-dimensional"
            )
        *lead, m, n = ref.shape
        if square and m != n:
            raise np.linalg.LinAlgError(f"{name} must hold square matrices, not shape {ref.shape}")
        return SolverStack(ref, tuple(lead), math.prod(lead), m, n)

    def joint(self, x: Operand, y: Operand) -> tuple[Operand, Operand]:
        """Two arguments in the dtype that NumPy computes both in."""
        dtype = DTYPES[np.result_type(solved_in(x.dtype), solved_in(y.dtype)).name]
        return self.cast(self.ref(x, "a"), dtype), self.cast(self.ref(y, "b"), dtype)

    # --- copies ---------------------------------------------------------------------------

    def fresh(self, ref: GpuRef) -> GpuRef:
        """A copy, C-contiguous, which the solver may overwrite."""
        return self.do(copying(ref, None))

    def adjoint(self, ref: GpuRef) -> Operand:
        """The conjugate transpose."""
        return ref.mT.conj() if ref.dtype.kind == "c" else ref.mT

    def eye(self, stack: SolverStack, n: int) -> GpuRef:
        """Identities, as many as there are matrices."""
        made = self.evaluate(cast(index((n, n), 0) == index((n, n), 1), stack.dtype))
        return self.fresh(made.broadcast_to((*stack.lead, n, n)))

    # --- problems -------------------------------------------------------------------------

    def solve(
        self,
        routine: str,
        stack: SolverStack,
        sizes: tuple[int, ...],
        buffers: tuple[GpuRef, ...],
        *options: int,
        reads: int = 0,
        failure: str = "",
    ) -> GpuRef:
        """Submit a routine of the solver.

        The first ``reads`` of the buffers are only read. ``failure`` is the error message if
        LAPACK's info is not 0, empty if that is not an error.

        Returns:
            LAPACK's info: int32, of the shape of the leading dimensions.
        """
        home = self.preparer.home
        require_int32(home, f"linalg: {routine}", (stack.batch,))
        problem = SolverProblem(routine, NAMES[stack.dtype], stack.batch, sizes, options)
        work = self._work(problem)
        info = self.output(stack.lead, INT32)
        written = [ref.block for ref in (*buffers[reads:], info)]
        workspace = 0
        if work:
            block = self._known.workspaces.obtain(self.preparer, work)
            workspace = block.address
            written.append(block)
        message = Compute(
            problem,
            tuple([ref.block.address for ref in buffers]),
            info.block.address,
            workspace,
            work,
            failure,
        )
        made: Submission[None] = Submission(
            message, tuple([ref.block for ref in buffers[:reads]]), tuple(written)
        )
        self._add(Request(LANE, f"linalg.{routine}", lambda _preparer: made), made)
        return info

    def require(self, info: Operand, problem: SolverProblem, failure: str) -> GpuRef:
        """Raise where ``info`` is not 0, once that is known.

        Returns:
            ``info``, as ``solve`` gives it.
        """
        made = self.evaluate(cast(info, INT32))
        message = Require(problem, made.block.address, failure)
        sent: Submission[None] = Submission(message, (made.block,), ())
        self._add(Request(LANE, f"linalg.{problem.routine}", lambda _preparer: sent), sent)
        return made

    def _work(self, problem: SolverProblem) -> int:
        """Return the bytes of workspace of a problem, or 0 if they are unknown, as in a batch."""
        epoch = self.preparer.memory.epoch
        known = self._known.work.get(problem)
        if known is not None:
            if known[0] is epoch:
                return known[1]
            self._known.work.discount()
        made: Submission[int] = Submission(MeasureWorkspace(problem), (), ())
        request: Request[int] = Request(LANE, "linalg.plan", lambda _preparer: made, problem)
        answer = self.preparer.perform(request)
        if answer is None:
            return 0
        if epoch is not None:
            self._known.work.add(problem, (epoch, answer))
        return answer

    def whole(self, info: GpuRef, x: Operand) -> Operand:
        """Return the result of a routine, with NaN for matrices that failed."""
        extra = len(x.shape) - len(info.shape)
        failed = info.reshape(*info.shape, *([1] * extra)) != 0
        return where(failed, constant(np.nan, x.dtype), x)

    def result_of(self, info: GpuRef, x: Operand) -> GpuRef:
        """``whole`` of that, as a new buffer."""
        return self.evaluate(self.whole(info, x))

    # --- products -------------------------------------------------------------------------

    def matmul(self, a: GpuRef, b: GpuRef, *, trans_a: int = 0, trans_b: int = 0) -> GpuRef:
        """The product of two stacks of matrices; 2 takes the conjugate transpose of one."""
        blas = self._known.blas
        return self.do(blas.gemm(a, b, trans_a=trans_a, trans_b=trans_b))


class LinalgPart(ArrayPart[D]):
    """Base of the parts of ``device.linalg``."""

    def __init__(
        self, device: DeviceView, cub: Cub[Any], blas: Blas[Any], array: ArrayFunctions[Any]
    ) -> None:
        super().__init__(device, cub)
        self._array: ArrayFunctions[AsRequests] = array.as_requests(device)
        described: Blas[AsRequests] = blas.as_requests(device)
        self._known = LinalgState(
            described,
            Recent(_MOST_PROBLEMS, name="sizes"),
            Workspaces(LANE.max_streams, _SMALL),
        )
        self.caches: tuple[Recent[Any, Any], ...] = (self._known.work,)

    def _calls(
        self, name: str, build: Callable[[LinalgSteps], T], lane: LaneSpec = LANE
    ) -> Request[T]:
        """A request of several steps.

        Args:
            name: of the call.
            build: adds them.
            lane: which executes the last of them; the solver's has all around its problems.
        """
        cub, known = self._cub, self._known

        def prepare(preparer: Preparer) -> Submission[T]:
            steps = LinalgSteps(preparer, cub, known, lane)
            return steps.result(build(steps))

        return Request(lane, f"linalg.{name}", prepare)


def solved_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which numbers are solved: float64 for whole ones."""
    if NAMES[dtype] in DTYPES_OF:
        return dtype
    if dtype.kind in "biu":
        return FLOAT64
    raise TypeError(f"array type {NAMES[dtype]} is unsupported in linalg: convert it to float32")


def real_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The real dtype of the same precision."""
    return REAL_OF.get(dtype.name, dtype)


def triangle(x: Operand, *, lower: bool) -> Operand:
    """Matrices with zeros outside of a triangle."""
    row, column = index(x.shape[-2:], 0), index(x.shape[-2:], 1)
    return where(row >= column if lower else row <= column, x, constant(0, x.dtype))
