"""BLASLt on CUDA: one cuBLASLt handle on one lane.

cuBLASLt is column-major, so it sees a row-major array as its transpose. The operands exchange
places, and a row of d in cuBLASLt's terms is a column of ours.
"""

from __future__ import annotations

import ctypes
import statistics
import struct
from ctypes import (
    byref,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.device_code import CudaSource
from ....executors.numbers import CUDA_TYPES, number_cell
from ....executors.timing import timing_events
from ....executors.vendor import VendorLibrary, array, undone_on_error
from ....wire import PLACE
from ....wire.recent import Recent
from ..wire._messages import EPILOGUES, BlasLtSpec, Heuristic, MatrixLayout, RunBlasLt, TuneBlasLt
from ..wire._narrow import BLOCKS, E2M1, FP8, block_scale_bytes
from ._prototypes import (
    ALGORITHM_BYTES,
    ENUMS,
    NOT_SUPPORTED,
    PROTOTYPES,
    RESULT_BYTES,
    STATUS_NAME,
    attribute,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....executors.cuda_kernels import Kernels
    from ....host.templates import HostTemplate

_MOST_PLANS: Final = 512
_MOST_CALLS: Final = 64
_ROUNDS: Final = 5
_ROUND_MILLISECONDS: Final = 2.0
_MOST_RUNS: Final = 20
"""Largest number of runs of a candidate. Candidates are timed in alternation, because clocks change
while a device gets warm, and the median of each one counts."""

_SOMEWHERE: Final = 1 << 12
"""Address for queries, which read nothing there: algorithms depend on its alignment."""

_SCALE_MODES: Final = {
    "rows": "OUTER_VEC_32F",
    "nvfp4": "VEC16_UE4M3",
    "mxfp8": "VEC32_UE8M0",
}
"""Modes of scales other than one number for all elements."""

_KERNELS: Final = CudaSource(__package__, "fp4.cu")


@cache
def load_cublaslt() -> VendorLibrary:
    """The library, loaded once."""
    return VendorLibrary("cublasLt", PROTOTYPES, STATUS_NAME)


@dataclass(slots=True)
class _PointerAttribute:
    """An attribute of a product that is a pointer.

    Attributes:
        name: the library's name for it.
        field: its field in messages.
        offset: bytes from the field's pointer to it.
        cell: the value for ``set``.
        set: sets the attribute, and returns the library's status.
        known: its current value.
    """

    name: str
    field: str
    offset: int
    cell: c_void_p
    set: Callable[[], int]
    known: int | None = None


class _ProductCells(NamedTuple):
    """Arguments that calls of a product read at each call."""

    a: c_void_p
    b: c_void_p
    c: c_void_p
    d: c_void_p
    workspace: c_void_p
    alpha: Any
    beta: Any
    alpha_pointer: Any
    beta_pointer: Any

    @classmethod
    def of(cls, spec: BlasLtSpec) -> _ProductCells:
        """Make the cells of a product, with nulls and zeros."""
        alpha, alpha_pointer = number_cell(spec.scale_type)
        if spec.factors:
            alpha = alpha_pointer = c_void_p()
        beta, beta_pointer = number_cell(spec.scale_type)
        pointers = c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_void_p()
        return cls(*pointers, alpha, beta, alpha_pointer, beta_pointer)


class _PreparedProduct(NamedTuple):
    """A product as the library knows it."""

    spec: BlasLtSpec
    empty: bool
    """True if there is nothing to multiply."""
    c_may_be_d: bool
    description: int
    a: int
    b: int
    c: int
    d: int
    preference: int
    algorithms: dict[int, list[tuple[bytes, int]]]
    """The best ones by how much workspace they may have."""
    places: tuple[_PointerAttribute, ...]
    cells: _ProductCells
    calls: Recent[tuple[bytes, int], Callable[[], int]]
    """By algorithm and bytes of workspace."""
    made: ExitStack
    """Destroys all of it."""


@final
class CudaBlasLt:
    """Executes BLASLt messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._library: Final = load_cublaslt()
        self._context: Final = context
        self._pointer: Final = context.pointer
        self._stream: Final = stream
        self._set: Final = self._library.functions["cublasLtMatmulDescSetAttribute"]
        self._plans: Recent[bytes, _PreparedProduct] = Recent(
            _MOST_PLANS, lambda plan: plan.made.close()
        )
        self._kernels: Kernels | None = None
        self._decode: Final = msgspec.msgpack.Decoder(BlasLtSpec).decode
        handle = c_void_p()
        self._library.call("cublasLtCreate", byref(handle))
        self._handle: Final = handle.value
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Heuristic: self._heuristic,
            RunBlasLt: self._matmul,
            TuneBlasLt: self._tune,
        }
        self.preparers: Final = {RunBlasLt: self._prepare_matmul}

    @staticmethod
    def preload() -> None:
        """Load the library."""
        load_cublaslt()

    def close(self) -> None:
        """Destroy the handle and the prepared products."""
        self._plans.clear()
        if self._kernels is not None:
            self._kernels.close()
        self._library.call("cublasLtDestroy", self._handle)

    # --- messages -------------------------------------------------------------------------

    def _heuristic(self, message: Heuristic) -> list[tuple[bytes, int, int]]:
        plan = self._plan(message.spec)
        found = self._algorithms(plan, message.workspace, message.most)
        return [(*each, 0 if plan.empty else self._number(each[0])) for each in found]

    def _number(self, algorithm: bytes) -> int:
        """Return the library's number of an algorithm, which is independent of its settings."""
        number, written = c_int32(), c_size_t()
        self._library.call(
            "cublasLtMatmulAlgoConfigGetAttribute",
            *(algorithm, ENUMS["CUBLASLT_ALGO_CONFIG_ID"]),
            *(byref(number), ctypes.sizeof(number), byref(written)),
        )
        return number.value

    def _matmul(self, message: RunBlasLt) -> None:
        plan = self._plan(message.spec)
        if plan.empty:
            self._clear_sums(plan.spec, message)
            return
        if message.zeros or message.packed_scales:
            self._arrange(plan.spec, message)
        algorithm = message.algorithm
        if not algorithm:
            algorithm = self._algorithms(plan, message.workspace_bytes, 1)[0][0]
        status = self._launch(plan, message, algorithm)
        if status:
            raise self._error("cublasLtMatmul", status)

    def _prepare_matmul(self, template: HostTemplate) -> Callable[[Sequence[int]], None] | None:
        """Return a function that runs products with other addresses, or None."""
        message: Any = template.message
        spec, plan = message.spec, self._plan(message.spec)
        if plan.empty or message.zeros or message.packed_scales:
            return None
        cells, plans = (
            _ProductCells.of(plan.spec),
            self._plans,
        )  # of its own: what is set here stays
        c = message.c or (message.d if plan.c_may_be_d else 0)
        fields = message.a, message.b, c, message.d, message.workspace
        given = [*zip(cells[: len(fields)], fields, strict=True)]
        if plan.spec.factors:
            given.append((cells.alpha, message.factors))
        else:
            cells.alpha.value = message.alpha
        cells.beta.value = message.beta
        attributes = [(each, getattr(message, each.field)) for each in plan.places]
        if any(0 < value < PLACE for _, value in (*given, *attributes)):
            return None
        moving = [(cell, value ^ PLACE) for cell, value in given if value]
        places = [(each, value ^ PLACE) for each, value in attributes if value]
        nbytes = message.workspace_bytes
        algorithm = message.algorithm or self._algorithms(plan, nbytes, 1)[0][0]
        call = self._prepare_call(plan, cells, algorithm, nbytes)
        all_pointers = self._context.pointers

        def run(addresses: Sequence[int]) -> None:
            if plans.get(spec) is not plan:  # it had to make room for others
                filled: Any = template.filled(addresses)
                self._matmul(filled)
                return
            pointers = all_pointers(addresses)
            for place, at in places:
                pointer = pointers[at] + place.offset
                if pointer != place.known:
                    self._place(place, pointer)
            for cell, at in moving:
                cell.value = pointers[at]
            status = call()
            if status:
                raise self._error("cublasLtMatmul", status)

        return run

    def _tune(self, message: TuneBlasLt) -> int:
        product = message.product
        plan = self._plan(product.spec)
        if plan.empty:
            return 0
        self._arrange(plan.spec, product)
        algorithms = [algorithm for algorithm, _, _ in message.candidates]
        good = [i for i, each in enumerate(algorithms) if not self._launch(plan, product, each)]
        times: dict[int, list[float]] = {i: [] for i in good}
        with timing_events() as events:
            for _ in range(_ROUNDS if len(good) > 1 else 0):
                for i in good:
                    time = self._time(events, plan, product, algorithms[i], 1)
                    runs = min(_MOST_RUNS, int(_ROUND_MILLISECONDS / max(time, 1e-3)))
                    if runs > 1:
                        time = self._time(events, plan, product, algorithms[i], runs)
                    times[i].append(time)
        return min(good, key=lambda i: statistics.median(times[i] or [0.0]), default=0)

    def _time(
        self,
        events: list[Any],
        plan: _PreparedProduct,
        message: RunBlasLt,
        algorithm: bytes,
        runs: int,
    ) -> float:
        """Milliseconds that a product takes."""
        stream = self._stream.handle
        check("cuEventRecord", driver.cuEventRecord(events[0], stream))
        for _ in range(runs):
            self._launch(plan, message, algorithm)
        check("cuEventRecord", driver.cuEventRecord(events[1], stream))
        check("cuEventSynchronize", driver.cuEventSynchronize(events[1]))
        time: float = check("cuEventElapsedTime", driver.cuEventElapsedTime(*events))
        return time / runs

    def _launch(self, plan: _PreparedProduct, message: RunBlasLt, algorithm: bytes) -> int:
        """Queue a product; its status."""
        pointer = self._pointer
        for each in plan.places:
            address = getattr(message, each.field)
            if address:
                place = pointer(address) + each.offset
                if place != each.known:
                    self._place(each, place)
        cells = plan.cells
        key = algorithm, message.workspace_bytes
        call = plan.calls.get(key)
        if call is None:
            call = plan.calls.keep(key, self._prepare_call(plan, cells, *key))
        cells.a.value = pointer(message.packed_a or message.a)
        cells.b.value = pointer(message.packed_b or message.b)
        cells.d.value = d = pointer(message.d)
        # Without one nothing is read there; but where the types differ it cannot be d.
        cells.c.value = pointer(message.c) if message.c else d if plan.c_may_be_d else None
        cells.workspace.value = pointer(message.workspace) if message.workspace else None
        cells.alpha.value = pointer(message.factors) if message.factors else message.alpha
        cells.beta.value = message.beta
        return call()

    def _prepare_call(
        self, plan: _PreparedProduct, cells: _ProductCells, algorithm: bytes, workspace_bytes: int
    ) -> Callable[[], int]:
        """The call of a product, with all that is not in cells."""
        return self._library.prepare(
            "cublasLtMatmul",
            *(self._handle, plan.description, cells.alpha_pointer),
            *(cells.b, plan.b, cells.a, plan.a),
            *(cells.beta_pointer, cells.c, plan.c, cells.d, plan.d),
            *(algorithm, cells.workspace, workspace_bytes, self._stream.pointer),
        )

    def _place(self, place: _PointerAttribute, pointer: int) -> None:
        """Set an attribute of a description to another pointer; it stays until the next."""
        place.known = None  # nobody knows, if this fails
        place.cell.value = pointer
        status = place.set()
        if status:
            raise self._error(f"cublasLtMatmulDescSetAttribute({place.name})", status)
        place.known = pointer

    def _places(self, description: int, spec: BlasLtSpec) -> tuple[_PointerAttribute, ...]:
        """The attributes that may change with every call."""
        fields = [
            ("BIAS_POINTER", "bias", 0),
            ("EPILOGUE_AUX_POINTER", "aux", 0),
            ("D_SCALE_POINTER", "scale_d", 0),
            ("AMAX_D_POINTER", "amax", 0),
        ]
        if spec.scaling in BLOCKS:  # those that lie as the library wants them
            fields.append(("B_SCALE_POINTER", "packed_scales", 0))
            offset = block_scale_bytes(spec.m, spec.k // BLOCKS[spec.scaling])
            fields.append(("A_SCALE_POINTER", "packed_scales", offset))
        else:
            fields += [("A_SCALE_POINTER", "scale_b", 0), ("B_SCALE_POINTER", "scale_a", 0)]
        had = {name for name, _ in self._described(spec)}
        places = []
        for name, field, offset in fields:
            if name in had:
                cell = c_void_p()
                call = self._library.prepare(
                    "cublasLtMatmulDescSetAttribute",
                    *(description, attribute(name), byref(cell), ctypes.sizeof(cell)),
                )
                places.append(_PointerAttribute(name, field, offset, cell, call))
        return tuple(places)

    def _clear_sums(self, spec: BlasLtSpec, message: RunBlasLt) -> None:
        """Write the sums and the largest magnitude of an empty product, which are zeros."""
        epilogue = EPILOGUES[spec.epilogue]
        if epilogue.bias_gradient:
            count = (spec.m if epilogue.bias_gradient == "m" else spec.n) * spec.batch
            self._fill(message.bias, count * DTYPES[spec.bias_dtype].itemsize)
        if message.amax:
            self._fill(message.amax, 4)

    def _arrange(self, spec: BlasLtSpec, message: RunBlasLt) -> None:
        """Zeros that stand for nothing; fp4, and scales of blocks, as the library wants them."""
        if message.zeros:
            self._fill(message.a, message.zeros)
        if spec.scaling not in BLOCKS:
            return
        kernels = self._own_kernels()
        for target, source, rows in (
            (message.packed_a, message.a, spec.m),
            (message.packed_b, message.b, spec.n),
        ):
            if target:
                kernels.run(
                    "pack", self._pointer(target), self._pointer(source), rows * spec.k // 2
                )
        tiles = self._pointer(message.packed_scales)
        for source, rows in ((message.scale_a, spec.m), (message.scale_b, spec.n)):
            columns = spec.k // BLOCKS[spec.scaling]
            count = block_scale_bytes(rows, columns)
            kernels.run("tile", tiles, self._pointer(source), count, rows, columns)
            tiles += count

    def _own_kernels(self) -> _KernelRunner:
        from ....executors.cuda_kernels import Kernels  # needs NVRTC, which others do not

        if self._kernels is None:
            self._kernels = Kernels(self._context, self._stream, _KERNELS)
        return _KernelRunner(self._kernels)

    def _fill(self, address: int, nbytes: int) -> None:
        if nbytes:
            check(
                "cuMemsetD8Async",
                driver.cuMemsetD8Async(self._pointer(address), 0, nbytes, self._stream.handle),
            )

    # --- preparing ------------------------------------------------------------------------

    def _plan(self, encoded: bytes) -> _PreparedProduct:
        plan = self._plans.get(encoded)
        if plan is None:
            plan = self._plans.keep(encoded, self._prepare(self._decode(encoded)))
        return plan

    def _prepare(self, spec: BlasLtSpec) -> _PreparedProduct:
        self._require_device(spec)
        with undone_on_error() as made:
            compute = ENUMS[f"CUBLAS_COMPUTE_{spec.compute}"]
            kinds = compute, CUDA_TYPES[spec.scale_type]
            description = self._create(made, "MatmulDesc", *kinds)
            self._describe(description, spec)
            preference = self._create(made, "MatmulPreference")
            for side, operand in zip("BACD", (spec.a, spec.b, spec.c, spec.d), strict=True):
                self._prefer(preference, f"MIN_ALIGNMENT_{side}_BYTES", c_uint32(operand.alignment))
            operands = (spec.a, spec.b, spec.c, spec.d)
            a, b, c, d = [self._layout(made, each, spec.batch) for each in operands]
            places = self._places(description, spec)
        return _PreparedProduct(
            spec,
            empty=not spec.m or not spec.n or not spec.batch,
            c_may_be_d=spec.c.dtype == spec.d.dtype,
            description=description,
            a=a,
            b=b,
            c=c,
            d=d,
            preference=preference,
            algorithms={},
            places=places,
            cells=_ProductCells.of(spec),
            calls=Recent(_MOST_CALLS),
            made=made,
        )

    def _create(self, made: ExitStack, kind: str, *values: int) -> int:
        """A descriptor of the library, which ``made`` destroys."""
        created = c_void_p()
        self._library.call(f"cublasLt{kind}Create", byref(created), *values)
        made.callback(self._library.call, f"cublasLt{kind}Destroy", created.value)
        return created.value or 0

    def _describe(self, description: int, spec: BlasLtSpec) -> None:
        """Set a description to what a product is."""
        for name, value in self._described(spec):
            self._attribute(description, name, value)

    @staticmethod
    def _described(spec: BlasLtSpec) -> list[tuple[str, Any]]:
        """The attributes of a product."""
        epilogue = EPILOGUES[spec.epilogue]
        vendor = ENUMS[f"CUBLASLT_EPILOGUE_{epilogue.vendor}"]
        values: list[tuple[str, Any]] = [
            ("TRANSA", c_int32(spec.op_b)),
            ("TRANSB", c_int32(spec.op_a)),
            ("EPILOGUE", c_uint32(vendor)),
        ]
        if epilogue.bias or epilogue.bias_gradient:
            values.append(("BIAS_POINTER", c_void_p(_SOMEWHERE + spec.bias_alignment)))
            values.append(("BIAS_DATA_TYPE", c_int32(CUDA_TYPES[spec.bias_dtype])))
            if spec.batch > 1:
                values.append(("BIAS_BATCH_STRIDE", c_int64(spec.bias_step)))
        if spec.aux_ld:
            values.append(("EPILOGUE_AUX_POINTER", c_void_p(_SOMEWHERE + spec.aux_alignment)))
            values.append(("EPILOGUE_AUX_LD", c_int64(spec.aux_ld)))
            if spec.batch > 1:
                step = c_int64(spec.aux_ld * spec.m)
                values.append(("EPILOGUE_AUX_BATCH_STRIDE", step))
            if spec.d.dtype in FP8 and not epilogue.mask:
                values.append(("EPILOGUE_AUX_DATA_TYPE", c_int32(CUDA_TYPES[spec.c.dtype])))
        for side, wanted in (("A", spec.scale_b), ("B", spec.scale_a), ("D", spec.scale_d)):
            if wanted:
                values.append((f"{side}_SCALE_POINTER", c_void_p(_SOMEWHERE)))
        if spec.scaling:
            mode = _SCALE_MODES.get(spec.scaling)
            if mode:
                number = ENUMS[f"CUBLASLT_MATMUL_MATRIX_SCALE_{mode}"]
                values += [(f"{side}_SCALE_MODE", c_int32(number)) for side in "AB"]
        if spec.amax:
            values.append(("AMAX_D_POINTER", c_void_p(_SOMEWHERE)))
        if spec.fast:
            values.append(("FAST_ACCUM", c_int8(1)))
        if spec.factors:  # of the library's rows, which are our columns
            mode_of_pointers = ENUMS["CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST"]
            values.append(("POINTER_MODE", c_int32(mode_of_pointers)))
        return values

    def _require_device(self, spec: BlasLtSpec) -> None:
        """Say why where the library would only say that it cannot."""
        capability = self._context.compute_capability
        narrow = spec.a.dtype
        if narrow == E2M1 and capability < (10, 0):
            raise Unsupported(f"fp4 needs compute capability 10.0; this device has {capability}")
        if spec.scaling == "mxfp8" and capability < (10, 0):
            raise Unsupported(
                f"block scales of fp8 need compute capability 10.0; this device has {capability}"
            )
        if narrow in FP8:
            if capability < (8, 9):
                raise Unsupported(f"fp8 needs compute capability 8.9; this device has {capability}")
            if capability < (10, 0) and (spec.op_a, spec.op_b) != (0, 1):
                raise Unsupported(
                    "before compute capability 10.0 fp8 is multiplied as a @ b.T only: store b "
                    "as (n, k) and give trans_a=False, trans_b=True"
                )

    def _layout(self, made: ExitStack, operand: MatrixLayout, batch: int) -> int:
        kind = CUDA_TYPES[operand.dtype]
        sizes = max(1, operand.columns), max(1, operand.rows), operand.ld
        layout = self._create(made, "MatrixLayout", kind, *sizes)
        if batch > 1:
            for name, value in (
                ("BATCH_COUNT", array("int", (batch,))),
                ("STRIDED_BATCH_OFFSET", c_int64(operand.step)),
            ):
                number = ENUMS[f"CUBLASLT_MATRIX_LAYOUT_{name}"]
                size = ctypes.sizeof(value)
                self._library.call(
                    "cublasLtMatrixLayoutSetAttribute", layout, number, byref(value), size
                )
        return layout

    def _algorithms(
        self, plan: _PreparedProduct, workspace: int, most: int
    ) -> list[tuple[bytes, int]]:
        """The best algorithms, as the library guesses; at least one."""
        spec = plan.spec
        if plan.empty:
            return [(b"none", 0)]
        known = plan.algorithms.get(workspace, [])
        if len(known) >= most:
            return known[:most]
        self._prefer(plan.preference, "MAX_WORKSPACE_BYTES", c_uint64(workspace))
        results = ctypes.create_string_buffer(most * RESULT_BYTES)
        found = c_int()
        status = self._library.functions["cublasLtMatmulAlgoGetHeuristic"](
            self._handle,
            plan.description,
            plan.b,
            plan.a,
            plan.c,
            plan.d,
            plan.preference,
            most,
            results,
            byref(found),
        )
        if status and status != NOT_SUPPORTED:
            raise self._error("cublasLtMatmulAlgoGetHeuristic", status)
        algorithms = []
        for i in range(0 if status else found.value):
            result = results.raw[i * RESULT_BYTES : (i + 1) * RESULT_BYTES]
            nbytes, state = struct.unpack_from("Qi", result, ALGORITHM_BYTES)
            if not state:
                algorithms.append((result[:ALGORITHM_BYTES], nbytes))
        if not algorithms:
            raise Unsupported(f"cuBLASLt has no algorithm on this device for {_describe(spec)}")
        plan.algorithms[workspace] = algorithms
        return algorithms

    def _attribute(self, description: int, name: str, value: Any) -> None:
        status = self._set(description, attribute(name), byref(value), ctypes.sizeof(value))
        if status:
            raise self._error(f"cublasLtMatmulDescSetAttribute({name})", status)

    def _prefer(self, preference: int, name: str, value: Any) -> None:
        self._library.call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            ENUMS[f"CUBLASLT_MATMUL_PREF_{name}"],
            byref(value),
            ctypes.sizeof(value),
        )

    def _error(self, call: str, status: int) -> Exception:
        error = self._library.error(call, status)
        if status == NOT_SUPPORTED:
            return Unsupported(f"{error}: not with these types and options on this device")
        return error


@final
class _KernelRunner:
    """Kernels with their arguments written out."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def run(self, name: str, target: int, source: int, *sizes: int) -> None:
        """Launch with a thread for each of the first size."""
        from ....executors.cuda_kernels import KernelArguments

        arguments = KernelArguments(struct.pack(f"QQ{len(sizes)}Q", target, source, *sizes))
        self._kernels.launch(self._kernels.function(name), sizes[0], arguments)


def _describe(spec: BlasLtSpec) -> str:
    epilogue = f", epilogue {spec.epilogue}" if spec.epilogue else ""
    scales = f", scales by {spec.scaling}" if spec.scaling else ""
    scales += ", an alpha for each column" if spec.factors else ""
    return (
        f"{spec.batch} x ({spec.m}, {spec.k}) @ ({spec.k}, {spec.n}), {spec.a.dtype} and "
        f"{spec.b.dtype} to {spec.d.dtype}, ops {spec.op_a} and {spec.op_b}, compute type "
        f"{spec.compute}{epilogue}{scales}"
    )
