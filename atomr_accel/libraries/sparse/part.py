"""Checks, scratch memory and calls of several steps for all parts of ``device.sparse``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from ..._dtypes import NAMES
from ..._errors import Unsupported, said_of
from ...arrays import GpuRef, ref_error
from ...memory import NotContiguous
from ...ops import ARRAY_LANE as ARRAYS
from ...ops import (
    AsRequests,
    D,
    Facade,
    LaneSpec,
    Request,
    Submission,
    Workspaces,
    WorkspaceStatistics,
    require_dtype,
    require_readable,
    require_writable,
)
from ...wire.recent import Recent
from ..array.steps import CallSteps
from ._ell import EllRef
from .array import SparseRef
from .wire._messages import DenseMatrix, Matrix, MeasureSparse, RunSparse, SparseSpec, encode
from .wire._vectors import SINGLE_OR_DOUBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from ...memory import Block, Epoch
    from ...ops import DeviceView, Preparer
    from ..array.facade import ArrayFunctions
    from ..cub.facade import Cub
    from .wire._messages import Scalar

T = TypeVar("T")

_EXECUTORS: Final = {
    "cpu": "atomr_accel.libraries.sparse.host._cpu:CpuSparse",
    "cuda": "atomr_accel.libraries.sparse.host._cuda:CudaSparse",
}
LANE: Final = LaneSpec("sparse", _EXECUTORS)
WAITING: Final = LaneSpec("sparse-waits", _EXECUTORS, own_thread=True)
"""Runs what waits for the device in the middle of it."""

FLOATS: Final = ("float16", "bfloat16", *SINGLE_OR_DOUBLE)

_SMALL: Final = 16 << 20
_MOST_MEASURED: Final = 1024


class MeasuredScratch(NamedTuple):
    """Bytes of scratch memory that a call needs, as the host of that generation reported them."""

    epoch: Epoch | None
    nbytes: int


class SparsePart(Facade[D]):
    """Base of the parts of ``device.sparse``."""

    def __init__(self, device: DeviceView, array: ArrayFunctions[Any], cub: Cub[Any]) -> None:
        self.home = self._home = device
        self._array: ArrayFunctions[AsRequests] = array.as_requests(device)
        self._cub: Cub[AsRequests] = cub.as_requests(device)
        self._workspaces = Workspaces(LANE.max_streams, _SMALL)
        self._measured: Recent[bytes, MeasuredScratch] = Recent(_MOST_MEASURED, name="sizes")
        self.caches: tuple[Recent[Any, Any], ...] = (self._measured,)
        self._told: WeakKeyDictionary[DeviceView, set[bytes]] = WeakKeyDictionary()

    def statistics(self) -> WorkspaceStatistics:
        """Return the workspaces of the device."""
        return self._workspaces.statistics(self.home)

    # --- calls ------------------------------------------------------------------------------

    def _steps(self, name: str, build: Callable[[CallSteps], T]) -> Request[T]:
        """A request of several steps of ``device.array``."""

        def prepare(preparer: Preparer) -> Submission[T]:
            steps = CallSteps(preparer, self._cub)
            return steps.result(build(steps))

        return Request(ARRAYS, f"sparse.{name}", prepare)

    def _call(
        self,
        preparer: Preparer,
        spec: SparseSpec,
        operands: Sequence[Block],
        written: Sequence[Block],
        result: T,
        *,
        alpha: Scalar = 1.0,
        beta: Scalar = 0.0,
    ) -> Submission[T]:
        """Return the submission of a call, with the scratch memory that it needs."""
        encoded = encode(spec)
        work = self._measure(preparer, encoded)
        workspace = self._workspaces.obtain(preparer, work) if work else None
        message = RunSparse(
            encoded,
            tuple(block.address for block in operands),
            alpha,
            beta,
            workspace.address if workspace is not None else 0,
            work,
        )
        writes = [*written, *([] if workspace is None else [workspace])]
        return Submission(message, tuple(operands), tuple(writes), result)

    def _measure(self, preparer: Preparer, encoded: bytes) -> int:
        """Bytes of scratch memory; 0 where a batch has no answer yet."""
        epoch = preparer.memory.epoch
        known = self._measured.get(encoded)
        if known is not None:
            if known.epoch is epoch:
                return known.nbytes
            self._measured.discount()
        message = MeasureSparse(encoded)
        measure: Request[int] = Request(
            LANE, "sparse.measure", lambda _preparer: Submission(message, (), ()), encoded
        )
        home = preparer.home
        if home is self._home:
            answer = preparer.perform(measure)
            assert answer is not None
        else:
            # It has no answer before it ends, so the executor has memory of its own for it.
            told = self._told.setdefault(home, set())
            if encoded not in told:
                told.add(encoded)
                preparer.perform(measure)
            measured = self._measured  # not self, which would keep the batch that it is part of
            preparer.depends(lambda: measured.get(encoded) is None)
            return 0
        self._measured.add(encoded, MeasuredScratch(epoch, answer))
        return answer

    # --- operands -----------------------------------------------------------------------------

    def _matrix(
        self,
        preparer: Preparer,
        a: SparseRef | EllRef,
        name: str,
        formats: Sequence[str],
        dtypes: Sequence[str] = SINGLE_OR_DOUBLE,
    ) -> tuple[Matrix, list[Block]]:
        """Return the description of a sparse operand, and the blocks of its parts.

        Raises:
            TypeError: not a sparse matrix, or a format or dtype that the call does not take.
            GpuRefStale: a part is of an older generation, or freed.
        """
        if type(a) is not EllRef or a.format not in formats:
            require_sparse(a, name)
        if a.format not in formats:
            one = formats[0]
            raise TypeError(
                f"{name} is {a.format}, which this call does not take, only {_any_of(formats)}; "
                f"convert it: await device.sparse.to{one}(...)"
            )
        dtype = NAMES[a.data.dtype]
        if dtype not in dtypes:
            raise TypeError(f"{name} is {dtype}; this call takes {_any_of(dtypes)}")
        names = ("major", "indices", "data")
        blocks = [
            require_readable(preparer.stand_in(part), preparer.memory, f"{name}.{what}")
            for part, what in zip(a.parts, names[-len(a.parts) :], strict=True)
        ]
        if isinstance(a, EllRef):
            return _ell(a, dtype), [*blocks[: 3 - len(blocks)], *blocks]
        nnz = a.data.shape[0]
        matrix = Matrix(a.format, a.shape, nnz, NAMES[a.indices.dtype], dtype, a.blocksize)
        return matrix, blocks

    def _vector(self, preparer: Preparer, x: GpuRef, a: SparseRef, name: str) -> Block:
        """A dense operand of the matrix's dtype, without gaps."""
        block = require_readable(x, preparer.memory, name)
        require_dtype(x, a.dtype, name, "the matrix")
        return block

    def _require_ref(self, ref: object, name: str) -> None:
        """Require a dense ref."""
        if not isinstance(ref, GpuRef):
            raise ref_error(ref, self.home.memory, name)

    def _refuse_unsteady(self, what: str, instead: str) -> None:
        """Refuse what adds up in an order that depends on time, where nothing may."""
        if self.home.deterministic:
            raise Unsupported(
                f"{what}: cuSPARSE adds up in an order that depends on time, and the device was "
                f"opened with deterministic=True; {instead}"
            )


def _ell(a: EllRef, dtype: str) -> Matrix:
    """A matrix with rows of equal length."""
    index = NAMES[a.indices.dtype]
    if a.format == "blocked-ell":
        return Matrix(a.format, a.shape, a.indices.size, index, dtype, (a.size, a.size))
    return Matrix(a.format, a.shape, a.nnz, index, dtype, (a.size, 1), a.data.size)


def require_sparse(a: object, name: str) -> None:
    """Require a sparse matrix of a device."""
    if type(a) is not SparseRef:
        raise TypeError(
            f"{name} must be a SparseRef, as device.sparse makes them, not {said_of(a)}"
        )


def laid(ref: GpuRef, name: str) -> DenseMatrix:
    """Return the layout of a dense operand.

    Raises:
        ValueError: it has neither one dimension nor two.
        NotContiguous: rows and columns both have gaps.
    """
    if ref.ndim == 1 and ref.contiguous:
        return DenseMatrix(ref.shape)
    if ref.ndim == 2:
        rows, columns = ref.shape
        down, across = (step // ref.dtype.itemsize for step in ref.strides)
        if ref.contiguous:
            return DenseMatrix(ref.shape, by_rows=True, ld=max(columns, 1))
        if across == 1 and down >= columns:
            return DenseMatrix(ref.shape, by_rows=True, ld=down)
        if down == 1 and across >= rows:
            return DenseMatrix(ref.shape, by_rows=False, ld=across)
    elif ref.ndim != 1:
        raise ValueError(f"{name} must have one or two dimensions, not shape {ref.shape}")
    raise NotContiguous(f"{name} must have rows or columns without gaps: {ref!r}; copy it first")


def place(ref: GpuRef, preparer: Preparer, name: str, *, writable: bool = False) -> Block:
    """The block of a dense operand that may lie by columns."""
    check: Callable[..., Block] = require_writable if writable else require_readable
    return check(ref, preparer.memory, name, strided=True)


def taken_as(operation: int, dtype: np.dtype[Any]) -> int:
    """Return the transposition for the vendor, which has no conjugate transpose of real numbers."""
    return operation if dtype.kind == "c" else min(operation, 1)


def _any_of(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}" if len(names) > 1 else names[0]
