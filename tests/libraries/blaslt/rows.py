"""Everything that ``device.blaslt`` can do, as rows for the conformance tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atomr_accel.libraries.blaslt.wire._layout import Layout

from ..blas.rows.common import ALPHA, BETA, op, scalar
from ..blas.rows.products import gemm, gemm_inputs, new_gemm
from ..conformance import (
    COMPLEX,
    HALF,
    REAL,
    Array,
    Case,
    Near,
    Operation,
    Sample,
    dtype_of,
    eps_of,
    product,
)

E4M3, E5M2, E2M1 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"
FUSED = (*HALF, "float32")
"""The dtypes that have all epilogues."""

SIZES = ("m", "n", "k", "batch_a", "batch_b")


def options(case: Case) -> Case:
    return {key: value for key, value in case.items() if key not in SIZES}


def terms(a: Array, b: Array, trans_a: Any = 0, trans_b: Any = 0) -> tuple[Array, Array]:
    """Return the product, and the sum of the magnitudes of its terms."""
    left, right = op(a, trans_a), op(b, trans_b)
    return left @ right, np.abs(left) @ np.abs(right)


# --- plain products -----------------------------------------------------------------------


async def call_added(device: Any, a: Any, b: Any, c: Any, **case: Any) -> Any:
    alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
    return await multiplied(device, a, b, c=c, alpha=alpha, beta=beta, **options(case))


async def call_in_place(device: Any, a: Any, b: Any, c: Any, **case: Any) -> Any:
    alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
    return await multiplied(device, a, b, out=c, alpha=alpha, beta=beta, **options(case))


async def call_plain(device: Any, a: Any, b: Any, _c: Any, **case: Any) -> Any:
    return await multiplied(device, a, b, **options(case))


SHAPES = product(m=[0, 1, 5, 40], n=[1, 8, 24], k=[0, 1, 16], trans_a=[0, 1], trans_b=[0, 1])
BATCHES = product(
    batch_a=[(3,), (2, 3)],
    batch_b=[(3,), ()],
    m=[5],
    n=[8],
    k=[0, 16],
    trans_a=[0, 1],
    trans_b=[0, 1],
)
BATCHES = [case for case in BATCHES if len(case["batch_a"]) == 1 or not case["batch_b"]]
# A transposed a of two dimensions with one b still needs no more than one stride.
BATCHES += product(batch_a=[()], batch_b=[(4,)], m=[5], n=[8], k=[16], trans_a=[0], trans_b=[0, 1])


# --- epilogues ----------------------------------------------------------------------------


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def gelu_slope(x: Array) -> Array:
    inner = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    steep = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return np.asarray(0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * steep)


AFTER: dict[str, Callable[[Array], Array]] = {
    "bias": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
}


def fused_inputs(
    sample: Sample, m: int, n: int, k: int, lead: Any = (), one_b: bool = False, **_: Any
) -> Any:
    right = () if one_b else lead
    return sample.array(*lead, m, k), sample.array(*right, k, n), sample.array(*lead, n)


async def call_fused(device: Any, a: Any, b: Any, bias: Any, epilogue: str, **_: Any) -> Any:
    bias = bias if "bias" in epilogue else None
    made = await multiplied(device, a, b, bias=bias, epilogue=epilogue)
    if "aux" not in epilogue:
        return made
    out, aux = made
    host = await device.get(aux)
    n = out.shape[-1]
    if "relu" in epilogue:
        return out, np.unpackbits(host, axis=-1, count=n, bitorder="little")
    return out, np.ascontiguousarray(host[..., :n])


def fused(a: Array, b: Array, bias: Array, epilogue: str, **_: Any) -> Any:
    value, size = terms(a, b)
    if "bias" in epilogue:
        value, size = value + bias[..., None, :], size + np.abs(bias[..., None, :])
    # GELU takes tanh from the device's tanh.approx, whose relative error is up to 2**-11.
    slack = 0.5 * np.abs(value) * 2.0**-11 if "gelu" in epilogue else 0.0
    result = Near(AFTER[epilogue.partition("_")[0]](value), size, slack=slack)
    if "aux" not in epilogue:
        return result
    if "gelu" in epilogue:
        return result, Near(value, size)
    # The sign of a result that is zero except for rounding may be either.
    unsure = np.abs(value) < 0.02 * size
    return result, Near((value > 0).astype(np.uint8), dtype="uint8", ignore=unsure)


def gradient_inputs(sample: Sample, m: int, n: int, k: int, lead: Any = (), **_: Any) -> Any:
    return (
        sample.array(*lead, m, k),
        sample.array(*lead, k, n),
        sample.array(*lead, m, k),
        sample.array(*lead, k, n),
    )


async def multiplied(device: Any, a: Any, b: Any, **options: Any) -> Any:
    """The result of the op for as many results as the options have, or all of them."""
    lt, epilogue = device.blaslt, options.get("epilogue") or ""
    if not options.get("amax") and "aux" not in epilogue and "grad" not in epilogue:
        return await lt.matmul(a, b, **options)
    made = await lt.matmul_extra(a, b, **options)
    return tuple(each for each in made if each is not None)


async def call_gradient(
    device: Any, a: Any, b: Any, da: Any, db: Any, epilogue: str, **_: Any
) -> Any:
    """A forward pass, whose aux the backward pass takes."""
    forward = "relu_aux" if "relu" in epilogue else "gelu_aux"
    _, aux = await multiplied(device, a, b, epilogue=forward)
    return await multiplied(device, da, db, epilogue=epilogue, aux=aux)


def gradient(a: Array, b: Array, da: Array, db: Array, epilogue: str, **_: Any) -> Any:
    forward, size = terms(a, b)
    value, backward = terms(da, db)
    if "relu" in epilogue:
        unsure = np.abs(forward) < 0.02 * size
        value = np.where(forward > 0, value, 0)
    else:
        # What the forward pass kept was rounded.
        unsure = np.zeros(value.shape, bool)
        value = value * gelu_slope(forward)
        backward = backward * (1 + size)
    result = Near(value, backward, ignore=unsure)
    if "bgrad" not in epilogue:
        return result
    sums = Near(value.sum(-2), backward.sum(-2), ignore=unsure.any(-2))
    return result, sums


async def call_sums(device: Any, a: Any, b: Any, _c: Any, epilogue: str, **_: Any) -> Any:
    return await multiplied(device, a, b, epilogue=epilogue)


def sums(a: Array, b: Array, _c: Array, epilogue: str, **_: Any) -> Any:
    over = (a, -1) if epilogue == "bgrada" else (b, -2)
    total = Near(over[0].sum(over[1]), np.abs(over[0]).sum(over[1]))
    return Near(*terms(a, b)), total


EPILOGUE_SHAPES = product(m=[1, 5, 40], n=[8, 24, 136], k=[16])
FORWARD = [
    {**case, "epilogue": epilogue}
    for case in (
        *EPILOGUE_SHAPES,
        {"m": 5, "n": 8, "k": 16, "lead": (3,)},
        {"m": 5, "n": 8, "k": 16, "lead": (3,), "one_b": True},
        {"m": 2, "n": 8, "k": 16, "lead": (2, 3), "one_b": True},
        {"m": 5, "n": 8, "k": 16, "lead": (1,), "one_b": True},
    )
    for epilogue in (
        "bias",
        "relu",
        "relu_bias",
        "relu_aux",
        "relu_aux_bias",
        "gelu",
        "gelu_bias",
        "gelu_aux",
        "gelu_aux_bias",
    )
]
BACKWARD = [
    {**case, "epilogue": epilogue}
    for case in EPILOGUE_SHAPES
    for epilogue in ("drelu", "drelu_bgrad", "dgelu", "dgelu_bgrad")
]

# --- narrow types -------------------------------------------------------------------------


def fp8_inputs(
    sample: Sample, m: int, n: int, k: int, b_dtype: str, rows: bool = False, **_: Any
) -> tuple[Array, ...]:
    a = sample.array(m, k)
    b = sample.array(n, k, dtype=b_dtype)
    scale_a = sample.rng.uniform(0.5, 2, m if rows else ()).astype(np.float32)
    scale_b = sample.rng.uniform(0.5, 2, n if rows else ()).astype(np.float32)
    bias = sample.array(n, dtype="bfloat16")
    return a, b, scale_a, scale_b, bias


async def call_fp8(
    device: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, dtype: str, **case: Any
) -> Any:
    return await multiplied(
        device,
        a,
        b,
        trans_b=True,
        scale_a=scale_a,
        scale_b=scale_b,
        dtype=dtype,
        bias=None if dtype == "float16" else bias,
        fast_accum=case.get("fast", False),
    )


def fp8(
    a: Array, b: Array, scale_a: Array, scale_b: Array, bias: Array, dtype: str, **_: Any
) -> Near:
    value, size = terms(a, b, 0, 1)
    factor = scale_a[..., None] * scale_b
    value = value * factor
    size = size * factor
    if dtype != "float16":
        value, size = value + bias, size + np.abs(bias)
    # Hopper's tensor cores add fp8 products in about fourteen bits.
    rough = max(eps_of(dtype_of(dtype)), 2.0**-12) / eps_of(dtype_of(dtype))
    return Near(value, size * rough, dtype=dtype)


def narrow_inputs(sample: Sample, m: int, n: int, k: int, b_dtype: str, **_: Any) -> Any:
    out = np.asarray(sample.rng.uniform(0.5, 2), np.float32)
    return sample.array(m, k), sample.array(n, k, dtype=b_dtype), out


async def call_narrow(device: Any, a: Any, b: Any, out: Any, dtype: str, **case: Any) -> Any:
    return await multiplied(
        device, a, b, trans_b=True, scale_out=out, dtype=dtype, amax=True, alpha=case["alpha"]
    )


def narrow(a: Array, b: Array, out: Array, dtype: str, alpha: float, **_: Any) -> tuple[Near, Near]:
    value, size = terms(a, b, 0, 1)
    value, size = alpha * value, alpha * size
    most = 448 if dtype == E4M3 else 57344
    return (
        Near(np.clip(out * value, -most, most), size * out, dtype=dtype),
        Near(np.abs(value).max(), size.max() * 2.0**10, dtype="float32"),
    )


def fp4_inputs(sample: Sample, m: int, n: int, k: int, **_: Any) -> tuple[Array, ...]:
    def numbers(*shape: int) -> Array:
        return np.asarray(sample.rng.uniform(-6, 6, shape)).astype(dtype_of(E2M1))

    def scales(*shape: int) -> Array:
        return np.asarray(sample.rng.uniform(0.25, 2, shape)).astype(dtype_of(E4M3))

    return numbers(m, k), numbers(n, k), scales(m, k // 16), scales(n, k // 16)


async def call_fp4(device: Any, a: Any, b: Any, sa: Any, sb: Any, dtype: str, **_: Any) -> Any:
    return await multiplied(device, a, b, trans_b=True, scale_a=sa, scale_b=sb, dtype=dtype)


def fp4(a: Array, b: Array, sa: Array, sb: Array, dtype: str, **_: Any) -> Near:
    return Near(*terms(a * sa.repeat(16, -1), b * sb.repeat(16, -1), 0, 1), dtype=dtype)


def mxfp8_inputs(
    sample: Sample, m: int, n: int, k: int, b_dtype: str, **_: Any
) -> tuple[Array, ...]:
    a, b = sample.array(m, k), sample.array(n, k, dtype=b_dtype)
    exponents = [sample.rng.integers(120, 133, (rows, k // 32), np.uint8) for rows in (m, n)]
    return a, b, *exponents


async def call_mxfp8(device: Any, a: Any, b: Any, sa: Any, sb: Any, dtype: str, **_: Any) -> Any:
    return await multiplied(device, a, b, trans_b=True, scale_a=sa, scale_b=sb, dtype=dtype)


def mxfp8(a: Array, b: Array, sa: Array, sb: Array, dtype: str, **_: Any) -> Near:
    left, right = (2.0 ** (each - 127.0) for each in (sa, sb))
    value, size = terms(a * left.repeat(32, -1), b * right.repeat(32, -1), 0, 1)
    rough = max(eps_of(dtype_of(dtype)), 2.0**-12) / eps_of(dtype_of(dtype))
    return Near(value, size * rough, dtype=dtype)


def by_column_inputs(sample: Sample, m: int, n: int, k: int, **_: Any) -> tuple[Array, ...]:
    factors = "float32" if sample.dtype.itemsize == 2 else sample.dtype.name
    c = sample.array(m, n)
    return sample.array(m, k), sample.array(k, n), sample.array(n, dtype=factors), c


async def call_by_column(device: Any, a: Any, b: Any, alpha: Any, c: Any, **_: Any) -> Any:
    return await multiplied(device, a, b, alpha=alpha, c=c, beta=BETA.real)


def by_column(a: Array, b: Array, alpha: Array, c: Array, **_: Any) -> Near:
    value, size = terms(a, b)
    return Near(alpha * value + BETA.real * c, abs(alpha) * size + abs(c))


# --- layouts ------------------------------------------------------------------------------


def layout_inputs(sample: Sample, a: Layout, b: Layout, out: Layout, **_: Any) -> Any:
    return tuple(sample.array(each.extent + 3) for each in (a, b, out))


def matrices(flat: Array, layout: Layout) -> Array:
    """Return the matrices that a layout reads, as a view."""
    steps = [layout.step, layout.leading, 1]
    shape = [1 if layout.batch is None else layout.batch, layout.lines, layout.line]
    view = np.lib.stride_tricks.as_strided(
        flat[layout.offset :], shape, [step * flat.itemsize for step in steps]
    )
    view = view if layout.order == "row" else np.swapaxes(view, -1, -2)
    return view[0] if layout.batch is None else view


async def call_layout(device: Any, *refs: Any, a: Layout, b: Layout, out: Layout) -> Any:
    return await multiplied(
        device,
        *refs[:2],
        out=refs[2],
        layout_a=a,
        layout_b=b,
        layout_out=out,
        alpha=ALPHA.real,
        beta=BETA.real,
    )


def laid_out(*flat: Array, a: Layout, b: Layout, out: Layout) -> Near:
    value, size = flat[2].copy(), np.abs(flat[2]).copy()
    left, right = matrices(flat[0], a), matrices(flat[1], b)
    part, part_size = matrices(value, out), matrices(size, out)
    part[...] = ALPHA.real * (left @ right) + BETA.real * part
    part_size[...] = np.abs(left) @ np.abs(right) + part_size
    return Near(value, size)


LAYOUTS: list[Case] = [
    {"a": Layout(5, 8), "b": Layout(8, 6), "out": Layout(5, 6)},
    {"a": Layout(5, 8, ld=10), "b": Layout(8, 6, ld=9), "out": Layout(5, 6, ld=7)},
    {"a": Layout(5, 8, order="col"), "b": Layout(8, 6, order="col", ld=12), "out": Layout(5, 6)},
    {
        "a": Layout(5, 8, offset=16, batch=3),
        "b": Layout(8, 6, offset=8, batch=3, batch_stride=64),
        "out": Layout(5, 6, offset=4, batch=3, ld=8),
    },
    {
        "a": Layout(5, 8, order="col", batch=2, ld=8),
        "b": Layout(8, 6, batch=1),
        "out": Layout(5, 6, batch=2, batch_stride=50),
    },
]

OPERATIONS = [
    Operation("blaslt.matmul", (*HALF, *REAL, *COMPLEX), SHAPES, gemm_inputs, call_plain, new_gemm),
    Operation(
        "blaslt.matmul, added to c",
        (*HALF, *REAL, *COMPLEX),
        SHAPES[::3],
        gemm_inputs,
        call_added,
        gemm,
    ),
    Operation(
        "blaslt.matmul, added to out",
        (*HALF, *REAL, *COMPLEX),
        SHAPES[1::3],
        gemm_inputs,
        call_in_place,
        gemm,
        writes=(2,),
    ),
    Operation(
        "blaslt.matmul over batches",
        (*HALF, *REAL, *COMPLEX),
        BATCHES,
        gemm_inputs,
        call_in_place,
        gemm,
        writes=(2,),
    ),
    Operation(
        "blaslt.matmul, conjugates",
        COMPLEX,
        product(m=[5], n=[8], k=[16], trans_a=[0, "T", "C"], trans_b=[0, "T", "C"]),
        gemm_inputs,
        call_plain,
        new_gemm,
    ),
    Operation(
        "blaslt.matmul to float32",
        HALF,
        product(m=[5, 40], n=[8], k=[16], dtype=["float32"]),
        gemm_inputs,
        call_plain,
        new_gemm,
    ),
    Operation(
        "blaslt.matmul, fast",
        ("float32", "complex64"),
        product(
            m=[16],
            n=[24],
            k=[32],
            compute_type=["32F_FAST_16F", "32F_FAST_16BF"],
        )
        + product(m=[16], n=[24], k=[32], allow_tf32=[True]),
        gemm_inputs,
        call_plain,
        new_gemm,
        factor=2.0**17,
    ),
    Operation(
        "blaslt.matmul, tuned",
        ("bfloat16", "float32"),
        product(m=[40], n=[24], k=[16], autotune=[True]),
        gemm_inputs,
        call_in_place,
        gemm,
        writes=(2,),
    ),
    Operation(
        "blaslt.matmul, laid out",
        (*HALF, *REAL),
        LAYOUTS,
        layout_inputs,
        call_layout,
        laid_out,
        writes=(2,),
    ),
    Operation(
        "blaslt.matmul, a factor for each column",
        (*HALF, *REAL),
        product(m=[5, 40], n=[8, 24], k=[16]),
        by_column_inputs,
        call_by_column,
        by_column,
        may_refuse=(*HALF, *REAL),
    ),
    Operation(
        "blaslt.matmul of mxfp8",
        (E4M3,),
        product(m=[16, 160], n=[16], k=[32, 160], b_dtype=[E4M3, E5M2], dtype=["bfloat16"]),
        mxfp8_inputs,
        call_mxfp8,
        mxfp8,
        may_refuse=(E4M3,),
    ),
    Operation(
        "blaslt.matmul of int8",
        ("int8",),
        product(m=[0, 4, 40], n=[4, 24], k=[16, 64]),
        lambda sample, m, n, k: (sample.array(m, k), sample.array(n, k)),
        lambda device, a, b, **_: multiplied(device, a, b, trans_b=True),
        lambda a, b, **_: Near(a @ b.T, dtype="int32"),
    ),
    Operation(
        "blaslt.matmul of int8 to int8",
        ("int8",),
        product(m=[16, 48], n=[16, 32], k=[16, 64]),
        lambda sample, m, n, k: (sample.array(m, k), sample.array(n, k)),
        lambda device, a, b, **_: multiplied(
            device, a, b, trans_b=True, dtype="int8", alpha=2.0**-10
        ),
        lambda a, b, **_: Near(np.clip(np.rint(a @ b.T * 2.0**-10), -128, 127)),
        may_refuse=("int8",),
    ),
    Operation(
        "blaslt.matmul with an epilogue", FUSED, FORWARD, fused_inputs, call_fused, fused, factor=16
    ),
    Operation(
        "blaslt.matmul with a bias",
        ("float64", *COMPLEX),
        product(m=[1, 5], n=[8], k=[16], epilogue=["bias"]),
        fused_inputs,
        call_fused,
        fused,
        may_refuse=("float64", *COMPLEX),
    ),
    Operation(
        "blaslt.matmul with a gradient",
        FUSED,
        BACKWARD,
        gradient_inputs,
        call_gradient,
        gradient,
        factor=32,
        may_refuse=("float32",),
    ),
    Operation(
        "blaslt.matmul with sums",
        FUSED,
        [
            {**case, "epilogue": epilogue}
            for case in EPILOGUE_SHAPES
            for epilogue in ("bgrada", "bgradb")
        ],
        gemm_inputs,
        call_sums,
        sums,
        may_refuse=FUSED,
    ),
    Operation(
        "blaslt.matmul of fp8",
        (E4M3,),
        [
            *product(
                m=[0, 1, 16, 80],
                n=[16, 48],
                k=[0, 16, 128],
                b_dtype=[E4M3, E5M2],
                dtype=["bfloat16", "float16", "float32"],
            ),
            {"m": 32, "n": 16, "k": 64, "b_dtype": E4M3, "dtype": "bfloat16", "fast": True},
        ],
        fp8_inputs,
        call_fp8,
        fp8,
    ),
    Operation(
        "blaslt.matmul of fp8, e5m2 first",
        (E5M2,),
        product(m=[16], n=[16, 48], k=[128], b_dtype=[E4M3], dtype=["bfloat16", "float32"]),
        fp8_inputs,
        call_fp8,
        fp8,
    ),
    Operation(
        "blaslt.matmul of fp8, rows scaled",
        (E4M3,),
        product(m=[16, 80], n=[16, 48], k=[128], b_dtype=[E4M3], dtype=["bfloat16"], rows=[True]),
        fp8_inputs,
        call_fp8,
        fp8,
        may_refuse=(E4M3,),
    ),
    Operation(
        "blaslt.matmul of fp8 to fp8",
        (E4M3,),
        [
            *product(m=[16, 80], n=[16, 48], k=[64], b_dtype=[E4M3], dtype=[E4M3], alpha=[1, 90]),
            *product(m=[16], n=[16], k=[64], b_dtype=[E5M2], dtype=[E4M3, E5M2], alpha=[1, 9000]),
        ],
        narrow_inputs,
        call_narrow,
        narrow,
    ),
    Operation(
        "blaslt.matmul of fp4",
        (E2M1,),
        product(m=[16, 130], n=[16, 48], k=[32, 96], dtype=["bfloat16", "float16", "float32"]),
        fp4_inputs,
        call_fp4,
        fp4,
        may_refuse=(E2M1,),
    ),
]
