"""Tensors on CUDA: one cuTENSOR handle on one lane, and plans that are kept.

A program need not have cuTENSOR, so it is loaded when an operation first needs it.
"""

from __future__ import annotations

import ctypes
import statistics
import tempfile
from ctypes import byref, c_int32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from ...._errors import LibraryError, LibraryMissing, Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.disk_cache import DiskCache
from ....executors.numbers import CUDA_TYPES, Scalars
from ....executors.timing import timing_events
from ....executors.vendor import VendorLibrary, array, undone_on_error
from ....wire.recent import Recent
from ..wire._messages import (
    ADDS,
    Available,
    OperationKind,
    RunTensor,
    TensorOperation,
    TuneTensor,
    decode,
)
from ._prototypes import (
    CANDIDATES,
    COMPUTE_PREFIX,
    DEFAULT,
    ENUMS,
    OPERATORS,
    PROTOTYPES,
    REFUSALS,
    SCALAR_TYPES,
    STATUS_NAMES,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire._messages import TensorLayout

_MOST_PLANS: Final = 512
_MOST_WORK: Final = 1 << 28
"""Bytes of scratch memory that a plan may have."""
_ROUNDS: Final = 5

_VENDOR: Final = {
    OperationKind.CONTRACT: ("cutensorCreateContraction", "cutensorContract"),
    OperationKind.CONTRACT_TRINARY: ("cutensorCreateContractionTrinary", "cutensorContractTrinary"),
    OperationKind.REDUCE: ("cutensorCreateReduction", "cutensorReduce"),
    OperationKind.PERMUTE: ("cutensorCreatePermutation", "cutensorPermute"),
    OperationKind.BINARY: ("cutensorCreateElementwiseBinary", "cutensorElementwiseBinaryExecute"),
    OperationKind.TRINARY: (
        "cutensorCreateElementwiseTrinary",
        "cutensorElementwiseTrinaryExecute",
    ),
}
"""Functions that describe and that execute an operation."""


@cache
def load_cutensor() -> VendorLibrary:
    """The library, loaded once."""
    return VendorLibrary("cutensor", PROTOTYPES, STATUS_NAMES, extra="cutensor")


@final
class CudaTensors:
    """Executes operations on tensors with cuTENSOR."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._scalars: Final = Scalars()
        self._plans: Recent[bytes, _TensorPlan] = Recent(_MOST_PLANS, lambda plan: plan.drop())
        self._opened: tuple[VendorLibrary, int] | None = None
        self._compiled = _CompiledKernels()
        self._fastest: Final = DiskCache("cutensor-algorithms")
        self.handlers: Final = {
            Available: self._available,
            RunTensor: self._run,
            TuneTensor: self._tune,
        }

    @staticmethod
    def preload() -> None:
        """Load the library, if it is there."""
        load_cutensor()

    def close(self) -> None:
        """Destroy the plans and the handle."""
        self._plans.clear()
        if self._opened is not None:
            library, handle = self._opened
            library.call("cutensorDestroy", handle)

    def _available(self, message: Available) -> bool:
        del message
        try:
            load_cutensor()
        except LibraryMissing:
            return False
        return True

    def _open(self) -> tuple[VendorLibrary, int]:
        if self._opened is None:
            library, handle = load_cutensor(), c_void_p()
            library.call("cutensorCreate", byref(handle))
            self._opened = library, handle.value or 0
        return self._opened

    def _run(self, message: RunTensor) -> None:
        plan = self._plans.get(message.operation)
        if plan is None:
            plan = self._plans.keep(message.operation, self._plan(message.operation))
        if self._stream.captures:
            plan.graphs += 1  # they have its scratch memory and its kernels
            self._stream.keep(plan, plan.let_go)
        self._launch(plan, message)

    def _plan(self, data: bytes) -> _TensorPlan:
        operation = decode(data)
        library, handle = self._open()
        algorithm = DEFAULT
        if operation.tuned:
            known = self._fastest.get(self._name(data))
            algorithm = DEFAULT if known is None else int.from_bytes(known, "little", signed=True)
        if operation.jit:
            self._compiled.read(library, handle)
        try:
            plan = _TensorPlan(library, handle, operation, algorithm)
        except LibraryError as error:
            if error.status not in REFUSALS:
                raise
            raise Unsupported(
                f"cuTENSOR does not {operation.kind} {operation.dtype} in {operation.compute} like "
                f"this on this device: {error}"
            ) from error
        if operation.jit:
            self._compiled.write(library, handle)
        return plan

    def _name(self, data: bytes) -> bytes:
        """Under which name the fastest algorithm of an operation is on the disk."""
        version = _version(self._open()[0])
        return repr((version, self._context.compute_capability)).encode() + data

    def _tune(self, message: TuneTensor) -> None:
        """Time each algorithm that does the operation, and keep the plan of the fastest."""
        run = message.run
        library, handle = self._open()
        operation = decode(run.operation)
        plans: dict[int, _TensorPlan] = {}
        try:
            for algorithm in CANDIDATES:
                try:
                    plans[algorithm] = _TensorPlan(library, handle, operation, algorithm)
                except LibraryError as error:
                    if error.status not in REFUSALS:
                        raise
            if not plans:
                return  # the operation itself says why
            times: dict[int, list[float]] = {algorithm: [] for algorithm in plans}
            for _ in range(_ROUNDS):  # in turns, because clocks change while a device gets warm
                for algorithm, plan in plans.items():
                    times[algorithm].append(self._time(plan, run))
            best = min(plans, key=lambda algorithm: statistics.median(times[algorithm]))
            self._plans.keep(run.operation, plans.pop(best))
            self._fastest.put(self._name(run.operation), best.to_bytes(4, "little", signed=True))
        finally:
            for plan in plans.values():
                plan.drop()

    def _time(self, plan: _TensorPlan, message: RunTensor) -> float:
        """Milliseconds that an operation takes."""
        with timing_events() as events:
            check("cuEventRecord", driver.cuEventRecord(events[0], self._stream.handle))
            self._launch(plan, message)
            check("cuEventRecord", driver.cuEventRecord(events[1], self._stream.handle))
            check("cuEventSynchronize", driver.cuEventSynchronize(events[1]))
            return float(check("cuEventElapsedTime", driver.cuEventElapsedTime(*events)))

    def _launch(self, plan: _TensorPlan, message: RunTensor) -> None:
        """Queue an operation."""
        pointer = self._context.pointer
        scalars = [self._scalars.pointer(plan.scalar_type, each) for each in message.scalars]
        inputs = [pointer(address) for address in message.inputs]
        output = pointer(message.output)
        if plan.operation.kind in ADDS:
            added = pointer(message.added) if message.added else output
            brought = message.workspace_bytes >= plan.work
            scratch = pointer(message.workspace) if plan.work and brought else plan.own_scratch()
            size = plan.work
            arguments = [scalars[0], *inputs, scalars[1], added, output, scratch, size]
        else:
            pairs = zip(scalars, inputs, strict=True)
            arguments = [*(each for pair in pairs for each in pair), output]
        library, handle = self._open()
        library.call(plan.execute, handle, plan.plan, *arguments, self._stream.pointer)


@final
class _TensorPlan:
    """The library's plan of an operation.

    Attributes:
        operation: the operation.
        execute: the function that executes it.
        plan: the library's handle.
        scalar_type: the dtype of its scalars.
        work: bytes of scratch memory that it needs.
        graphs: the number of graphs that use it, so that it must stay.
    """

    def __init__(
        self, library: VendorLibrary, handle: int, operation: TensorOperation, algorithm: int
    ) -> None:
        self._library = library
        self._handle = handle
        self._own = 0
        self.operation = operation
        self.graphs = 0
        self._dropped = False
        create, self.execute = _VENDOR[operation.kind]
        with undone_on_error() as made:
            self._made: ExitStack = made
            description = self._describe(create)
            self.scalar_type = SCALAR_TYPES[
                self._attribute(
                    "cutensorOperationDescriptorGetAttribute",
                    description,
                    "CUTENSOR_OPERATION_DESCRIPTOR_SCALAR_TYPE",
                    c_int32(),
                )
            ]
            jit = ENUMS[f"CUTENSOR_JIT_MODE_{'DEFAULT' if operation.jit else 'NONE'}"]
            preference = self._create("PlanPreference", algorithm, jit)
            self.plan = self._create("Plan", description, preference, _MOST_WORK)
            self.work = self._attribute(
                "cutensorPlanGetAttribute",
                self.plan,
                "CUTENSOR_PLAN_REQUIRED_WORKSPACE",
                c_uint64(),
            )

    def drop(self) -> None:
        """Destroy it, once no graph has it."""
        self._dropped = True
        if self.graphs:
            return
        self._made.close()
        if self._own:
            check("cuMemFree", driver.cuMemFree(self._own))
            self._own = 0

    def let_go(self) -> None:
        """A graph that has it is gone."""
        self.graphs -= 1
        if self._dropped:
            self.drop()

    def own_scratch(self) -> int:
        """Scratch memory where the program has brought too little; lives as long as the plan."""
        if self.work and not self._own:
            self._own = int(check("cuMemAlloc", driver.cuMemAlloc(self.work)))
        return self._own

    def _create(self, kind: str, *values: Any) -> int:
        """A thing of the library, which goes with the plan."""
        made = c_void_p()
        self._library.call(f"cutensorCreate{kind}", self._handle, byref(made), *values)
        self._made.callback(self._library.call, f"cutensorDestroy{kind}", made.value)
        return made.value or 0

    def _describe(self, create: str) -> int:
        """The description of the operation."""
        operation = self.operation
        inputs = [self._operand(each) for each in operation.inputs]
        output = self._tensor(operation.output)
        modes = array("int", operation.output.modes)
        arguments: list[Any] = [part for each in inputs for part in each]
        if operation.kind in ADDS:
            arguments += [output, modes, OPERATORS["identity"]]
        arguments += [output, modes, *(OPERATORS[each] for each in operation.operators)]
        compute = _compute_type(self._library, operation.compute)
        made = c_void_p()
        self._library.call(create, self._handle, byref(made), *arguments, compute)
        self._made.callback(self._library.call, "cutensorDestroyOperationDescriptor", made.value)
        return made.value or 0

    def _operand(self, tensor: TensorLayout) -> tuple[int, Any, int]:
        return self._tensor(tensor), array("int", tensor.modes), OPERATORS[tensor.operator]

    def _tensor(self, tensor: TensorLayout) -> int:
        extents, strides = _integers(tensor.extents), _integers(tensor.strides)
        kind = CUDA_TYPES[self.operation.dtype]
        values = len(tensor.extents), extents, strides, kind, tensor.alignment
        return self._create("TensorDescriptor", *values)

    def _attribute(self, function: str, of: int, name: str, cell: Any) -> int:
        size = ctypes.sizeof(cell)
        self._library.call(function, self._handle, of, ENUMS[name], byref(cell), size)
        return int(cell.value)


def _integers(values: Sequence[int]) -> Any:
    return array("i64", values)


@final
class _CompiledKernels:
    """Kernels that the library has compiled for operations, on the disk."""

    def __init__(self) -> None:
        self._kept: Final = DiskCache("cutensor-kernels")
        self._known: bytes | None = None

    def read(self, library: VendorLibrary, handle: int) -> None:
        """Pass the kernels that are kept on disk to the library, once."""
        if self._known is not None:
            return
        self._known = self._kept.get(_key(library)) or b""
        if self._known:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "kernels")
                path.write_bytes(self._known)
                status = library.functions["cutensorReadKernelCacheFromFile"](
                    handle, str(path).encode()
                )
            if status:  # of another release: it is made anew
                self._known = b""

    def write(self, library: VendorLibrary, handle: int) -> None:
        """Keep what the library has, if there is more."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kernels")
            status = library.functions["cutensorWriteKernelCacheToFile"](handle, str(path).encode())
            data = path.read_bytes() if not status and path.exists() else b""
        if data and data != self._known:
            self._known = data
            self._kept.put(_key(library), data)


def _key(library: VendorLibrary) -> bytes:
    return str(_version(library)).encode()


def _version(library: VendorLibrary) -> int:
    """The release of the library, which has no status for it to return."""
    ask = library.functions.library.cutensorGetVersion
    ask.restype = ctypes.c_size_t
    return int(ask())


def _compute_type(library: VendorLibrary, name: str) -> Any:
    """A compute type, which is an object of the library's."""
    symbol = f"{COMPUTE_PREFIX}{name}"
    try:
        return c_void_p.in_dll(library.functions.library, symbol)
    except ValueError:
        raise Unsupported(f"the cuTENSOR that is installed has no {symbol}") from None
