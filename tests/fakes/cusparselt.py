"""cuSPARSELt in NumPy, behind the same symbols: what runs ``CudaSparseLt`` without a GPU.

Structs are memory of the caller's, in which it leaves a number. It refuses the same calls as the
library, and chooses the worst of undefined behaviour: with ``beta`` 0 it multiplies the old values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.numbers import CUDA_TYPES
from atomr_accel.libraries.blaslt.host.cpu import gelu, saturate
from atomr_accel.libraries.sparselt.host import _prototypes as prototypes
from atomr_accel.libraries.sparselt.host._cpu import strips, tiles

from .lapack import memory
from .vendor import FakeCuda, FakeVendorOfThings

Array = np.ndarray[Any, Any]

ENUMS: Final = prototypes.ENUMS
DTYPE_OF: Final = {value: DTYPES[name] for name, value in CUDA_TYPES.items()}
MULTIPLES: Final = {1: 16, 2: 8, 4: 4}
SCRATCH: Final = 96
"""Bytes that compressions need, and products for each number of their algorithm."""
ALGORITHMS: Final = 4
REFUSED: Final = 2
"""The number of an algorithm that is for no operands."""
INVALID_VALUE: Final = 3


class FakeSparseLt(FakeVendorOfThings):
    """Stands in for the ``VendorLibrary`` of ``CudaSparseLt``."""

    library = "cusparseLt"
    prototypes = prototypes.PROTOTYPES
    invalid_value = INVALID_VALUE

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []
        self.ran: list[int] = []
        self.room: Callable[[int], int] = lambda _pointer: 0

    @property
    def held(self) -> int:
        """Things that have to be destroyed; descriptions of products are plain memory."""
        return sum(not hasattr(each, "matrices") for each in self.things.values())

    def find(self, name: str) -> Callable[..., int]:
        return self.destroy if "Destroy" in name else super().find(name)

    def guarded(self, name: str, *args: Any) -> int:
        self.called.append(name)
        if name != "Init" and "Destroy" not in name:
            assert self.of(args[0]).handle
        return super().guarded(name, *args)

    def make(self, cell: int, **attributes: Any) -> int:
        assert cell % prototypes.STRUCT_ALIGNMENT == 0
        ctypes.memset(cell, 0x7F, prototypes.STRUCT_BYTES)
        return super().make((ctypes.c_int64 * 1).from_address(cell), **attributes)

    def of(self, struct: int) -> Any:
        """Return the object that a struct refers to."""
        return self.things[ctypes.c_int64.from_address(struct).value]

    def destroy(self, struct: int) -> int:
        return super().destroy(ctypes.c_int64.from_address(struct).value)

    def Init(self, handle: int) -> int:  # noqa: N802 - the vendor's names
        return self.make(handle, handle=True)

    def DenseDescriptorInit(self, _handle: int, struct: int, *args: int) -> int:  # noqa: N802
        rows, columns, ld, alignment, kind, order = args
        dtype = DTYPE_OF[kind]
        multiple = MULTIPLES[dtype.itemsize]
        assert alignment == 16
        if any(each <= 0 or each % multiple for each in (rows, columns, ld)):
            return INVALID_VALUE
        return self.make(struct, shape=(rows, columns), ld=ld, dtype=dtype, order=order)

    def StructuredDescriptorInit(self, _handle: int, struct: int, *args: int) -> int:  # noqa: N802
        rows, columns, ld, _, kind, order, sparsity = args
        dtype = DTYPE_OF[kind]
        assert (ld, order, sparsity) == (columns, ENUMS["CUSPARSE_ORDER_ROW"], 0)
        if rows % (2 * MULTIPLES[dtype.itemsize]) or columns % (2 * MULTIPLES[dtype.itemsize]):
            return INVALID_VALUE
        group = 2 if dtype.itemsize == 4 else 4
        return self.make(struct, shape=(rows, columns), dtype=dtype, group=group, ld=ld)

    def SpMMAPrune2(self, _handle: int, matrix: int, *args: int) -> int:  # noqa: N802
        of_a, op, source, target, algorithm, _ = args
        assert (of_a, op) == (1, 0)
        found = self.of(matrix)
        array = dense(source, found)
        sizes = np.abs(array.astype(np.float64))
        strip = algorithm == ENUMS["CUSPARSELT_PRUNE_SPMMA_STRIP"]
        mask = (strips if strip else tiles)(sizes, found.group)
        dense(target, found)[...] = np.where(mask, array, np.zeros((), found.dtype))
        return 0

    def SpMMAPruneCheck2(self, _handle: int, matrix: int, *args: int) -> int:  # noqa: N802
        _, _, source, valid, _ = args
        found = self.of(matrix)
        kept = (dense(source, found) != 0).reshape(-1, found.group).sum(1)
        wrong = int((kept > found.group // 2).any())
        ctypes.c_int.from_address(valid).value = wrong
        return 0

    def SpMMACompressedSize2(  # noqa: N802
        self, _handle: int, matrix: int, size: Any, scratch: Any
    ) -> int:
        found = self.of(matrix)
        rows, columns = found.shape
        size[0], scratch[0] = rows * columns * found.dtype.itemsize, SCRATCH
        return 0

    def SpMMACompress2(self, _handle: int, matrix: int, *args: int) -> int:  # noqa: N802
        _, _, source, target, scratch, _ = args
        memory(scratch, SCRATCH)[:] = 0x7F
        found = self.of(matrix)
        dense(target, found)[...] = dense(source, found)[::-1]
        return 0

    def MatmulDescriptorInit(self, _handle: int, struct: int, *args: int) -> int:  # noqa: N802
        op_a, op_b, *matrices, compute = args
        assert (op_a, op_b) == (0, 0)
        a, b, c, d = (self.of(each) for each in matrices)
        assert a.dtype == b.dtype
        assert (c.shape, c.ld, c.order) == (d.shape, d.ld, d.order)
        integers = a.dtype.name == "int8"
        assert compute == ENUMS[f"CUSPARSE_COMPUTE_{'32I' if integers else '32F'}"]
        if a.dtype.itemsize == 1 and b.order != ENUMS["CUSPARSE_ORDER_COL"]:
            return INVALID_VALUE
        return self.make(struct, matrices=(a, b, c, d), set={})

    def MatmulDescSetAttribute(  # noqa: N802
        self, _handle: int, product: int, name: int, value: int, size: int
    ) -> int:
        found = self.of(product)
        kind: Any = ctypes.c_int if size == 4 else ctypes.c_void_p
        gelus = name == ENUMS["CUSPARSELT_MATMUL_ACTIVATION_GELU"]
        if gelus and found.matrices[0].dtype.itemsize != 1:
            return INVALID_VALUE
        found.set[name] = kind.from_address(value).value
        return 0

    def MatmulAlgSelectionInit(self, _handle: int, struct: int, *_: int) -> int:  # noqa: N802
        return self.make(struct, algorithm=0)

    def MatmulAlgGetAttribute(  # noqa: N802
        self, _handle: int, chosen: int, name: int, value: int, size: int
    ) -> int:
        assert (name, size) == (ENUMS["CUSPARSELT_MATMUL_ALG_CONFIG_MAX_ID"], 4)
        assert self.of(chosen)
        ctypes.c_int.from_address(value).value = ALGORITHMS
        return 0

    def MatmulAlgSetAttribute(  # noqa: N802
        self, _handle: int, chosen: int, name: int, value: int, size: int
    ) -> int:
        assert (name, size) == (ENUMS["CUSPARSELT_MATMUL_ALG_CONFIG_ID"], 4)
        self.of(chosen).algorithm = ctypes.c_int.from_address(value).value
        return 0

    def MatmulPlanInit(self, _handle: int, struct: int, product: int, chosen: int) -> int:  # noqa: N802
        algorithm = self.of(chosen).algorithm
        if algorithm == REFUSED:
            return ENUMS["CUSPARSE_STATUS_NOT_SUPPORTED"]
        return self.make(struct, product=self.of(product), algorithm=algorithm)

    def MatmulGetWorkspace(self, _handle: int, plan: int, size: Any) -> int:  # noqa: N802
        size[0] = SCRATCH * self.of(plan).algorithm
        return 0

    def Matmul(self, _handle: int, plan: int, *args: Any) -> int:  # noqa: N802
        alpha, a_at, b_at, beta, c_at, d_at, scratch, streams, count = args
        assert count == 1
        assert streams
        algorithm = self.of(plan).algorithm
        self.ran.append(algorithm)
        if algorithm:
            assert self.room(scratch) == SCRATCH * algorithm
            memory(scratch, SCRATCH * algorithm)[:] = 0x7F
        product = self.of(plan).product
        a, b, c, d = product.matrices
        left = dense(a_at, a)[::-1]
        wide = np.float64 if a.dtype.name == "int8" else np.float32
        numbers = [ctypes.c_float.from_address(each).value for each in (alpha, beta)]
        with np.errstate(all="ignore"):
            value: Any = np.matmul(left.astype(wide), dense(b_at, b).astype(wide)) * numbers[0]
            if numbers[1]:
                added: Any = dense(c_at, c).astype(wide)
                value = value + numbers[1] * added
            if bias := product.set.get(ENUMS["CUSPARSELT_MATMUL_BIAS_POINTER"]):
                kind = DTYPES["float32"] if a.dtype.name == "int8" else c.dtype
                column = memory(bias, d.shape[0] * kind.itemsize).view(kind)
                value = value + column.astype(wide)[:, None]
            if product.set.get(ENUMS["CUSPARSELT_MATMUL_ACTIVATION_RELU"]):
                value = np.maximum(value, 0)
            if product.set.get(ENUMS["CUSPARSELT_MATMUL_ACTIVATION_GELU"]):
                value = gelu(value)
            if d.dtype.name == "int32":
                value = np.rint(value)
            dense(d_at, d)[...] = saturate(value, d.dtype)
        return 0


def dense(pointer: int, found: Any) -> Array:
    """Return a view of a matrix in memory."""
    rows, columns = found.shape
    by_rows = getattr(found, "order", ENUMS["CUSPARSE_ORDER_ROW"]) == ENUMS["CUSPARSE_ORDER_ROW"]
    outer, inner = (rows, columns) if by_rows else (columns, rows)
    size = found.dtype.itemsize
    flat = memory(pointer, ((outer - 1) * found.ld + inner) * size)
    strides = (found.ld * size, size)
    made: Array = np.ndarray(
        (rows, columns), found.dtype, flat.data, strides=strides if by_rows else strides[::-1]
    )
    return made


class FakeCudaSparseLt(FakeCuda):
    """``CudaSparseLt`` on host memory."""

    executor = "atomr_accel.libraries.sparselt.host._cuda:CudaSparseLt"
