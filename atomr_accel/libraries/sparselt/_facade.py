"""``device.sparselt``: products with matrices of structured sparsity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, final, get_args

from ..._dtypes import DTYPES, NAMES, as_dtype
from ..._errors import Unsupported, said_of
from ...arrays import GpuRef, ref_error
from ...ops import (
    D,
    Facade,
    LaneSpec,
    Request,
    Submission,
    op,
    op_of,
    require_alignment,
    require_dtype,
    require_no_alias,
    require_no_race,
    require_readable,
    require_shape,
)
from ...wire.options import flag
from ..blas.checks import scalar
from ..sparse.part import laid, place
from ._structured import StructuredRef
from .wire._messages import (
    ALIGNMENT,
    RESULTS,
    STRUCTURED,
    WHY,
    CheckSparsity,
    Compress,
    DenseOperand,
    MeasureCompressed,
    MultiplyCompressed,
    Prune,
    SparseLtSpec,
    Structured,
    encode,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from ...memory import Block
    from ...ops import DeviceView, Preparer

LANE: Final = LaneSpec(
    "sparselt",
    {
        "cpu": "atomr_accel.libraries.sparselt.host._cpu:CpuSparseLt",
        "cuda": "atomr_accel.libraries.sparselt.host._cuda:CudaSparseLt",
    },
    # to plan a product takes milliseconds, and to check a matrix waits for the device
    own_thread=True,
)

Epilogue = Literal["bias", "relu", "relu_bias", "gelu", "gelu_bias"]
Order = Literal["C", "F"]

_FP8: Final = ("float8_e4m3fn", "float8_e5m2")
_DENSE: Final = {1: 16, 2: 8, 4: 4}
"""Number of which extents must be multiples, by the bytes of an element."""


@final
class SparseLt(Facade[D]):
    """Products with matrices of which every second element is zero, by cuSPARSELt.

    In each group of four elements of a row (of float32: of two) half are zero. A device skips
    those, and reads half as much. ``prune`` makes such a matrix, ``compress`` what products take;
    both are done once, as a rule with weights.

    | a and b | result (the first is the default) | bias |
    |---|---|---|
    | float16 | float16 | float16 |
    | bfloat16 | bfloat16 | bfloat16 |
    | float32, multiplied as TF32 on CUDA | float32 | float32 |
    | int8 | int32, int8 (saturating) | float32 |
    | int8 | float16, bfloat16 | as the result |
    | float8_e4m3fn | bfloat16, float16, float32 | as the result |
    | the same | float8_e4m3fn | float16 or bfloat16, as ``c`` |
    | float8_e5m2 | bfloat16, float16, float32 | as the result |
    | the same | float8_e5m2 | float16 or bfloat16, as ``c`` |

    Rows and columns of a compressed matrix are multiples of 8 in float32, of 16 in 16-bit types and
    of 32 in 8-bit types. Extents of other matrices are multiples of half of that.

    All methods raise ``TypeError`` or ``ValueError`` for dtypes and shapes that do not fit, and
    ``LibraryMissing`` on CUDA if cuSPARSELt is not installed.
    """

    templated = True

    def __init__(self, device: DeviceView) -> None:
        self.home = device

    # --- matrices -----------------------------------------------------------------------------

    prune: Final = op_of(Prune, LANE)
    check: Final = op_of(CheckSparsity, LANE)

    @op
    def compress(self, a: GpuRef) -> Request[StructuredRef]:
        """Compress a matrix of which half of each group is zero, as ``prune`` makes them.

        Of another one it is left open which elements are kept.

        Vendor function: ``cusparseLtSpMMACompress2``.

        Args:
            a: as for ``prune``.

        Returns:
            What ``matmul`` takes; a little more than half as many bytes.

        Raises:
            Unsupported: in a batch or a recording, because the host tells how large it is.
        """

        def prepare(preparer: Preparer) -> Submission[StructuredRef]:
            matrix, source = self._structured(preparer, a)
            measure: Request[tuple[int, int]] = Request(
                LANE,
                "sparselt.measure",
                lambda _preparer: Submission(MeasureCompressed(matrix), (), ()),
            )
            sizes = preparer.perform(measure)
            if sizes is None:
                raise Unsupported(
                    "how large a compressed matrix is the host has to tell, so compress cannot be "
                    "in a batch; await it"
                )
            made, *scratch = (preparer.output((size,), DTYPES["uint8"]) for size in sizes if size)
            targets: list[Block] = [each.block for each in (made, *scratch)]
            at = scratch[0].block.address if scratch else 0
            message = Compress(matrix, source.address, made.block.address, at)
            result = StructuredRef((a.shape[0], a.shape[1]), a.dtype, made)
            return Submission(message, (source,), targets, result)

        return Request(LANE, "sparselt.compress", prepare)

    # --- products -----------------------------------------------------------------------------

    @op
    def matmul(
        self,
        a: StructuredRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        c: GpuRef | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        dtype: DTypeLike | None = None,
        epilogue: Epilogue | None = None,
        bias: GpuRef | None = None,
        order: Order = "C",
        autotune: bool = False,
    ) -> Request[GpuRef]:
        """Multiply a compressed matrix: ``epilogue(alpha * a @ b + beta * c + bias)``.

        A linear layer with compressed weights is ``matmul(w, x.T, order="F").T``.

        Vendor function: ``cusparseLtMatmul``.

        Args:
            a: shape (m, k), as ``compress`` has made it.
            b: shape (k, n), same dtype; by columns, as ``x.T`` is, or of 16-bit types by rows.
            out: where the result goes: shape (m, n), by rows or by columns, not in the memory of
                another operand but ``c``.
            c: what to add: shape (m, n), lying as ``out``; by default ``out``. Of the dtype of the
                result; for fp8 results float16 or bfloat16.
            alpha: scales the product.
            beta: scales ``c``; 0 ignores it, NaNs included.
            dtype: the dtype of the result, see the class.
            epilogue: "relu", "gelu" (by its tanh approximation), with "_bias" behind it or "bias"
                alone; with ``bias`` given, that is the default.
            bias: shape (m,): one for each row.
            order: how a new result lies: "C" by rows, "F" by columns.
            autotune: the first time, run the library's algorithms on these operands and keep the
                fastest.

        Raises:
            TypeError: dtypes that do not fit, no compressed matrix.
            ValueError: shapes, extents or options that do not fit, aliasing; ``autotune`` on a
                deterministic device.
            LibraryMissing: cuSPARSELt is not installed.
            Unsupported: the device, or the library, does not have this combination; cuSPARSELt has
                ``gelu`` for 8-bit types only.
            GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
        """
        if type(a) is not StructuredRef:
            raise TypeError(
                "a must be a StructuredRef, as device.sparselt.compress makes them, not "
                f"{said_of(a)}"
            )
        activation, biased = _epilogue(epilogue, bias)
        kind = _result(a.dtype, dtype, out)
        if order not in get_args(Order):
            raise ValueError(f"order must be 'C' or 'F', not {order!r}")
        tuned = flag(autotune, "autotune")
        require_no_race(self.home, autotune=tuned)
        numbers = [_number(alpha, "alpha"), _number(beta, "beta")]

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            memory = preparer.memory
            compressed = require_readable(preparer.stand_in(a.data), memory, "a")
            source = place(b, preparer, "b")
            require_dtype(b, a.dtype, "b", "a")
            right = _dense(b, "b")
            if right.rows != a.shape[1]:
                raise ValueError(
                    f"a and b must have shapes (m, k) and (k, n), not {a.shape} and {b.shape}"
                )
            # The library does not have 8-bit ones by rows; float32 ones it takes, and hangs.
            if right.by_rows and a.dtype.itemsize != 2 and min(b.shape) > 1:
                raise ValueError(
                    f"b of {a.dtype.name} must lie by columns, as x.T does: "
                    "(await device.copy(b.T)).T"
                )
            shape = (a.shape[0], right.columns)
            made = out
            if made is None:
                turned = order == "F"
                made = preparer.output(shape[::-1] if turned else shape, kind)
                made = made.T if turned else made
            target = place(made, preparer, "out", writable=True)
            require_shape(made, shape, "out")
            result = _dense(made, "out")
            added = c if c is not None else out
            reads = [compressed, source]
            named = [("a", a.data), ("b", b)]
            adding = result
            if c is not None:
                reads.append(place(c, preparer, "c"))
                require_shape(c, shape, "c")
                adding = _dense(c, "c")
                named.append(("c", c))
                if (adding.by_rows, adding.ld) != (result.by_rows, result.ld):
                    raise ValueError("c must lie in memory as out does")
            if numbers[1] and added is None:
                raise ValueError("beta multiplies c or out, so it needs one")
            if kind.name in _FP8:
                adding = _beside_fp8(adding, c, bias, beta=numbers[1])
            elif c is not None:
                require_dtype(c, kind, "c", "the result")
            if bias is not None:
                reads.append(require_readable(bias, memory, "bias"))
                require_shape(bias, shape[:1], "bias")
                wanted = "float32" if adding.dtype in ("int8", "int32") else adding.dtype
                if NAMES[bias.dtype] != wanted:
                    raise TypeError(f"bias must be {wanted} here, not {bias.dtype.name}")
                named.append(("bias", bias))
            require_no_alias("matmul", [("out", made)], named, in_place=(("out", "c"),))
            for name, ref in (*named, ("out", made)):
                require_alignment(ref, ALIGNMENT, name, WHY)
            spec = SparseLtSpec(
                Structured(*a.shape, NAMES[a.dtype]),
                *(right, adding, result),
                activation,
                NAMES[bias.dtype] if bias is not None and biased else "",
                tuned,
            )
            message = MultiplyCompressed(
                encode(spec),
                compressed.address,
                source.address,
                (added if added is not None else made).addressable_block.address,
                target.address,
                0 if bias is None else bias.block.address,
                *numbers,
            )
            if added is out and numbers[1]:
                reads.append(target)
            return Submission(message, reads, (target,), made)

        return Request(LANE, "sparselt.matmul", prepare)

    def _structured(self, preparer: Preparer, a: GpuRef) -> tuple[Structured, Block]:
        """A matrix that is, or may be, half zeros."""
        if not isinstance(a, GpuRef):
            raise ref_error(a, self.home.memory, "a")
        if a.dtype.name not in RESULTS:
            raise TypeError(f"a is {a.dtype.name}; it must be one of {', '.join(RESULTS)}")
        if a.ndim != 2:
            raise ValueError(f"a must have two dimensions, not shape {a.shape}")
        block = require_readable(a, preparer.memory, "a")
        require_alignment(a, ALIGNMENT, "a", WHY)
        _require_multiples(a.shape, STRUCTURED[a.dtype.itemsize], "a", a.dtype)
        rows, columns = a.shape
        return Structured(rows, columns, NAMES[a.dtype]), block


def _epilogue(epilogue: str | None, bias: GpuRef | None) -> tuple[str, bool]:
    """The activation, and whether there is a bias."""
    name = epilogue or ("bias" if bias is not None else "")
    if name not in ("", *get_args(Epilogue)):
        names = ", ".join(map(repr, get_args(Epilogue)))
        raise ValueError(f"epilogue must be one of {names}, not {epilogue!r}")
    biased = name.endswith("bias")
    if biased != (bias is not None):
        raise ValueError(f"epilogue {name!r} and bias do not fit: one says that there is a bias")
    return name.removesuffix("bias").removesuffix("_"), biased


def _result(kind: np.dtype[Any], dtype: DTypeLike | None, out: GpuRef | None) -> np.dtype[Any]:
    """The dtype of the result."""
    known = RESULTS[kind.name]
    given = as_dtype(dtype) if dtype is not None else DTYPES[known[0]] if out is None else out.dtype
    if given.name not in known:
        raise TypeError(f"of {kind.name} results are {', '.join(known)}, not {given.name}")
    if out is not None:
        require_dtype(out, given, "out", "dtype")
    return given


def _number(value: float, name: str) -> float:
    number = scalar(value, DTYPES["float32"], name)
    assert isinstance(number, float)
    return number


def _dense(ref: GpuRef, name: str) -> DenseOperand:
    """A dense matrix."""
    found = laid(ref, name)
    if len(found.shape) != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {ref.shape}")
    multiple = _DENSE[ref.dtype.itemsize]
    _require_multiples(ref.shape, multiple, name, ref.dtype)
    if found.ld % multiple:
        lines = "rows" if found.by_rows else "columns"
        raise ValueError(
            f"{name} of {ref.dtype.name} is a view whose {lines} begin {found.ld} elements apart, "
            f"which must be a multiple of {multiple}: copy it first"
        )
    rows, columns = ref.shape
    return DenseOperand(rows, columns, found.ld, found.by_rows, NAMES[ref.dtype])


def _beside_fp8(
    adding: DenseOperand, c: GpuRef | None, bias: GpuRef | None, *, beta: float
) -> DenseOperand:
    """Return the operand that is added to a product whose result is fp8."""
    if beta and c is None:
        raise ValueError("an fp8 result cannot be added to; give c")
    beside = c if c is not None else bias
    name = "float16" if beside is None else beside.dtype.name
    if name not in ("float16", "bfloat16"):
        raise TypeError(f"c and bias of an fp8 result are float16 or bfloat16, not {name}")
    return DenseOperand(adding.rows, adding.columns, adding.ld, adding.by_rows, name)


def _require_multiples(
    extents: tuple[int, ...], multiple: int, name: str, dtype: np.dtype[Any]
) -> None:
    if not all(extents) or any(extent % multiple for extent in extents):
        raise ValueError(
            f"{name} of {dtype.name} has extents {extents}, which must be multiples of {multiple}, "
            "and not 0"
        )
