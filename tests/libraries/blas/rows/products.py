"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...conformance import (
    COMPLEX,
    FLOATS,
    HALF,
    REAL,
    Array,
    Case,
    Near,
    Operation,
    Sample,
    product,
)
from .common import ALPHA, BETA, DOUBLES, SIZES, op, scalar, turned


def gemm_inputs(
    sample: Sample,
    m: int,
    n: int,
    k: int,
    trans_a: Any = 0,
    trans_b: Any = 0,
    batch_a: tuple[int, ...] = (),
    batch_b: tuple[int, ...] = (),
    **_: Any,
) -> tuple[Array, ...]:
    a = sample.array(*batch_a, *turned(m, k, trans_a))
    b = sample.array(*batch_b, *turned(k, n, trans_b))
    batch = np.broadcast_shapes(batch_a, batch_b)
    return a, b, sample.array(*batch, m, n)


def gemm(
    a: Array,
    b: Array,
    c: Array,
    trans_a: Any = 0,
    trans_b: Any = 0,
    dtype: str | None = None,
    **_: Any,
) -> Near:
    left, right = op(a, trans_a), op(b, trans_b)
    alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
    value = alpha * (left @ right) + beta * c
    return Near(value, np.abs(left) @ np.abs(right) + np.abs(c), dtype=dtype)


def grouped_inputs(
    sample: Sample, n: int, k: int, sizes: tuple[int, ...], trans_b: int
) -> tuple[Array, ...]:
    m = sum(sizes)
    b = sample.array(len(sizes), *turned(k, n, trans_b))
    return sample.array(m, k), b, sample.array(m, n)


def grouped(a: Array, b: Array, c: Array, sizes: tuple[int, ...], trans_b: int, **_: Any) -> Near:
    each = np.repeat(op(b, trans_b), sizes, axis=0)
    product = np.einsum("mk,mkn->mn", a, each)
    size = np.einsum("mk,mkn->mn", np.abs(a), np.abs(each))
    alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
    return Near(alpha * product + beta * c, size + np.abs(c))


def new_gemm(
    a: Array,
    b: Array,
    _c: Array,
    trans_a: Any = 0,
    trans_b: Any = 0,
    dtype: str | None = None,
    **_: Any,
) -> Near:
    left, right = op(a, trans_a), op(b, trans_b)
    return Near(left @ right, np.abs(left) @ np.abs(right), dtype=dtype)


async def call_gemm(device: Any, a: Any, b: Any, c: Any, **case: Any) -> Any:
    options = {key: value for key, value in case.items() if key not in SIZES}
    alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
    return await device.blas.gemm(a, b, out=c, alpha=alpha, beta=beta, **options)


async def call_new_gemm(device: Any, a: Any, b: Any, _c: Any, **case: Any) -> Any:
    options = {key: value for key, value in case.items() if key not in SIZES}
    return await device.blas.gemm(a, b, **options)


GEMMS = product(m=[0, 1, 5, 33], n=[1, 7], k=[0, 1, 17], trans_a=[0, 1], trans_b=[0, 1])
BATCHES: list[Case] = [
    {"batch_a": batch_a, "batch_b": batch_b}
    for batch_a, batch_b in (
        ((3,), (3,)),
        ((3,), ()),
        ((), (3,)),
        ((0,), (1,)),
        ((2, 3), (2, 3)),
        ((2, 3), (3,)),
        ((2, 1), (3,)),
        ((2, 1, 4), (5, 1)),
        ((1, 1), (1,)),
        ((2, 3, 1), (2, 3, 4)),
    )
]


def int8_inputs(sample: Sample, m: int, n: int, k: int, **_: Any) -> tuple[Array, ...]:
    return sample.array(m, k, dtype="int8"), sample.array(k, n, dtype="int8")


def matmul_inputs(sample: Sample, shape_a: Any, shape_b: Any) -> tuple[Array, ...]:
    return sample.array(*shape_a), sample.array(*shape_b)


def matmul(a: Array, b: Array, **_: Any) -> Near:
    return Near(np.asarray(a @ b), np.abs(a) @ np.abs(b))


def list_inputs(sample: Sample, sizes: Any, trans_a: int, trans_b: int) -> tuple[Array, ...]:
    inputs: list[Array] = []
    for m, n, k in sizes:
        inputs += [
            sample.array(*turned(m, k, trans_a)),
            sample.array(*turned(k, n, trans_b)),
            sample.array(m, n),
        ]
    return tuple(inputs)


def call_list(name: str) -> Callable[..., Any]:
    async def call(device: Any, *refs: Any, sizes: Any, **case: Any) -> Any:
        alpha, beta = scalar(ALPHA, refs[0]), scalar(BETA, refs[0])
        function = getattr(device.blas, name)
        results = await function(
            refs[::3], refs[1::3], out=refs[2::3], alpha=alpha, beta=beta, **case
        )
        return tuple(results)

    return call


def products(*arrays: Array, **case: Any) -> tuple[Near, ...]:
    return tuple(
        gemm(*triple, **case)
        for triple in zip(arrays[::3], arrays[1::3], arrays[2::3], strict=True)
    )


PRODUCTS = [
    Operation("blas.gemm", FLOATS, GEMMS, gemm_inputs, call_gemm, gemm, writes=(2,)),
    Operation("blas.gemm without out", FLOATS, GEMMS, gemm_inputs, call_new_gemm, new_gemm),
    Operation(
        "blas.gemm, conjugates",
        COMPLEX,
        product(m=[5], n=[7], k=[1, 17], trans_a=[0, "T", "C"], trans_b=[0, "T", "C"]),
        gemm_inputs,
        call_gemm,
        gemm,
        writes=(2,),
    ),
    Operation(
        "blas.gemm over batches",
        FLOATS,
        [
            {"m": 5, "n": 7, "k": k, "trans_a": trans_a, "trans_b": trans_b, **batch}
            for k in (0, 9)
            for trans_a in (0, 1)
            for trans_b in (0, 1)
            for batch in BATCHES
        ],
        gemm_inputs,
        call_gemm,
        gemm,
        writes=(2,),
    ),
    Operation(
        "blas.gemm to float32",
        HALF,
        product(m=[5, 33], n=[1, 8], k=[0, 16], dtype=["float32"]),
        gemm_inputs,
        call_new_gemm,
        new_gemm,
    ),
    Operation(
        "blas.gemm, fast",
        ("float32", "complex64"),
        product(
            m=[16],
            n=[24],
            k=[32],
            compute_type=["32F_FAST_16F", "32F_FAST_16BF"],
        )
        + product(m=[16], n=[24], k=[32], allow_tf32=[True]),
        gemm_inputs,
        call_new_gemm,
        new_gemm,
        factor=2.0**17,  # bfloat16 has 16 bits less than float32
    ),
    Operation(
        "blas.gemm, pedantic",
        (*HALF, *DOUBLES),
        [{"m": 5, "n": 7, "k": 17}],
        gemm_inputs,
        lambda device, a, b, _c, **_: device.blas.gemm(
            a,
            b,
            compute_type=f"{64 if a.dtype.name in ('float64', 'complex128') else 32}F_PEDANTIC",
        ),
        new_gemm,
    ),
    Operation(
        "blas.gemm in float16",
        ("float16",),
        product(m=[5], n=[8], k=[16], compute_type=["16F", "16F_PEDANTIC"]),
        gemm_inputs,
        call_new_gemm,
        new_gemm,
        factor=64,
    ),
    Operation(
        "blas.gemm of int8",
        ("int8",),
        product(m=[0, 1, 5, 33], n=[4, 8], k=[4, 36]),
        int8_inputs,
        lambda device, a, b, **_: device.blas.gemm(a, b),
        lambda a, b, **_: Near(a @ b, dtype="int32"),
    ),
    Operation(
        "blas.gemm of int8 to float32",
        ("int8",),
        product(m=[5], n=[8], k=[36]),
        int8_inputs,
        lambda device, a, b, **_: device.blas.gemm(a, b, dtype="float32"),
        lambda a, b, **_: Near(a @ b, dtype="float32"),
        may_refuse=("int8",),
    ),
    Operation(
        "blas.matmul",
        FLOATS,
        [
            {"shape_a": a, "shape_b": b}
            for a, b in (
                ((7,), (7,)),
                ((7,), (7, 5)),
                ((5, 7), (7,)),
                ((5, 7), (7, 3)),
                ((3, 5, 7), (7,)),
                ((7,), (3, 7, 5)),
                ((2, 1, 5, 7), (3, 7, 4)),
                ((0,), (0,)),
                ((5, 0), (0, 3)),
                ((2, 0, 7), (7, 3)),
            )
        ],
        matmul_inputs,
        lambda device, a, b, **_: device.blas.matmul(a, b),
        matmul,
    ),
    Operation(
        "blas.gemm_batched",
        FLOATS,
        product(
            sizes=[((5, 7, 9),), ((5, 8, 16),) * 4, ((3, 2, 0),) * 2],
            trans_a=[0, 1],
            trans_b=[0, 1],
        ),
        list_inputs,
        call_list("gemm_batched"),
        products,
        writes=tuple(range(2, 60, 3)),
    ),
    Operation(
        "blas.gemm_grouped_batched",
        (*HALF, *REAL),
        product(
            sizes=[
                ((8, 16, 24),),
                ((8, 16, 24), (8, 16, 24), (16, 8, 8), (8, 16, 24), (0, 8, 8), (8, 8, 0)),
            ],
            trans_a=[0, 1],
            trans_b=[0, 1],
        ),
        list_inputs,
        call_list("gemm_grouped_batched"),
        products,
        writes=tuple(range(2, 60, 3)),
    ),
    Operation(
        "blas.gemm_grouped",
        (*HALF, *REAL),
        product(
            n=[1, 16],
            k=[0, 8],
            sizes=[(3,), (8, 0, 5, 8, 16), (4, 4, 4), (0, 0), (0, 8, 8)],
            trans_b=[0, 1],
        ),
        grouped_inputs,
        lambda device, a, b, c, sizes, trans_b, **_: device.blas.gemm_grouped(
            a, b, sizes, out=c, alpha=ALPHA.real, beta=BETA.real, trans_b=trans_b
        ),
        grouped,
        writes=(2,),
    ),
]
