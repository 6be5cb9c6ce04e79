"""Plans of products: shapes, dtypes and their rules, without buffers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..._dtypes import DTYPES
from ..._errors import Unsupported
from ...wire import encode
from ...wire.broadcast import broadcast
from ...wire.matrices import Laid
from ..blas.checks import TF32
from .wire._layout import Layout
from .wire._messages import EPILOGUES, BlasLtSpec, EpilogueSpec, MatrixLayout
from .wire._narrow import (
    BLOCKS,
    E2M1,
    E4M3,
    E5M2,
    EXPONENTS,
    FP8,
    block_scale_bytes,
    mask_width,
)

if TYPE_CHECKING:
    import numpy as np

_LINE: Final = 16
"""fp8 and fp4 need rows that are multiples of this number of bytes."""

_ALIGNED: Final = 256
"""Alignment of every buffer in bytes."""

_MOST_PRODUCTS: Final = 2**31 - 1

_F32: Final = ("32F", "32F_PEDANTIC")
_FAST: Final = (*_F32, TF32, "32F_FAST_16F", "32F_FAST_16BF")
_F64: Final = ("64F", "64F_PEDANTIC")


class TypeCombination(NamedTuple):
    """A combination of dtypes that can be multiplied.

    Attributes:
        computes: compute types, the default one first.
        scale: dtype of alpha and beta.
        bias: dtype of a bias; None if it cannot have one.
        c: possible dtypes of the added array, the default one first.
    """

    computes: tuple[str, ...]
    scale: str
    bias: str | None
    c: tuple[str, ...]


def _kinds() -> dict[tuple[str, str, str], TypeCombination]:
    kinds = {
        ("float16", "float16", "float16"): TypeCombination(
            (*_F32, "16F", "16F_PEDANTIC"), "float32", "float16", ("float16",)
        ),
        ("bfloat16", "bfloat16", "bfloat16"): TypeCombination(
            _F32, "float32", "bfloat16", ("bfloat16",)
        ),
        ("int8", "int8", "int32"): TypeCombination(
            ("32I", "32I_PEDANTIC"), "int32", None, ("int32",)
        ),
        ("int8", "int8", "int8"): TypeCombination(
            ("32I", "32I_PEDANTIC"), "float32", "float32", ("int8",)
        ),
    }
    for half in ("float16", "bfloat16"):
        kinds[half, half, "float32"] = TypeCombination(_F32, "float32", "float32", ("float32",))
        kinds[E2M1, E2M1, half] = TypeCombination(("32F",), "float32", half, (half,))
    kinds[E2M1, E2M1, "float32"] = TypeCombination(("32F",), "float32", "bfloat16", ("float32",))
    for name, computes in (
        ("float32", _FAST),
        ("complex64", _FAST),
        ("float64", _F64),
        ("complex128", _F64),
    ):
        kinds[name, name, name] = TypeCombination(computes, name, name, (name,))
    for a, b in ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)):
        kinds[a, b, "bfloat16"] = TypeCombination(("32F",), "float32", "bfloat16", ("bfloat16",))
        kinds[a, b, "float16"] = TypeCombination(("32F",), "float32", "float16", ("float16",))
        kinds[a, b, "float32"] = TypeCombination(("32F",), "float32", "bfloat16", ("float32",))
        for narrow in (E4M3,) if a == b else FP8:
            kinds[a, b, narrow] = TypeCombination(
                ("32F",), "float32", None, ("bfloat16", "float16")
            )
    return kinds


KINDS: Final = _kinds()
"""By dtypes of a, b and the result. A narrow result's bias has the dtype of c."""

_DEFAULT_RESULT: Final = {"int8": "int32", E4M3: "bfloat16", E5M2: "bfloat16", E2M1: "bfloat16"}
_PLAIN_EPILOGUES: Final = ("", "bias")


class Given(NamedTuple):
    """A buffer as an argument: what planning may know of it."""

    shape: tuple[int, ...]
    dtype: str
    alignment: int = 256
    """Bytes to which its address is aligned; views may begin anywhere."""
    laid: Laid | None = None
    """Layout of its stored matrices, if it is not contiguous."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


class PlanKey(NamedTuple):
    """All of a call that does not depend on what the buffers hold."""

    a: Given
    b: Given
    c: Given | None
    bias: Given | None
    scale_a: Given | None
    scale_b: Given | None
    scale_out: Given | None
    out: Given | None
    aux: Given | None
    factors: Given | None
    layout_a: Layout | None
    layout_b: Layout | None
    layout_out: Layout | None
    trans_a: int
    trans_b: int
    dtype: np.dtype[Any] | None
    compute_type: str | None
    epilogue: str
    fast: bool
    amax: bool


class BlasLtPlan(NamedTuple):
    """The plan of a call.

    Attributes:
        spec: the product.
        encoded: the product as bytes, as the lane gets it.
        shape: shape of the result.
        aux_shape, aux_dtype: of the auxiliary output.
        gradient_shape: of a bias gradient.
        offset_a, offset_b, offset_d: bytes before the matrices.
        zeros: bytes of zeros that stand for a and b, which are empty.
        packed: bytes of scratch memory for a, for b and for their scales.
        scratch: True if it needs zeros or packed memory.
        several: True if there is more than one result.
        real: True if alpha and beta are arbitrary real numbers.
    """

    spec: BlasLtSpec
    encoded: bytes
    epilogue: EpilogueSpec
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bias_dtype: str
    aux_shape: tuple[int, ...]
    aux_dtype: np.dtype[Any]
    gradient_shape: tuple[int, ...]
    offset_a: int
    offset_b: int
    offset_d: int
    zeros: int
    packed: tuple[int, int, int]
    scratch: bool
    several: bool
    real: bool


class _MatrixView(NamedTuple):
    """A buffer read as matrices: leading dimensions, then row-major rows and columns."""

    lead: tuple[int, ...]
    rows: int
    columns: int
    ld: int
    step: int | tuple[int, ...] | None
    offset: int
    op: int


def make_plan(key: PlanKey) -> BlasLtPlan:
    """Plan a call."""
    a, b = key.a, key.b
    epilogue = EPILOGUES.get(key.epilogue)
    if epilogue is None:
        raise ValueError(
            f"epilogue must be one of {', '.join(filter(None, EPILOGUES))}, not {key.epilogue!r}"
        )
    dtype, kind = _kind(key)
    compute = kind.computes[0] if key.compute_type is None else key.compute_type
    if compute == TF32 and TF32 not in kind.computes:
        compute = kind.computes[0]
    if compute not in kind.computes:
        raise ValueError(
            f"compute_type for {a.dtype} and {b.dtype} to {dtype} must be one of "
            f"{', '.join(kind.computes)}, not {compute!r}"
        )
    view_a = _view(a, key.layout_a, key.trans_a, "a")
    view_b = _view(b, key.layout_b, key.trans_b, "b")
    m, k = (view_a.columns, view_a.rows) if view_a.op else (view_a.rows, view_a.columns)
    k_b, n = (view_b.columns, view_b.rows) if view_b.op else (view_b.rows, view_b.columns)
    if k != k_b:
        raise ValueError(
            f"the inner dimensions differ: op(a) is {(m, k)} (a has shape {a.shape}, "
            f"trans_a={key.trans_a}), op(b) is {(k_b, n)} (b has shape {b.shape}, "
            f"trans_b={key.trans_b})"
        )
    batch = broadcast(
        (*view_a.lead, view_a.rows, view_a.columns),
        (*view_b.lead, view_b.rows, view_b.columns),
        view_a.step,
        view_b.step,
    )
    shape = (*batch.shape, m, n)
    sizes, strides_a, strides_b = batch.sizes, batch.strides_a, batch.strides_b
    tall = not any(strides_b) and not view_a.op and batch.shape == view_a.lead
    contiguous = key.layout_a is None and key.layout_out is None
    if a.laid is not None or (key.out is not None and key.out.laid is not None):
        contiguous = key.out is None and strides_a == (m * view_a.ld,)
    rows_before = m
    shared = key.bias is None or key.bias.shape == (n,)
    if sizes and tall and contiguous and shared:
        # One b for all of a: its matrices are the rows of one tall matrix.
        m *= batch.products
        sizes = strides_a = strides_b = ()
        view_a = view_a._replace(rows=m)
    if len(sizes) > 1:
        raise Unsupported(
            f"the leading dimensions of a {a.shape} and b {b.shape} need more than one stride; "
            f"device.blas.matmul takes them"
        )
    count = math.prod(sizes)
    if count > _MOST_PRODUCTS:
        raise ValueError(
            f"a and b must make at most 2**31 - 1 products, not {count}, in shapes "
            f"{a.shape} and {b.shape}; do it in parts"
        )
    lead = batch.shape
    offset_d, ld_d, step_d = _output_layout(key, m, n, count, shape)
    _check_narrow(key, view_a, view_b, k, n)
    _require_aligned(key)
    bias_dtype = _bias_dtype(key, kind, epilogue)
    bias_step = _bias_step(key, n, batch.shape, count)
    c_dtype = _c_dtype(key, kind, bias_dtype, shape)
    aux_shape, aux_ld = _aux(key, epilogue, c_dtype, (*lead, rows_before), n)
    gradient = {"m": (*lead, rows_before), "n": (*(lead if sizes else ()), n), "": ()}
    if epilogue.bias_gradient:
        bias_step = n if epilogue.bias_gradient == "n" else m
    scaling, packed = _scaling(key, m, n, k, count)
    operand_a = _operand(view_a, strides_a, a)
    operand_b = _operand(view_b, strides_b, b)
    zeros = 0
    op_a, op_b = view_a.op, view_b.op
    if not k and m and n and count:
        k, op_a, op_b = 16, 0, 1
        operand_a = MatrixLayout(m, k, k, 0, a.dtype)
        operand_b = MatrixLayout(n, k, k, 0, b.dtype)
        zeros = max(m, n) * k * DTYPES[a.dtype].itemsize
    scale = "float16" if compute.startswith("16F") else kind.scale
    spec = BlasLtSpec(
        m=m,
        n=n,
        k=k,
        batch=count,
        a=operand_a,
        b=operand_b,
        c=MatrixLayout(m, n, ld_d, step_d, c_dtype, _alignment(key.c or key.out, offset_d)),
        d=MatrixLayout(m, n, ld_d, step_d, dtype, _alignment(key.out, offset_d)),
        op_a=op_a,
        op_b=op_b,
        compute=compute,
        scale_type=scale,
        epilogue=key.epilogue,
        bias_dtype=bias_dtype,
        bias_step=bias_step,
        aux_ld=aux_ld,
        bias_alignment=_alignment(key.bias),
        aux_alignment=_alignment(key.aux),
        scaling=scaling,
        scale_a=key.scale_a is not None,
        scale_b=key.scale_b is not None,
        scale_d=key.scale_out is not None,
        amax=key.amax,
        fast=key.fast,
        factors=_factors(key, kind, n),
    )
    return BlasLtPlan(
        spec=spec,
        encoded=encode(spec, "blaslt.matmul"),
        epilogue=epilogue,
        shape=shape,
        dtype=DTYPES[dtype],
        bias_dtype=bias_dtype,
        aux_shape=aux_shape,
        aux_dtype=DTYPES["uint8" if epilogue.mask else c_dtype],
        gradient_shape=gradient[epilogue.bias_gradient],
        offset_a=view_a.offset * DTYPES[a.dtype].itemsize,
        offset_b=view_b.offset * DTYPES[b.dtype].itemsize,
        offset_d=offset_d,
        zeros=zeros,
        packed=packed,
        scratch=bool(zeros or any(packed)),
        several=epilogue.makes_aux or bool(epilogue.bias_gradient) or key.amax,
        real=scale in ("float16", "float32", "float64"),
    )


def aux_width(n: int) -> int:
    """Elements of a row that an epilogue keeps: the vendor wants multiples of eight."""
    return -(-n // 8) * 8


def _kind(key: PlanKey) -> tuple[str, TypeCombination]:
    """The dtype of the result, and what goes with these dtypes."""
    a, b = key.a.dtype, key.b.dtype
    outputs = [out for left, right, out in KINDS if (left, right) == (a, b)]
    if not outputs:
        pairs = dict.fromkeys(f"{left} and {right}" for left, right, _ in KINDS)
        raise TypeError(f"matmul does not take {a} and {b}; it takes {', '.join(pairs)}")
    if key.dtype is not None:
        wanted: str = key.dtype.name
    elif key.out is not None:
        wanted = key.out.dtype
    else:
        wanted = _DEFAULT_RESULT.get(a, a)
    if wanted not in outputs:
        raise TypeError(f"matmul of {a} and {b} gives {', '.join(outputs)}, not {wanted}")
    if key.out is not None and key.out.dtype != wanted:
        raise TypeError(f"out must have dtype {wanted}, not {key.out.dtype}")
    return wanted, KINDS[a, b, wanted]


def _view(given: Given, layout: Layout | None, trans: int, name: str) -> _MatrixView:
    if layout is None:
        if len(given.shape) < 2:
            raise ValueError(f"{name} must have at least 2 dimensions, not shape {given.shape}")
        rows, columns = given.shape[-2:]
        if given.laid is not None:
            op, row, steps = given.laid
            if op != trans:
                rows, columns = columns, rows
            return _MatrixView(given.shape[:-2], rows, columns, row, steps, 0, op)
        return _MatrixView(given.shape[:-2], rows, columns, max(1, columns), None, 0, trans)
    _require_room(given, layout, name)
    op = trans
    if layout.order == "col":
        # The rows of a column-major matrix are the columns of a row-major one.
        if trans == 2:
            raise ValueError(f"order 'col' and trans_{name}='C' cannot go together")
        op = 1 - trans
    lead: tuple[int, ...] = () if layout.batch is None else (layout.batch,)
    return _MatrixView(
        lead, layout.lines, layout.line, layout.leading, layout.step, layout.offset, op
    )


def _require_room(given: Given, layout: Layout, name: str) -> None:
    if layout.extent > given.size:
        raise ValueError(
            f"{name} must have the {layout.extent} elements that layout_{name} takes, "
            f"not {given.size}, in shape {given.shape}: {layout}"
        )


def _output_layout(
    key: PlanKey, m: int, n: int, count: int, shape: tuple[int, ...]
) -> tuple[int, int, int]:
    """Offset in bytes, leading dimension and step of the result."""
    layout = key.layout_out
    if layout is None:
        if key.out is not None and key.out.shape != shape:
            raise ValueError(f"out must have shape {shape}, not {key.out.shape}")
        if key.out is not None and key.out.laid is not None:
            return 0, key.out.laid.row, sum(key.out.laid.steps) if count > 1 else m * n
        return 0, max(1, n), m * n
    if key.out is None:
        raise ValueError("layout_out says where in out the result goes; pass that out")
    _require_room(key.out, layout, "out")
    if layout.order != "row":
        raise ValueError("layout_out must have order 'row'; swap and transpose a and b instead")
    if key.c is not None:
        raise ValueError("layout_out and c cannot go together; let out hold what is added")
    if (layout.rows, layout.columns) != (m, n) or (layout.batch or 1) != count:
        raise ValueError(
            f"layout_out must hold a result of shape {shape}, not {layout.batch or 1} "
            f"times {(layout.rows, layout.columns)}"
        )
    if count > 1 and layout.step < layout.matrix_size:
        raise ValueError(
            f"layout_out has matrices of {layout.matrix_size} elements {layout.step} apart: "
            f"they overlap"
        )
    return layout.offset * DTYPES[key.out.dtype].itemsize, layout.leading, layout.step


def _alignment(given: Given | None, offset: int = 0) -> int:
    """Return the alignment of an address in a buffer; a buffer that is made is well aligned."""
    return math.gcd(_ALIGNED if given is None else given.alignment, offset)


def _require_aligned(key: PlanKey) -> None:
    """Require 16-byte alignment of the epilogue's inputs, which the library does not check."""
    for name in ("bias", "aux"):
        given: Given | None = getattr(key, name)
        if given is not None and given.alignment % _LINE:
            raise ValueError(
                f"{name} is a view that begins at a multiple of {given.alignment} bytes only; "
                f"it needs {_LINE}: copy it first"
            )


def _operand(view: _MatrixView, steps: tuple[int, ...], given: Given) -> MatrixLayout:
    return MatrixLayout(
        view.rows,
        view.columns,
        view.ld,
        steps[0] if steps else 0,
        given.dtype,
        _alignment(given, view.offset * DTYPES[given.dtype].itemsize),
    )


def _check_narrow(key: PlanKey, view_a: _MatrixView, view_b: _MatrixView, k: int, n: int) -> None:
    """Check the sizes that int8, fp8 and fp4 require."""
    narrow = key.a.dtype
    if narrow == "int8":
        multiple, what = 4, "int8 needs leading dimensions of a multiple of 4"
    elif narrow in (*FP8, E2M1):
        multiple = _LINE * (2 if narrow == E2M1 else 1)
        what = f"{narrow} needs inner dimensions and rows of a multiple of {multiple}"
        if k % multiple or n % _LINE:
            raise ValueError(f"{what}: k is {k}, n is {n} (n needs a multiple of {_LINE})")
    else:
        return
    for name, view, given in (("a", view_a, key.a), ("b", view_b, key.b)):
        if (view.ld % multiple or view.offset % multiple) and given.size:
            raise ValueError(
                f"{what} elements: {name} has shape {given.shape}, rows {view.ld} elements "
                f"apart from {view.offset} on"
            )
        if given.alignment % min(multiple, _LINE) and given.size:
            raise ValueError(
                f"{name} is a view that begins at a multiple of {given.alignment} bytes only; "
                f"{narrow} needs {min(multiple, _LINE)}"
            )


def _bias_dtype(key: PlanKey, kind: TypeCombination, epilogue: EpilogueSpec) -> str:
    bias = key.bias
    if epilogue.bias and bias is None:
        raise ValueError(f"bias must be given, because epilogue {key.epilogue!r} adds one")
    if bias is not None and not epilogue.bias:
        raise ValueError(f"bias must be None, because epilogue {key.epilogue!r} adds none")
    if kind.scale not in ("float32", "float16") and key.epilogue not in _PLAIN_EPILOGUES:
        raise Unsupported(
            f"epilogue {key.epilogue!r} is not available for {key.a.dtype}; "
            f"float32, float16, bfloat16 and fp8 have it"
        )
    if kind.bias is None and key.a.dtype == "int8" and key.epilogue:
        raise Unsupported(f"epilogue {key.epilogue!r} is not available for an int32 result")
    expected = (kind.bias,) if kind.bias is not None else kind.c
    if bias is None:
        if epilogue.bias_gradient:
            return kind.c[0]
        return ""
    if bias.dtype not in expected:
        raise TypeError(f"bias must have dtype {' or '.join(expected)}, not {bias.dtype}")
    return bias.dtype


def _bias_step(key: PlanKey, n: int, lead: tuple[int, ...], count: int) -> int:
    bias = key.bias
    if bias is None or bias.shape == (n,):
        return 0
    if bias.shape == (*lead, n):
        return n if count > 1 else 0
    also = f" or {(*lead, n)}" if lead else ""
    raise ValueError(
        f"bias must have shape {(n,)}{also}, because the result has {n} columns, not {bias.shape}"
    )


def _aux(
    key: PlanKey, epilogue: EpilogueSpec, kept: str, lead: tuple[int, ...], n: int
) -> tuple[tuple[int, ...], int]:
    """Shape and leading dimension of what an epilogue keeps or takes back."""
    aux = key.aux
    if not (epilogue.makes_aux or epilogue.takes_aux):
        if aux is not None:
            raise ValueError(f"aux must be None, because epilogue {key.epilogue!r} has none")
        return (), 0
    if epilogue.mask:
        width, kept = mask_width(n), "uint8"
    else:
        width = aux_width(n)
    shape = (*lead, width)
    if epilogue.takes_aux and aux is None:
        made_by = "relu" if epilogue.mask else "gelu"
        raise ValueError(
            f"epilogue {key.epilogue!r} needs the aux that {made_by}_aux or {made_by}_aux_bias made"
        )
    if aux is not None and aux.shape != shape:
        raise ValueError(f"aux must have shape {shape}, not {aux.shape}")
    if aux is not None and aux.dtype != kept:
        raise TypeError(f"aux must have dtype {kept}, not {aux.dtype}")
    return shape, width * 8 if epilogue.mask else width


def _scaling(key: PlanKey, m: int, n: int, k: int, count: int) -> tuple[str, tuple[int, int, int]]:
    """Return the scaling of a and b, and the scratch memory that it needs."""
    a, b = key.scale_a, key.scale_b
    narrow = key.a.dtype
    if narrow == E2M1:
        return "nvfp4", _block_scaling(key, "nvfp4", m, n, k, count)
    if narrow in FP8 and EXPONENTS in (each.dtype for each in (a, b) if each is not None):
        return "mxfp8", _block_scaling(key, "mxfp8", m, n, k, count)
    unpacked = (0, 0, 0)
    for name, given in (("scale_a", a), ("scale_b", b), ("scale_out", key.scale_out)):
        if given is None:
            continue
        if narrow not in FP8:
            raise ValueError(f"{name} must be None unless a is fp8 or fp4, not {narrow}")
        if given.dtype != "float32":
            raise TypeError(f"{name} must have dtype float32, not {given.dtype}")
    out = key.scale_out
    result = _kind(key)[0]
    if out is not None and (out.size != 1 or result not in FP8):
        raise ValueError(
            f"scale_out must be one number for an fp8 result, not of shape {out.shape} for {result}"
        )
    if key.amax and result not in FP8:
        raise ValueError(f"amax must be False unless the result is fp8, not {result}")
    if a is None and b is None:
        return "", unpacked
    if all(given is None or given.size == 1 for given in (a, b)):
        return "tensor", unpacked
    if (
        a is not None
        and b is not None
        and a.shape in ((m,), (m, 1))
        and b.shape in ((n,), (1, n))
        and count == 1
    ):
        return "rows", unpacked
    raise ValueError(
        f"scale_a and scale_b must both be one number, or {(m,)} and {(n,)} without a "
        f"batch, not {a.shape if a else None} and {b.shape if b else None}"
    )


def _block_scaling(
    key: PlanKey, scaling: str, m: int, n: int, k: int, count: int
) -> tuple[int, int, int]:
    """Check a scale for each block of elements along k, and return the bytes for packing scales."""
    what, block = scaling[-3:], BLOCKS[scaling]
    if count != 1 or key.trans_a or not key.trans_b:
        raise Unsupported(
            f"{what} with block scales is multiplied as a @ b.T, without a batch: trans_b=True"
        )
    if key.layout_a is not None or key.layout_b is not None:
        raise Unsupported(f"{what} with block scales takes whole buffers, no layouts")
    if k % block:
        raise ValueError(
            f"k must be a multiple of {block}, because as many elements share a scale, not {k}"
        )
    wanted = E4M3 if scaling == "nvfp4" else EXPONENTS
    for name, given, rows in (("scale_a", key.scale_a, m), ("scale_b", key.scale_b, n)):
        shape = (rows, k // block)
        if given is None or given.shape != shape:
            raise ValueError(
                f"{name} must have shape {shape}, a scale for each {block} elements, "
                f"not {given.shape if given else None}"
            )
        if given.dtype != wanted:
            raise TypeError(f"{name} must have dtype {wanted}, not {given.dtype}")
    if key.scale_out is not None or key.amax:
        raise ValueError("scale_out and amax are for fp8 results of products without block scales")
    scales = block_scale_bytes(m, k // block) + block_scale_bytes(n, k // block)
    return (m * k // 2, n * k // 2, scales) if scaling == "nvfp4" else (0, 0, scales)


def _factors(key: PlanKey, kind: TypeCombination, n: int) -> bool:
    """Return True if there is an alpha for each column."""
    given = key.factors
    if given is None:
        return False
    if given.shape != (n,):
        raise ValueError(f"alpha must have shape () or {(n,)}, not {given.shape}")
    if given.dtype != kind.scale:
        raise TypeError(f"alpha must have dtype {kind.scale}, not {given.dtype}")
    return True


def _c_dtype(key: PlanKey, kind: TypeCombination, bias_dtype: str, shape: tuple[int, ...]) -> str:
    c = key.c
    if c is None:
        return bias_dtype if len(kind.c) > 1 and bias_dtype in kind.c else kind.c[0]
    if c.dtype not in kind.c:
        raise TypeError(f"c must have dtype {' or '.join(kind.c)}, not {c.dtype}")
    if len(kind.c) > 1 and bias_dtype and bias_dtype != c.dtype:
        raise TypeError(f"c must have the dtype of bias, {bias_dtype}, not {c.dtype}")
    if c.shape != shape:
        raise ValueError(f"c must have shape {shape}, not {c.shape}")
    return c.dtype
