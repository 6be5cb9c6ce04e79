"""Cosine and sine transforms against SciPy in higher precision, and Hermitian ones of many axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.fft

from atomr_accel import Device, GpuRefSealed

from ... import seeds
from ..conformance import MARKS, Array, Case, Near, Operation, Sample, conform, product, put_strided
from ..refusals import refuses

pytestmark = MARKS

RESULT = {
    **dict.fromkeys(("float16", "bfloat16", "float32"), "float32"),
    **dict.fromkeys(("float64", "int32", "bool"), "float64"),
    **{name: name for name in ("complex64", "complex128")},
}
COMPLEX_OF = {"float32": "complex64", "float64": "complex128"}
REAL_OF = {name: real for real, name in COMPLEX_OF.items()}


def inputs(sample: Sample, shape: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    return (sample.array(*shape).astype(sample.dtype),)


def options(case: Case) -> Case:
    return {name: value for name, value in case.items() if name != "shape"}


def transform(name: str, device: Any, x: Any, **case: Any) -> Any:
    return getattr(device.fft, name)(x, **options(case))


def expected(name: str, result: str, x: Array, **case: Any) -> Near:
    """Part by part, because SciPy does not tell complex numbers of ``orthogonalize``."""
    function: Callable[..., Any] = partial(getattr(scipy.fft, name), **options(case))
    value = function(x.real) + 1j * function(x.imag) if x.dtype.kind == "c" else function(x)
    return Near(value, dtype=result)


def rows(names: tuple[str, ...], dtypes: tuple[str, ...], cases: list[Case]) -> list[Operation]:
    return [
        Operation(
            f"fft.{name}",
            (dtype,),
            cases,
            inputs,
            partial(transform, name),
            partial(expected, name, RESULT[dtype]),
        )
        for name in names
        for dtype in dtypes
    ]


TYPES = (1, 2, 3, 4)
NORMS = (None, "ortho", "forward")
ONE_AXIS = [
    *product(shape=[(2, 3), (8, 2, 4)], type=TYPES, n=[None, 2, 7], axis=[0], norm=NORMS),
    *product(shape=[(3, 8, 5)], type=TYPES, n=[9, 6], axis=[1], orthogonalize=[True, False]),
    *product(shape=[(2, 1)], type=TYPES[1:], norm=NORMS),
    *product(shape=[(1009,), (4096,)], type=TYPES, norm=["ortho"]),
    *product(shape=[(0, 4)], type=TYPES),
]
MANY_AXES = [
    *product(shape=[(4, 5), (3, 6, 4)], type=TYPES, norm=NORMS),
    *product(shape=[(3, 6, 4)], type=TYPES, s=[(5, -1)], axes=[(2, 0), None]),
    *product(shape=[(3, 6, 4)], type=TYPES, axes=[1, (0, 1)], orthogonalize=[True]),
]
ONE, MANY = ("dct", "idct", "dst", "idst"), ("dctn", "idctn", "dstn", "idstn")

test_one_axis = conform(
    [
        *rows(ONE, ("float32", "float64", "complex64", "complex128"), ONE_AXIS),
        *rows(ONE, ("float16", "bfloat16", "int32"), ONE_AXIS[::7]),
    ],
    take=12,
)
test_many_axes = conform(rows(MANY, ("float64", "complex64"), MANY_AXES), take=12)
test_views = conform(
    [*rows(ONE, ("float32", "complex128"), ONE_AXIS), *rows(MANY, ("float64",), MANY_AXES)],
    take=20,
    put=put_strided,
)


def hermitian(name: str, dtypes: tuple[str, ...], result: dict[str, str]) -> list[Operation]:
    cases = [
        *product(shape=[(4, 6), (3, 4, 5)], norm=NORMS),
        *product(shape=[(3, 4, 5)], s=[(5, 7)], axes=[(0, 2), (2, 1)]),
    ]

    def expect(x: Array, dtype: str, **case: Any) -> Near:
        return Near(getattr(scipy.fft, name)(x, **options(case)), dtype=result[dtype])

    return [
        Operation(
            f"fft.{name}",
            (dtype,),
            cases,
            inputs,
            partial(transform, name),
            partial(expect, dtype=dtype),
        )
        for dtype in dtypes
    ]


test_hermitian = conform(
    [
        *hermitian("hfft2", tuple(REAL_OF), REAL_OF),
        *hermitian("hfftn", tuple(REAL_OF), REAL_OF),
        *hermitian("ihfft2", tuple(COMPLEX_OF), COMPLEX_OF),
        *hermitian("ihfftn", tuple(COMPLEX_OF), COMPLEX_OF),
    ],
    take=3,
)

test_bad_input_is_refused = refuses(
    "fft",
    [
        ("dct(f4_4, type=5)", ValueError, "type must be 1, 2, 3 or 4, not 5"),
        ("dct(f4_4, type=2.0)", TypeError, "type must be a whole number"),
        ("dct(f4_1, type=1)", ValueError, "at least 2 data points, not 1"),
        ("idst(f4_4, n=0)", ValueError, r"data points \(0\)"),
        ("dst(f4_4x0)", ValueError, r"data points \(0\)"),
        ("dct(f4)", np.exceptions.AxisError, "dimension 0"),
        ('dct(f4_4, norm="unitary")', ValueError, "unitary"),
        ("dct(f4_4, orthogonalize=1)", TypeError, "orthogonalize"),
        ("dctn(f4_4x4, axes=(0, 0))", ValueError, r"axes must be unique, not \(0, 0\)"),
        ("dctn(f4_4x4, s=(4,), axes=(0, 1))", ValueError, "different lengths"),
        ("dstn(f4_4x4, axes=2)", np.exceptions.AxisError, "axis 2"),
    ],
)


async def test_trigonometric_transform_writes_to_out(device: Device) -> None:
    host = seeds.rng().uniform(-1, 1, (4, 6))
    x = await device.put(host)
    out = await device.empty((6, 4), "float64")
    assert (await device.fft.dct(x, out=out.T)).shape == (4, 6)
    np.testing.assert_allclose(await device.get(out.T), scipy.fft.dct(host), atol=1e-13)
    with pytest.raises(
        ValueError, match=r"out must have shape \(4, 6\), as dct gives, not \(6, 4\)"
    ):
        await device.fft.dct(x, out=out)
    with pytest.raises(ValueError, match="shares memory with x"):
        await device.fft.dctn(x, out=x)
    with pytest.raises(TypeError, match="dtypes of dct must be one of float16, bfloat16, float32,"):
        await device.fft.dct(await device.zeros((4,), "float8_e5m2"))
    sealed = await device.put(host, sealed=True)
    with pytest.raises(GpuRefSealed):
        await device.fft.dct(x, out=sealed)


async def test_in_batches_and_recordings(device: Device) -> None:
    host = seeds.rng().uniform(-1, 1, (5, 8)).astype(np.float32)
    x = await device.put(host)
    async with device.batch() as batch:  # plans are new to it
        spectrum = batch.fft.dctn(x, 2, norm="ortho")
        back = batch.fft.idctn(spectrum, 2, norm="ortho")
    np.testing.assert_allclose(await device.get(back), host, atol=1e-5)
    async with device.record(x) as recording:
        sines = recording.fft.dst(x[:, ::-1], 4, axis=0)
    for _ in range(2):
        await recording.replay(x)
        expected = scipy.fft.dst(host[:, ::-1], 4, axis=0)
        np.testing.assert_allclose(await device.get(sines), expected, atol=1e-4)
        x = await device.put(host := seeds.rng().uniform(-1, 1, (5, 8)).astype(np.float32))
    made = await device.fft.ref.ask(device.requests.fft.dct(x))
    np.testing.assert_allclose(await device.get(made), scipy.fft.dct(host), atol=1e-4)
