"""Plans of matrix products: shapes, dtypes, and the form of the library call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ..._dtypes import DTYPES, NAMES, as_dtype
from ...arrays import GpuRef
from ...ops import not_contiguous, require_alignment
from ...wire.broadcast import broadcast
from .checks import TF32, Number
from .layout import laid_out
from .wire._messages import ProductOptions

if TYPE_CHECKING:
    import numpy as np

_F32: Final = ("32F", "32F_PEDANTIC")
_FAST: Final = (*_F32, TF32, "32F_FAST_16F", "32F_FAST_16BF")
_F64: Final = ("64F", "64F_PEDANTIC", "64F_EMULATED_FIXEDPOINT")

COMPUTE: Final = {
    ("float16", "float16"): (*_F32, "16F", "16F_PEDANTIC"),
    ("float16", "float32"): _F32,
    ("bfloat16", "bfloat16"): _F32,
    ("bfloat16", "float32"): _F32,
    ("float32", "float32"): (*_FAST, "32F_EMULATED_16BFX9"),
    ("float64", "float64"): _F64,
    ("complex64", "complex64"): _FAST,
    ("complex128", "complex128"): _F64,
    ("int8", "int32"): ("32I", "32I_PEDANTIC"),
    ("int8", "float32"): _F32,
}
"""The compute types for (input dtype, output dtype), the default one first."""

GROUPED: Final = ("float16", "bfloat16", "float32", "float64")
"""The dtypes of products of different shapes."""

_DEFAULT_OUTPUT: Final = {"int8": "int32"}
INT8: Final = DTYPES["int8"]
POINTER_BYTES: Final = 8


class GemmArguments(NamedTuple):
    """A product's arguments; shapes are what products take for one-dimensional ones."""

    name: str
    a: GpuRef
    b: GpuRef
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    out: GpuRef | None
    alpha: Number | GpuRef
    beta: Number | GpuRef
    op_a: int
    op_b: int


class GeneralGemm(NamedTuple):
    """A product over batches, planned."""

    sizes: tuple[int, int, int]
    batch: tuple[int, ...]
    strides_a: tuple[int, ...]
    strides_b: tuple[int, ...]
    shape: tuple[int, ...]
    dtype_c: np.dtype[Any]
    options: ProductOptions
    pointer_bytes: int
    rows: tuple[int, int, int] | None = None
    strides_c: tuple[int, ...] | None = None


def plan_strided(given: GemmArguments, wanted: Any, compute_type: str | None) -> GeneralGemm:
    """The plan of a product of views, with leading dimensions and transposes.

    Raises:
        NotContiguous: they lie as no leading dimension can say.
    """
    _, a, b, shape_a, shape_b, out, *_, op_a, op_b = given
    plain = plan_wide(a, b, shape_a, shape_b, op_a, op_b, wanted, compute_type)
    m, n, k = product_sizes(shape_a, shape_b, op_a, op_b)
    op_a, row_a, steps_a = laid_out(a, shape_a, op_a, "a")
    op_b, row_b, steps_b = laid_out(b, shape_b, op_b, "b")
    batch = broadcast(shape_a, shape_b, steps_a, steps_b)
    row_c, strides_c = n, None
    if out is not None and not out.contiguous and out.shape == plain.shape:
        if out.ndim != len(batch.shape) + 2:  # without the axis that a or b has not
            raise not_contiguous(out, "out")
        op_c, row_c, steps_c = laid_out(out, (*batch.shape, m, n), 0, "out")
        if op_c or len(steps_c) > 1 or not k:
            raise not_contiguous(out, "out")
        strides_c = steps_c if batch.sizes else ()
    elif (
        not any(batch.strides_b)
        and not op_a
        and batch.shape == shape_a[:-2]
        and batch.strides_a in ((), (m * row_a,))
    ):
        m, batch = m * batch.products, broadcast((1, 1), (1, 1))
    pointer_bytes = 3 * POINTER_BYTES * batch.products if len(batch.sizes) > 1 else 0
    return plain._replace(
        sizes=(m, n, k),
        batch=batch.sizes,
        strides_a=batch.strides_a,
        strides_b=batch.strides_b,
        options=msgspec.structs.replace(plain.options, trans_a=op_a, trans_b=op_b),
        pointer_bytes=pointer_bytes,
        rows=(row_a, row_b, row_c),
        strides_c=strides_c,
    )


def product_sizes(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], op_a: int, op_b: int, which: str = ""
) -> tuple[int, int, int]:
    """m, n and k of a product of matrices of these shapes."""
    m, k = shape_a[:-3:-1] if op_a else shape_a[-2:]
    k_b, n = shape_b[:-3:-1] if op_b else shape_b[-2:]
    if k != k_b:
        raise ValueError(
            f"the inner dimensions differ: op(a) is {(m, k)} (a{which} has shape {shape_a}, "
            f"trans_a={op_a}), op(b) is {(k_b, n)} (b{which} has shape {shape_b}, trans_b={op_b})"
        )
    return m, n, k


def result_types(
    dtype: np.dtype[Any], wanted: Any, compute_type: str | None, name: str
) -> tuple[np.dtype[Any], str]:
    """The dtype of the result, and how to compute it."""
    outputs = [output for given, output in COMPUTE if given == dtype.name]
    if not outputs:
        inputs = dict.fromkeys(given for given, _ in COMPUTE)
        raise TypeError(f"dtypes of {name} must be one of {', '.join(inputs)}, not {dtype.name}")
    if wanted is None:
        wanted = _DEFAULT_OUTPUT.get(dtype.name, dtype.name)
    result = as_dtype(wanted)
    if result.name not in outputs:
        raise TypeError(f"{name} of {dtype.name} gives {' or '.join(outputs)}, not {result.name}")
    types = COMPUTE[dtype.name, result.name]
    if compute_type is None or (compute_type == TF32 and TF32 not in types):
        return result, types[0]
    if compute_type not in types:
        raise ValueError(
            f"compute_type for {dtype.name} to {result.name} must be one of "
            f"{', '.join(types)}, not {compute_type!r}"
        )
    return result, compute_type


def require_rows(a: GpuRef, b: GpuRef, op_a: int, op_b: int, sizes: tuple[int, int, int]) -> None:
    """int8 rows are multiples of four bytes long."""
    if a.dtype.name != "int8":
        return
    m, n, k = sizes
    for name, ref, row in (("a", a, m if op_a else k), ("b", b, k if op_b else n)):
        if row % 4 and ref.size:
            raise ValueError(
                f"{name} must have rows of a multiple of 4 elements, because it is "
                f"int8, not of {row}, in shape {ref.shape}"
            )


def require_starts(a: GpuRef, b: GpuRef, which: str = "") -> None:
    """The first int8 row begins at a multiple of four bytes, which a plan does not know."""
    if a.dtype is INT8:
        for name, ref in (("a", a), ("b", b)):
            require_alignment(ref, 4, f"{name}{which}", "cuBLAS reads 4 int8 numbers at a time")


def plan_wide(
    a: GpuRef,
    b: GpuRef,
    shape_a: tuple[int, ...],
    shape_b: tuple[int, ...],
    op_a: int,
    op_b: int,
    wanted: Any,
    compute_type: str | None,
) -> GeneralGemm:
    dtype_c, compute = result_types(a.dtype, wanted, compute_type, "gemm")
    for name, shape in (("a", shape_a), ("b", shape_b)):
        if len(shape) < 2:
            raise ValueError(f"{name} must have at least 2 dimensions, not shape {shape}")
    m, n, k = product_sizes(shape_a, shape_b, op_a, op_b)
    require_rows(a, b, op_a, op_b, (m, n, k))
    batch = broadcast(shape_a, shape_b)
    shape = (
        *batch.shape,
        *((m,) if len(a.shape) > 1 else ()),
        *((n,) if len(b.shape) > 1 else ()),
    )
    if not any(batch.strides_b) and not op_a and batch.shape == shape_a[:-2]:
        # One b for all of a: its matrices are the rows of one tall matrix.
        m, batch = m * batch.products, broadcast((1, 1), (1, 1))
    _, sizes, strides_a, strides_b = batch
    pointer_bytes = 3 * POINTER_BYTES * batch.products if len(sizes) > 1 else 0
    options = ProductOptions(NAMES[a.dtype], NAMES[dtype_c], compute, op_a, op_b)
    return GeneralGemm(
        (m, n, k), sizes, strides_a, strides_b, shape, dtype_c, options, pointer_bytes
    )
