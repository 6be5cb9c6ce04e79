"""The solver lane on CUDA: cuSOLVER, and cuBLAS for stacks of small matrices."""

from __future__ import annotations

from ctypes import addressof, byref, c_int32, c_void_p, create_string_buffer
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....backends.cuda.host._driver import check, driver
from ....host._slots import Later
from ...blas.host._cuda_handle import Handle, load_cublas
from ...host._numbers import Scalars
from ...host._vendor import VendorLibrary, undone_on_error
from ..wire._forms import forms
from ..wire._messages import Compute, Plan, Problem, Require
from ._cuda_routines import WAITING, Sizes, Work, routine_of
from ._failures import require_success
from ._prototypes import ENUMS, PROTOTYPES, REFUSALS, STATUS_NAMES

if TYPE_CHECKING:
    from ....backends.cuda.host._context import CudaContext, CudaStream
    from ._cuda_routines import Routine

_ALIGNMENT: Final = 256


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
        self._plans: dict[Problem, _Plan] = {}
        with undone_on_error() as self._made:
            self._solver: Final = Solver(context, stream)
            self._made.callback(self._solver.close)
            self._infos: Final = _Infos(stream)
            self._made.callback(self._infos.close)
        self.handlers: Final = {
            Plan: self._prepare,
            Compute: self._compute,
            Require: self._require,
        }

    @staticmethod
    def preload() -> None:
        """Load the libraries."""
        load_cublas()
        load_cusolver()

    def close(self) -> None:
        """Destroy the handles, and release what plans have."""
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
        self._made.close()

    def _prepare(self, message: Plan) -> int:
        return self._plan(message.problem).device

    def _plan(self, problem: Problem) -> _Plan:
        plan = self._plans.get(problem)
        if plan is None:
            routine = routine_of(problem)
            plan = self._plans[problem] = _Plan(routine, routine.sizes(self._solver, problem))
        return plan

    def _compute(self, message: Compute) -> Later | None:
        problem, pointer = message.problem, self._context.pointer
        plan = self._plan(problem)
        if self._stream.captures and problem.routine in WAITING:
            raise Unsupported(
                f"{problem.routine} waits for the device, so it cannot be in a recording; await it"
            )
        info = pointer(message.info)
        self._solver.blas.clear(info, 4 * problem.batch)
        if problem.batch and all(problem.sizes[:2]):
            known = message.work and message.work >= plan.device
            brought = pointer(message.workspace) if known else 0
            buffers = tuple(map(pointer, message.buffers))
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
        self, plan: _Plan, problem: Problem, buffers: tuple[int, ...], info: int, work: Work
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
        scalars: numbers by pointer.
    """

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._library: Final = load_cusolver()
        with undone_on_error() as self._made:
            self.blas: Final = Handle(context, stream)
            self._made.callback(self.blas.close)
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
        """Call a function on the handle; its status, 0 or the one that is accepted.

        Raises:
            LibraryError: it refused.
            Unsupported: it does not do this, with these types or sizes, on this device.
        """
        status = self._library.functions[function](self.handle, *args)
        if status and status != accepts:
            error = self._library.error(function, status)
            if status in REFUSALS:
                raise Unsupported(f"{error}: not with these types or sizes on this device")
            raise error
        return status

    def point(self, table: int, first: int, step: int, count: int) -> int:
        """Write pointers to what lies ``step`` bytes apart."""
        places = np.arange(count, dtype=np.uint64) * np.uint64(step) + np.uint64(first)
        self.blas.upload(table, places)
        return table


@final
class _Plan:
    """A problem that is going to be executed, perhaps often.

    Attributes:
        routine: what executes it.
        device: bytes of workspace on the device.
    """

    def __init__(self, routine: Routine, sizes: Sizes) -> None:
        self.routine: Final = routine
        self._sizes = sizes
        self._host = create_string_buffer(sizes.host) if sizes.host else None
        self._own = 0
        self.device: Final = -(-sizes.device // _ALIGNMENT) * _ALIGNMENT

    def work(self, brought: int) -> Work:
        """The workspace of a call.

        A batch or a recording does not know how much it takes, and brings none. What it gets then
        lives as long as the plan, because a graph may have it.
        """
        if self.device and not brought:
            self._own = self._own or int(check("cuMemAlloc", driver.cuMemAlloc(self.device)))
            brought = self._own
        host = addressof(self._host) if self._host is not None else 0
        return Work(brought, self._sizes.vendor, host, self._sizes.host)

    def close(self) -> None:
        """Release what it has."""
        if self._own:
            check("cuMemFree", driver.cuMemFree(self._own))
            self._own = 0


class _Cell(NamedTuple):
    """Page-locked memory that what a routine says of its matrices is copied to.

    Attributes:
        pointer: where.
        room: for how many numbers.
    """

    pointer: int
    room: int


@final
class _Infos:
    """What routines say of their matrices, on its way here: nothing waits for it."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self._free: list[_Cell] = []
        self._all: list[_Cell] = []

    def fetch(self, info: int, message: Compute | Require) -> Later:
        """Have it copied behind all that is queued, to be read when that is done."""
        count = message.problem.batch
        cell = next((each for each in self._free if each.room >= count), None)
        if cell is None:
            room = max(64, 1 << count.bit_length())
            cell = _Cell(int(check("cuMemAllocHost", driver.cuMemAllocHost(4 * room))), room)
            self._all.append(cell)
        else:
            self._free.remove(cell)
        if count:
            copy = driver.cuMemcpyDtoHAsync(cell.pointer, info, 4 * count, self._stream.handle)
            check("cuMemcpyDtoHAsync", copy)
        return Later(partial(self._read, cell, message))

    def _read(self, cell: _Cell, message: Compute | Require) -> None:
        found = np.ctypeslib.as_array((c_int32 * cell.room).from_address(cell.pointer))
        info = found[: message.problem.batch].copy()
        self._free.append(cell)
        require_success(message, info)

    def close(self) -> None:
        """Release all of it."""
        for cell in self._all:
            check("cuMemFreeHost", driver.cuMemFreeHost(cell.pointer))
        self._all.clear()
        self._free.clear()
