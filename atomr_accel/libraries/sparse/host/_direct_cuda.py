"""Direct solvers on CUDA: cuDSS, with its factors.

A program may run without cuDSS, so it is loaded when the lane is first used. The library orders
rows on the host's processor. It reports the outcome of a factorization when the device is done, so
the lane has its own thread, which waits for that.
"""

from __future__ import annotations

from contextlib import ExitStack
from ctypes import byref, c_double, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....executors.numbers import CUDA_TYPES
from ....executors.vendor import VendorLibrary, undone_on_error
from ..wire._direct import Drop, Factorize, SolveBy, SparseSystem
from ._direct_failures import not_factorized, require_regular
from ._prototypes_dss import (
    ENUMS,
    INDEX_TYPES,
    NOT_SUPPORTED,
    OPTIONS,
    PROTOTYPES,
    STATUS_NAMES,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream

_C_TYPES: Final[dict[str, Any]] = {"int": c_int, "double": c_double}


@cache
def load_cudss() -> VendorLibrary:
    """The library, loaded once."""
    return VendorLibrary("cudss", PROTOTYPES, STATUS_NAMES, extra="cudss")


@final
class CudaDirect:
    """Executes the messages of direct solvers."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._opened: _CudssHandle | None = None
        self._factors: dict[int, _CudssFactors] = {}
        self.handlers: Final = {
            Drop: self._drop,
            Factorize: self._factorize,
            SolveBy: self._solve,
        }

    @staticmethod
    def preload() -> None:
        """Load the library, if it is there."""
        load_cudss()

    def close(self) -> None:
        """Destroy the factors and the handle."""
        for number in [*self._factors]:
            self._drop(Drop(number))
        if self._opened is not None:
            self._opened.close()

    def _drop(self, message: Drop) -> None:
        factors = self._factors.pop(message.number, None)
        if factors is not None:
            factors.close()

    def _handle(self) -> _CudssHandle:
        if self._opened is None:
            self._opened = _CudssHandle(self._stream)
        return self._opened

    def _factorize(self, message: Factorize) -> None:
        system = message.system
        if not system.matrix.shape[0]:
            return
        require_regular(0 if system.matrix.nnz else 1)  # there is no pivot without elements
        parts = [self._context.pointer(each) for each in message.parts]
        factors = self._factors.get(message.number)
        if factors is None:
            handle = self._handle()
            factors = self._factors[message.number] = _CudssFactors(handle, system, parts)
            factors.execute(parts, "ANALYSIS", "FACTORIZATION")
        else:
            factors.info = 1  # until it has succeeded
            factors.execute(parts, "REFACTORIZATION")
        factors.info = factors.failure()
        require_regular(factors.info)

    def _solve(self, message: SolveBy) -> None:
        if not message.n or not message.count:
            return
        factors = self._factors.get(message.number)
        if factors is None or factors.info:
            raise not_factorized()
        pointer = self._context.pointer
        parts = [pointer(each) for each in message.parts]
        factors.solve(parts, pointer(message.b), pointer(message.x), message.count, message.trans)


@final
class _CudssHandle:
    """A cuDSS handle on a stream."""

    def __init__(self, stream: CudaStream) -> None:
        self._library: Final = load_cudss()
        with undone_on_error() as made:
            self._made: Final = made
            self.value: Final = self.create(made, "")
            self._library.call("cudssSetStream", self.value, stream.pointer)

    def close(self) -> None:
        """Destroy it."""
        self._made.close()

    def call(self, function: str, *args: Any) -> None:
        """Call a function."""
        status = self._library.functions[function](*args)
        if status == NOT_SUPPORTED:
            error = self._library.error(function, status)
            raise Unsupported(f"{error}: not with these types or options on this device")
        if status:
            raise self._library.error(function, status)

    def create(self, made: ExitStack, what: str, *args: Any) -> int:
        """A thing of the library, which goes when ``made`` is closed."""
        cell = c_void_p()
        self.call(f"cudss{what}Create", *args, byref(cell))
        made.callback(self._library.call, f"cudss{what}Destroy", *args, cell.value)
        assert cell.value is not None
        return cell.value

    def matrix(self, made: ExitStack, what: str, *args: Any) -> int:
        """A description of an operand, which goes when ``made`` is closed."""
        cell = c_void_p()
        self.call(f"cudssMatrixCreate{what}", byref(cell), *args)
        made.callback(self._library.call, "cudssMatrixDestroy", cell.value)
        assert cell.value is not None
        return cell.value


@final
class _CudssFactors:
    """The factors of a matrix.

    Attributes:
        info: what the last factorization said of itself, 0 where it succeeded.
    """

    def __init__(self, handle: _CudssHandle, system: SparseSystem, parts: Sequence[int]) -> None:
        self._handle: Final = handle
        self._system: Final = system
        self.info = 0
        self._kind: Final = CUDA_TYPES[system.matrix.dtype]
        self._n: Final = system.matrix.shape[0]
        index = INDEX_TYPES[system.matrix.index]
        with undone_on_error() as made:
            self._made: Final = made
            self._config: Final = handle.create(made, "Config")
            self._configure()
            self._data: Final = handle.create(made, "Data", handle.value)
            major, indices, data = parts
            self._matrix: Final = handle.matrix(
                *(made, "Csr", self._n, self._n, system.matrix.nnz, major, None, indices, data),
                *(index, index, self._kind, ENUMS[f"CUDSS_MTYPE_{matrix_type(system)}"]),
                *(ENUMS[f"CUDSS_MVIEW_{system.triangle.upper()}"], ENUMS["CUDSS_BASE_ZERO"]),
            )

    def close(self) -> None:
        """Destroy them."""
        self._made.close()

    def execute(self, parts: Sequence[int], *phases: str) -> None:
        """Find out the structure of a matrix, or factorize it; its parts are at these pointers."""
        major, indices, data = parts
        call = self._handle.call
        call("cudssMatrixSetCsrPointers", self._matrix, major, None, indices, data)
        with ExitStack() as made:
            # Vectors are described, but not looked at.
            vectors = [self._vectors(made, None, 1) for _ in range(2)]
            for phase in phases:
                self._execute(phase, *vectors)

    def failure(self) -> int:
        """Return 0, or the reason why the factorization failed."""
        return self._told("INFO") or self._told("NPIVOTS") or self._lost()

    def _lost(self) -> int:
        """Count the pivots that are zero; the library does not count those of single rows."""
        diagonal = np.empty(self._n, DTYPES[self._system.matrix.dtype])
        args = (self._handle.value, self._data, ENUMS["CUDSS_DATA_DIAG"], diagonal.ctypes.data)
        self._handle.call("cudssDataGet", *args, diagonal.nbytes, byref(c_size_t()))
        return int((~(np.abs(diagonal) > 0)).sum())

    def solve(self, parts: Sequence[int], b: int, x: int, count: int, trans: int) -> None:
        """Solve for right sides that follow one another."""
        self._set("SOLVE_MODE", effective(self._system, trans))
        major, indices, data = parts
        call = self._handle.call
        call("cudssMatrixSetCsrPointers", self._matrix, major, None, indices, data)
        with ExitStack() as made:
            self._execute("SOLVE", self._vectors(made, x, count), self._vectors(made, b, count))

    def _execute(self, phase: str, x: int, b: int) -> None:
        self._handle.call(
            *("cudssExecute", self._handle.value, ENUMS[f"CUDSS_PHASE_{phase}"]),
            *(self._config, self._data, self._matrix, x, b),
        )

    def _vectors(self, made: ExitStack, pointer: int | None, count: int) -> int:
        layout = ENUMS["CUDSS_LAYOUT_COL_MAJOR"]
        args = (self._n, count, self._n, pointer, self._kind, layout)
        return self._handle.matrix(made, "Dn", *args)

    def _configure(self) -> None:
        system = self._system
        self._set("REORDERING_ALG", ENUMS[f"CUDSS_REORDERING_ALG_{system.reordering.upper()}"])
        self._set("PIVOT_TYPE", ENUMS[f"CUDSS_PIVOT_{system.pivoting.upper()}"])
        self._set("IR_N_STEPS", system.refinement)
        self._set("DETERMINISTIC_MODE", int(system.deterministic))
        if system.threshold is not None:
            self._set("PIVOT_THRESHOLD", system.threshold)
        if system.epsilon is not None:
            self._set("PIVOT_EPSILON", system.epsilon)

    def _set(self, name: str, value: float) -> None:
        cell = _C_TYPES[OPTIONS[name]](value)
        size = 8 if OPTIONS[name] == "double" else 4
        args = (ENUMS[f"CUDSS_CONFIG_{name}"], byref(cell), size)
        self._handle.call("cudssConfigSet", self._config, *args)

    def _told(self, name: str) -> int:
        """A number that the library has found; it tells first how many bytes that has."""
        args = (self._handle.value, self._data, ENUMS[f"CUDSS_DATA_{name}"])
        size = c_size_t()
        self._handle.call("cudssDataGet", *args, None, 0, byref(size))
        cell = c_int64() if size.value == 8 else c_int()
        self._handle.call("cudssDataGet", *args, byref(cell), size.value, byref(size))
        return cell.value


def matrix_type(system: SparseSystem) -> str:
    """The library's name for a kind of matrix."""
    is_complex = DTYPES[system.matrix.dtype].kind == "c"
    if system.kind == "spd":
        return "HPD" if is_complex else "SPD"
    if system.kind == "hermitian" and not is_complex:
        return "SYMMETRIC"
    return system.kind.upper()


def effective(system: SparseSystem, trans: int) -> int:
    """Return the transposition that has an effect: 0 if the transpose is the matrix itself."""
    is_complex = DTYPES[system.matrix.dtype].kind == "c"
    if not is_complex:
        return 0 if system.kind != "general" else min(trans, 1)
    itself = {"general": 0, "symmetric": 1}.get(system.kind, 2)
    return 0 if trans == itself else trans
