"""The solver lane on CUDA: cuSOLVER, and cuBLAS for stacks of small matrices."""

from __future__ import annotations

import struct
from ctypes import addressof, byref, c_int32, c_void_p, create_string_buffer
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import KernelArguments, Kernels
from ....executors.numbers import Scalars
from ....executors.vendor import VendorLibrary, undone_on_error
from ....wire.interface import Later
from ....wire.recent import Recent
from ...array.host.cuda import CudaArrayExecutor
from ...array.wire.indexing import CopyAll
from ...blas.host.cuda_handle import CublasHandle, load_cublas
from ..wire._forms import forms
from ..wire._messages import Compute, ComputeAll, MeasureWorkspace, Require, SolverProblem
from ._cuda_routines import SILENT, WAITING, routine_of
from ._failures import execute_all, require_success
from ._prototypes import ENUMS, PROTOTYPES, REFUSALS, STATUS_NAMES
from ._sizes import LinalgWorkspace, WorkspaceSizes, aligned
from ._small import SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ._cuda_routines import SolverRoutine

_MOST_PLANS: Final = 256
_LEAST_ROOM: Final = 64
_CELLS: Final = 64
"""Numbers that the least of cells has room for, and how many of them are allocated at a time."""


@cache
def load_cusolver() -> VendorLibrary:
    """The library, loaded once."""
    return VendorLibrary("cusolver", PROTOTYPES, STATUS_NAMES)


@final
class CudaSolver:
    """Executes the solver lane's messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._plans: Recent[SolverProblem, _SolverPlan] = Recent(_MOST_PLANS, self._drop)
        with undone_on_error() as self._made:
            self._solver: Final = Solver(context, stream)
            self._made.callback(self._solver.close)
            self._infos: Final = _Infos(stream)
            self._made.callback(self._infos.close)
            self._array: Final = CudaArrayExecutor(context, stream)
            self._made.callback(self._array.close)
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            MeasureWorkspace: self._prepare,
            Compute: self._compute,
            Require: self._require,
        }
        steps = self._array.of_steps | self.handlers
        self.handlers[ComputeAll] = partial(execute_all, steps)
        self.handlers[CopyAll] = steps[CopyAll]

    @staticmethod
    def preload() -> None:
        """Load the libraries."""
        CudaArrayExecutor.preload()
        load_cublas()
        load_cusolver()

    def close(self) -> None:
        """Destroy the handles, and release what plans have."""
        self._plans.clear()
        self._made.close()

    def _drop(self, plan: _SolverPlan) -> None:
        if not self._stream.captures:  # else nothing is executed here
            self._stream.synchronize()  # a call that is queued may have its memory
        plan.close()

    def _prepare(self, message: MeasureWorkspace) -> int:
        return self._plan(message.problem).device

    def _plan(self, problem: SolverProblem) -> _SolverPlan:
        plan = self._plans.get(problem)
        if plan is None:
            routine = routine_of(problem)
            made = _SolverPlan(routine, routine.sizes(self._solver, problem))
            plan = self._plans.keep(problem, made)
        return plan

    def _compute(self, message: Compute) -> Later | None:
        problem, pointer = message.problem, self._context.pointer
        plan = self._plan(problem)
        if self._stream.captures and problem.routine in WAITING:
            raise Unsupported(
                f"{problem.routine} waits for the device, so it cannot be in a recording; await it"
            )
        info = pointer(message.info)
        some = problem.batch and all(problem.sizes[:2])
        if not some or problem.routine in SILENT:
            self._solver.blas.clear(info, 4 * problem.batch)
        if some:
            known = message.work and message.work >= plan.device
            brought = pointer(message.workspace) if known else 0
            buffers = tuple(map(pointer, message.buffers))
            if self._stream.captures:
                plan.graphs += 1
                self._stream.keep(plan, plan.leave)
            work = plan.work(brought)
            if plan.routine.whole:
                plan.routine.run(self._solver, problem, buffers, info, work)
            else:
                self._one_by_one(plan, problem, buffers, info, work)
        if not message.failure or self._stream.captures:
            return None
        return self._infos.fetch(info, message)

    def _require(self, message: Require) -> Later | None:
        if self._stream.captures:
            return None
        return self._infos.fetch(self._context.pointer(message.info), message)

    def _one_by_one(
        self,
        plan: _SolverPlan,
        problem: SolverProblem,
        buffers: tuple[int, ...],
        info: int,
        work: LinalgWorkspace,
    ) -> None:
        steps = [form.rows * form.columns * DTYPES[form.dtype].itemsize for form in forms(problem)]
        for at in range(problem.batch):
            each = tuple([first + at * step for first, step in zip(buffers, steps, strict=True)])
            plan.routine.run(self._solver, problem, each, info + 4 * at, work)


@final
class Solver:
    """The handles of a stream, and calls on them.

    Attributes:
        handle: cuSOLVER's.
        params: how its 64-bit functions compute: by default.
        syevj, gesvdj: how its Jacobi methods iterate: by default.
        blas: cuBLAS, and small transfers.
        kernels: our own, of small matrices.
        scalars: numbers by pointer.
    """

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._library: Final = load_cusolver()
        self._stream: Final = stream
        with undone_on_error() as self._made:
            self.blas: Final = CublasHandle(context, stream)
            self._made.callback(self.blas.close)
            self.kernels: Final = Kernels(context, stream, SOURCE)
            self._made.callback(self.kernels.close)
            self.handle: Final = self._create("cusolverDnCreate", "cusolverDnDestroy")
            self.params: Final = self._create("cusolverDnCreateParams", "cusolverDnDestroyParams")
            self.syevj: Final[int | None] = self._create(
                "cusolverDnCreateSyevjInfo", "cusolverDnDestroySyevjInfo"
            )
            self.gesvdj: Final[int | None] = self._create(
                "cusolverDnCreateGesvdjInfo", "cusolverDnDestroyGesvdjInfo"
            )
            self._library.call("cusolverDnSetStream", self.handle, stream.pointer)
            self._library.call(
                "cusolverDnSetDeterministicMode",
                self.handle,
                ENUMS["CUSOLVER_DETERMINISTIC_RESULTS"]
                if context.deterministic
                else ENUMS["CUSOLVER_ALLOW_NON_DETERMINISTIC_RESULTS"],
            )
        self.scalars: Final = Scalars()

    def _create(self, create: str, destroy: str) -> int | None:
        cell = c_void_p()
        self._library.call(create, byref(cell))
        self._made.callback(self._library.call, destroy, cell.value)
        return cell.value

    def close(self) -> None:
        """Destroy the handles."""
        self._made.close()

    def call(self, function: str, *args: Any, accepts: int = 0) -> int:
        """Call a function on the handle; its status, 0 or the one that is accepted."""
        status = self._library.functions[function](self.handle, *args)
        if status and status != accepts:
            error = self._library.error(function, status)
            if status in REFUSALS:
                raise Unsupported(f"{error}: not with these types or sizes on this device")
            raise error
        return status

    def launch(self, kernel: str, items: int, *arguments: int) -> None:
        """Launch a kernel with a thread for each item, or with fewer that take several in turn."""
        packed = KernelArguments(struct.pack(f"{len(arguments)}Q", *arguments))
        self.kernels.launch(self.kernels.function(kernel), items, packed)

    def read(self, info: int) -> int:
        """Wait for the device, and return the info of one matrix."""
        number = c_int32()
        copy = driver.cuMemcpyDtoHAsync(addressof(number), info, 4, self._stream.handle)
        check("cuMemcpyDtoHAsync", copy)
        self._stream.synchronize()
        return number.value

    def point(self, table: int, first: int, step: int, count: int) -> int:
        """Write pointers to what lies ``step`` bytes apart."""
        self.launch("point", count, table, first, step, count)
        return table


@final
class _SolverPlan:
    """A problem that is going to be executed, perhaps often.

    Attributes:
        routine: what executes it.
        device: bytes of workspace on the device.
        graphs: how many captured calls may have its memory.
    """

    def __init__(self, routine: SolverRoutine, sizes: WorkspaceSizes) -> None:
        self.graphs = 0
        self._closed = False
        self.routine: Final = routine
        self._sizes = sizes
        self._host = create_string_buffer(sizes.host) if sizes.host else None
        self._own = 0
        self.device: Final = aligned(sizes.device)

    def work(self, brought: int) -> LinalgWorkspace:
        """Return the workspace of a call.

        A call of a batch or a recording does not know the size, and brings none. It gets the plan's
        own memory, which lives as long as the plan and the graphs that use it.
        """
        if self.device and not brought:
            self._own = self._own or int(check("cuMemAlloc", driver.cuMemAlloc(self.device)))
            brought = self._own
        host = addressof(self._host) if self._host is not None else 0
        return LinalgWorkspace(brought, self._sizes.vendor, host, self._sizes.host)

    def close(self) -> None:
        """Release the plan's memory once no graph uses it."""
        self._closed = True
        self._release()

    def leave(self) -> None:
        """A captured call is gone with its graph."""
        self.graphs -= 1
        self._release()

    def _release(self) -> None:
        if self._own and self._closed and not self.graphs:
            check("cuMemFree", driver.cuMemFree(self._own))
            self._own = 0


class _InfoCell(NamedTuple):
    """Page-locked memory for a copy of a routine's info.

    Attributes:
        pointer: its address.
        numbers: its contents.
    """

    pointer: int
    numbers: np.ndarray[Any, np.dtype[np.int32]]


@final
class _Infos:
    """Copies of routines' info to the host, which no thread waits for."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self._free: dict[int, list[_InfoCell]] = {}
        self._pieces: list[int] = []

    def fetch(self, info: int, message: Compute | Require) -> Later:
        """Have it copied behind all that is queued, to be read when that is done."""
        count = message.problem.batch
        room = max(_LEAST_ROOM, 1 << count.bit_length())
        cells = self._free.setdefault(room, [])
        if not cells:
            cells += self._more(room)
        cell = cells.pop()
        if count:
            copy = driver.cuMemcpyDtoHAsync(cell.pointer, info, 4 * count, self._stream.handle)
            check("cuMemcpyDtoHAsync", copy)
        return Later(partial(self._read, cell, message))

    def _more(self, room: int) -> list[_InfoCell]:
        """Further cells: many where they are small, because calls queue up."""
        cells = _CELLS if room == _LEAST_ROOM else 1
        piece = int(check("cuMemAllocHost", driver.cuMemAllocHost(4 * room * cells)))
        self._pieces.append(piece)
        found = np.ctypeslib.as_array((c_int32 * (room * cells)).from_address(piece))
        rows = found.reshape(cells, room)
        return [_InfoCell(piece + 4 * room * at, row) for at, row in enumerate(rows)]

    def _read(self, cell: _InfoCell, message: Compute | Require) -> None:
        info = cell.numbers[: message.problem.batch].copy()
        self._free[cell.numbers.size].append(cell)
        require_success(message, info)

    def close(self) -> None:
        """Release all of it."""
        for piece in self._pieces:
            check("cuMemFreeHost", driver.cuMemFreeHost(piece))
        self._pieces.clear()
        self._free.clear()
