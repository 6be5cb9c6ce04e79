"""FFT against NumPy in higher precision: every transform, dtype, axis, size and norm."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..conformance import (
    COMPLEX,
    HALF,
    MARKS,
    REAL,
    Array,
    Case,
    Near,
    Operation,
    Sample,
    conform,
    on_cuda,
    product,
    put_strided,
)

pytestmark = MARKS

NORMS = (None, "ortho", "forward")
INTEGERS = ("int32", "uint8")

RESULT = {
    **dict.fromkeys((*HALF, "float32", "complex64"), "complex64"),
    **dict.fromkeys(("float64", "complex128", *INTEGERS), "complex128"),
}
"""The complex dtype of a transform of each dtype."""

REAL_OF = {"complex64": "float32", "complex128": "float64"}


def inputs(sample: Sample, shape: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    return (sample.array(*shape),)


def options(case: Case) -> Case:
    return {name: value for name, value in case.items() if name != "shape"}


def transform(name: str, device: Any, a: Any, **case: Any) -> Any:
    return getattr(device.fft, name)(a, **options(case))


def expected(name: str, a: Array, **case: Any) -> Near:
    return Near(getattr(np.fft, name)(a, **options(case)))


def rows(
    name: str, dtypes: tuple[str, ...], cases: list[Case], kind: str = "complex"
) -> list[Operation]:
    """A transform as one row for each dtype, because results differ from the input's."""

    def row(dtype: str) -> Operation:
        result = RESULT[dtype] if kind == "complex" else REAL_OF[RESULT[dtype]]

        def expect(a: Array, **case: Any) -> Near:
            return Near(expected(name, a, **case).value, dtype=result)

        return Operation(f"fft.{name}", (dtype,), cases, inputs, partial(transform, name), expect)

    return [row(dtype) for dtype in dtypes]


ONE_AXIS = [
    *product(shape=[(8,), (5, 12), (20, 3, 20)], n=[None, 3, 16], axis=[-1, 0], norm=NORMS),
    *product(shape=[(3, 4, 6), (20, 5, 20)], n=[None, 2, 7], axis=[1], norm=NORMS),
    *product(shape=[(2, 1009), (4096,), (65536,), (1, 2), (3, 1)], n=[None, 2], norm=["ortho"]),
    *product(shape=[(0, 4), (4, 0, 3)], n=[None, 3], axis=[-1], norm=[None]),
]
"""Some of these go over batches before and behind the axis, by a copy or in several calls."""

TWO_AXES = [
    *product(shape=[(4, 6), (3, 4, 5), (2, 3, 4, 5)], s=[None, (3, 9)], norm=NORMS),
    *product(shape=[(5, 4, 6)], s=[None, (3, 9)], axes=[(0, 2), (2, 0), (1, 0)], norm=NORMS),
    *product(shape=[(18, 4, 18, 4)], s=[None], axes=[(1, 2), (0, 3), (1, 3)], norm=["ortho"]),
    *product(shape=[(64, 96)], s=[(-1, 7)], norm=["forward"]),
]

MANY_AXES = [
    *product(shape=[(6,), (4, 6), (3, 4, 5), (2, 3, 2, 3, 4)], axes=[None], norm=NORMS),
    *product(shape=[(3, 4, 5)], axes=[(0,), (1,), (0, 1), (2, 1, 0)], norm=NORMS),
    *product(shape=[(3, 4, 5)], s=[(2, 4, 8), (5, -1, 4)], axes=[(0, 1, 2), (2, 0, 1)]),
    *product(shape=[(3, 4, 5)], axes=[(1, 1), (0, 2, 0)], norm=NORMS),  # as often as named
    *product(shape=[(32, 16, 24)], norm=["ortho"]),
]


def one_axis(shape: tuple[int, ...], n: int | None, axis: int = -1, **_: Any) -> bool:
    """Return whether the transformed axis has elements."""
    return n is not None or bool(shape[axis])


def inverse_real(shape: tuple[int, ...], n: int | None, axis: int = -1, **_: Any) -> bool:
    """Return whether a spectrum of that size has an inverse."""
    return n is not None or shape[axis] > 1


EVERY = (*HALF, *REAL, *COMPLEX, *INTEGERS)
ALL_REAL = (*HALF, *REAL, *INTEGERS)

PLAIN = [case for case in ONE_AXIS if one_axis(**case)]
INVERSE = [case for case in ONE_AXIS if inverse_real(**case)]

test_one_axis = conform(
    [
        *rows("fft", EVERY, PLAIN),
        *rows("ifft", EVERY, PLAIN),
        *rows("rfft", ALL_REAL, PLAIN),
        *rows("irfft", EVERY, INVERSE, kind="real"),
        *rows("hfft", EVERY, INVERSE, kind="real"),
        *rows("ihfft", ALL_REAL, PLAIN),
    ],
    take=1 if on_cuda() else 2,
)

test_several_axes = conform(
    [
        *rows("fft2", EVERY, TWO_AXES),
        *rows("ifft2", COMPLEX, TWO_AXES),
        *rows("rfft2", (*REAL, "float16", "int32"), TWO_AXES),
        *rows("irfft2", (*COMPLEX, "float32"), TWO_AXES, kind="real"),
        *rows("fftn", (*COMPLEX, "float32", "uint8"), MANY_AXES),
        *rows("ifftn", COMPLEX, MANY_AXES),
        *rows("rfftn", REAL, MANY_AXES),
        *rows("irfftn", COMPLEX, MANY_AXES[1:], kind="real"),
    ]
)


# --- half precision: pairs in a last axis ------------------------------------------------


def joined(pairs: Array) -> Array:
    return pairs[..., 0] + 1j * pairs[..., 1]


def half_inputs(kind: str, sample: Sample, shape: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    return (sample.array(*shape, *(() if kind == "real" else (2,))),)


def half_transform(name: str, device: Any, a: Any, **case: Any) -> Any:
    return getattr(device.fft, name)(a, half=True, **options(case))


def half_expected(name: str, kind: tuple[str, str], a: Array, **case: Any) -> Near:
    source = a if kind[0] == "real" else joined(a)
    result = getattr(np.fft, name)(source, **options(case))
    return Near(result if kind[1] == "real" else np.stack((result.real, result.imag), -1))


def half_row(name: str, kind: tuple[str, str], cases: list[Case]) -> Operation:
    return Operation(
        f"fft.{name} half=True",
        HALF,
        cases,
        partial(half_inputs, kind[0]),
        partial(half_transform, name),
        partial(half_expected, name, kind),
        factor=16.0,  # every stage of a transform rounds to the precision
        may_refuse=("bfloat16",),
    )


HALF_CASES = [
    *product(shape=[(8,), (4, 16), (4, 4, 8)], n=[None, 4, 16], axis=[-1, 0], norm=NORMS),
    *product(shape=[(3, 8, 5)], n=[None, 4], axis=[1], norm=["ortho"]),
    *product(shape=[(1024,)], n=[None], norm=["ortho"]),
]
INVERSE_HALF = [case for case in HALF_CASES if case["n"] is not None]
COMPLEX_ONLY = ("complex", "complex")

test_half_precision = conform(
    [
        half_row("fft", COMPLEX_ONLY, HALF_CASES),
        half_row("ifft", COMPLEX_ONLY, HALF_CASES),
        half_row("rfft", ("real", "complex"), HALF_CASES),
        half_row("irfft", ("complex", "real"), INVERSE_HALF),
        half_row("hfft", ("complex", "real"), INVERSE_HALF),
        half_row("ihfft", ("real", "complex"), HALF_CASES),
        half_row(
            "fft2",
            COMPLEX_ONLY,
            product(shape=[(4, 8), (2, 4, 4)], axes=[(-2, -1), (-1, 0)], norm=NORMS),
        ),
        half_row(
            "rfftn",
            ("real", "complex"),
            product(shape=[(4, 8), (2, 4, 4)], axes=[None, (1, 0)], norm=NORMS),
        ),
    ]
)


# --- shifts and frequencies --------------------------------------------------------------


def shift_row(name: str) -> Operation:
    return Operation(
        f"fft.{name}",
        EVERY,
        product(shape=[(5,), (4, 5), (3, 4, 5), (0, 3)], axes=[None, 0, (0, -1), (-1, -1)]),
        inputs,
        partial(transform, name),
        partial(expected, name),
        factor=0.0,
    )


def frequency_row(name: str) -> Operation:
    def call(device: Any, n: int, d: float) -> Any:
        return getattr(device.fft, name)(n, d)

    def expect(n: int, d: float) -> Near:
        return Near(getattr(np.fft, name)(n, d))

    cases = product(n=[1, 2, 7, 8, 1000], d=[1.0, 0.1])
    return Operation(f"fft.{name}", ("float64",), cases, lambda _, **__: (), call, expect, factor=0)


test_helpers = conform(
    [
        shift_row("fftshift"),
        shift_row("ifftshift"),
        frequency_row("fftfreq"),
        frequency_row("rfftfreq"),
    ]
)

test_on_views = conform(
    [
        *rows("fft", EVERY, PLAIN),
        *rows("irfft", EVERY, INVERSE, kind="real"),
        *rows("fftn", (*COMPLEX, "float32", "uint8"), MANY_AXES),
        *rows("rfftn", REAL, MANY_AXES),
        half_row("fft", COMPLEX_ONLY, HALF_CASES),
        shift_row("fftshift"),
    ],
    take=12,
    put=put_strided,
)
