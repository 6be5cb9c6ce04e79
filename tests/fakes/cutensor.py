"""cuTENSOR in NumPy, behind the same symbols: what runs ``CudaTensors`` without a GPU.

It reads only the arguments of the prototypes: descriptions by handle, modes as C arrays, and
scalars by pointer in the type that it asks for.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.numbers import CUDA_TYPES
from atomr_accel.libraries.tensor.host import _prototypes as prototypes
from atomr_accel.libraries.tensor.host._cpu import UNARY

from .lapack import memory
from .vendor import FakeCuda, FakeVendorOfThings

DTYPE_OF = {value: DTYPES[name] for name, value in CUDA_TYPES.items()}
OPERATORS = {value: name for name, value in prototypes.OPERATORS.items()}
ALGORITHMS = {
    value: name.removeprefix("CUTENSOR_ALGO_")
    for name, value in prototypes.ENUMS.items()
    if "_ALGO_" in name
}
SCALAR_OF = {"float16": "float32", "bfloat16": "float32"}
NOT_SUPPORTED = 15
WORK = 1000
"""Bytes of scratch memory that a contraction needs."""
INPUTS = {
    "Contraction": 2,
    "ContractionTrinary": 3,
    "Reduction": 1,
    "Permutation": 1,
    "ElementwiseBinary": 2,
    "ElementwiseTrinary": 3,
}


class FakeTensors(FakeVendorOfThings):
    """Stands in for the ``VendorLibrary`` of ``CudaTensors``."""

    library = "cutensor"
    status_names = prototypes.STATUS_NAMES
    prototypes = prototypes.PROTOTYPES

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []
        self.scratch: list[int] = []
        self.refused: set[str] = {"TTGT"}
        self.files: list[str] = []

    def find(self, name: str) -> Any:
        """A function for each operation, and for each kind of thing."""
        if (found := getattr(self, name, None)) is not None:
            return found
        if name.startswith("Destroy"):
            return self.destroy
        made = name.removeprefix("Create")
        if made != name:
            return functools.partial(self.describe, made)
        return functools.partial(self.execute, name)

    def Create(self, cell: Any) -> int:  # noqa: N802 - the vendor's names
        return self.make(cell)

    def ReadKernelCacheFromFile(self, _handle: int, path: bytes) -> int:  # noqa: N802
        with open(path, "rb") as file:  # noqa: PTH123 - as the library does
            self.files.append(f"read {file.read().decode()}")
        return 0

    def WriteKernelCacheToFile(self, _handle: int, path: bytes) -> int:  # noqa: N802
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(b"kernels")
        self.files.append("write")
        return 0

    def CreateTensorDescriptor(  # noqa: N802
        self, _: int, cell: Any, count: int, extents: Any, strides: Any, kind: int, alignment: int
    ) -> int:
        shape, steps = tuple(extents[:count]), tuple(strides[:count])
        if min((*shape, *steps), default=1) <= 0:
            return 7
        return self.make(cell, shape=shape, strides=steps, kind=kind, alignment=alignment)

    def describe(self, kind: str, _handle: int, cell: Any, *arguments: Any) -> int:
        """Describe an operation: inputs with modes and operators, maybe an addend, the output."""
        left = [*arguments[:-1]]
        adds = INPUTS[kind] + (kind.startswith(("Contraction", "Reduction")))
        inputs = []
        for _ in range(adds):
            tensor, modes, operator = self.things[left.pop(0)], left.pop(0), left.pop(0)
            inputs.append((tensor, modes[: len(tensor.shape)], OPERATORS[operator]))
        output = self.things[left.pop(0)]
        modes = left.pop(0)[: len(output.shape)]
        if adds > INPUTS[kind] or "Elementwise" in kind:  # as the library asks for
            assert inputs[-1][0] == output
            assert inputs[-1][1] == modes
        operators = [OPERATORS[each] for each in left]
        compute = arguments[-1]
        return self.make(
            cell, op=kind, inputs=inputs, output=output, modes=modes, ops=operators, compute=compute
        )

    def OperationDescriptorGetAttribute(  # noqa: N802
        self, _: int, operation: int, name: int, cell: int, size: int
    ) -> int:
        assert (name, size) == (1, 4)
        dtype = DTYPE_OF[self.things[operation].output.kind].name
        ctypes.c_int32.from_address(cell).value = CUDA_TYPES[SCALAR_OF.get(dtype, dtype)]
        return 0

    def CreatePlanPreference(self, _: int, cell: Any, algorithm: int, jit: int) -> int:  # noqa: N802
        return self.make(cell, algorithm=ALGORITHMS[algorithm], jit=jit)

    def CreatePlan(self, _: int, cell: Any, operation: int, preference: int, limit: int) -> int:  # noqa: N802
        assert limit >= WORK
        algorithm = self.things[preference].algorithm
        if algorithm in self.refused:
            return NOT_SUPPORTED
        return self.make(cell, operation=self.things[operation], algorithm=algorithm)

    def PlanGetAttribute(self, _: int, plan: int, name: int, cell: int, size: int) -> int:  # noqa: N802
        assert (name, size) == (0, 8)
        works = self.things[plan].operation.op.startswith("Contraction")
        ctypes.c_uint64.from_address(cell).value = WORK if works else 0
        return 0

    def execute(self, _name: str, _handle: int, number: int, *arguments: Any) -> int:
        """Whatever a plan is for."""
        plan = self.things[number]
        operation = plan.operation
        count = INPUTS[operation.op]
        stream = arguments[-1]
        assert stream in (0, None)
        self.launched.append(plan.algorithm)
        dtype = DTYPE_OF[operation.output.kind]
        wide = DTYPES[SCALAR_OF.get(dtype.name, dtype.name)]

        def scalar(pointer: int) -> Any:
            return memory(pointer, wide.itemsize).view(wide)[0]

        def array(pointer: int, tensor: Any) -> Any:
            assert pointer % tensor.alignment == 0
            reach = sum(
                (size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True)
            )
            flat = memory(pointer, (reach + 1) * dtype.itemsize).view(dtype)
            return as_strided(
                flat, tensor.shape, [each * dtype.itemsize for each in tensor.strides]
            )

        def operand(at: int, pointer: int) -> Any:
            tensor, _, operator = operation.inputs[at]
            function = UNARY.get(operator) or getattr(np, operator)
            return function(array(pointer, tensor).astype(wide))

        modes = [list(each[1]) for each in operation.inputs]
        if operation.op.startswith(("Contraction", "Reduction")):
            alpha, *pointers = arguments[: count + 1]
            beta, added, to, scratch, size = arguments[count + 1 : count + 6]
            if operation.op.startswith("Contraction"):
                assert size == WORK
                self.scratch.append(scratch)
            terms = [operand(at, pointer) for at, pointer in enumerate(pointers)]
            if operation.op == "Reduction":
                axes = tuple(at for at, mode in enumerate(modes[0]) if mode not in operation.modes)
                left = [mode for mode in modes[0] if mode in operation.modes]
                reduced = getattr(np, operation.ops[0]).reduce(terms[0], axes)
                result = np.transpose(reduced, [left.index(mode) for mode in operation.modes])
            else:
                mixed = [part for pair in zip(terms, modes, strict=False) for part in pair]
                result = np.einsum(*mixed, list(operation.modes))
            result = scalar(alpha) * result
            if scalar(beta) != 0:
                result = result + scalar(beta) * operand(count, added)
        else:
            to = arguments[2 * count]
            ones = np.ones(operation.output.shape, wide)
            result = None
            for at in range(count):
                factor, pointer = arguments[2 * at : 2 * at + 2]
                whole = [operand(at, pointer), modes[at], ones, list(operation.modes)]
                term = scalar(factor) * np.einsum(*whole, list(operation.modes))
                joined = getattr(np, operation.ops[at - 1]) if at else None
                result = term if joined is None else joined(result, term)
        array(to, operation.output)[...] = np.asarray(result).astype(dtype)
        return 0


class FakeCudaTensors(FakeCuda):
    """``CudaTensors`` on host memory."""

    executor = "atomr_accel.libraries.tensor.host._cuda:CudaTensors"
