"""Convolutions and the chirp z-transform against SciPy, and sizes that are quick."""

from __future__ import annotations

import cmath
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.signal

from atomr_accel import Device

from ... import seeds
from ..conformance import MARKS, Array, Case, Near, Operation, Sample, conform, product, put_strided
from ..refusals import refuses

pytestmark = MARKS

COMPUTED = {
    **dict.fromkeys(("float16", "bfloat16", "float32"), "float32"),
    **dict.fromkeys(("float64", "int32"), "float64"),
    **{name: name for name in ("complex64", "complex128")},
}


def two(sample: Sample, one: tuple[int, ...], two: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    return sample.array(*one), sample.array(*two)


def options(case: Case) -> Case:
    return {name: value for name, value in case.items() if name not in ("one", "two", "shape")}


def convolve(name: str, device: Any, x: Any, y: Any, **case: Any) -> Any:
    return getattr(device.fft, name)(x, y, **options(case))


def convolved(dtype: str, x: Array, y: Array, **case: Any) -> Near:
    """Return SciPy's direct sums, or its transforms if the case has axes."""
    function: Any = scipy.signal.convolve if "axes" not in case else scipy.signal.fftconvolve
    how = {"method": "direct"} if "axes" not in case else {}
    kind = np.complex128 if x.dtype.kind == "c" else np.float64
    x, y = x.astype(kind), y.astype(kind)
    value = function(x, y, **how, **options(case))
    size = np.sqrt(np.sum(np.abs(x) ** 2) * np.sum(np.abs(y) ** 2))
    return Near(value, magnitude=size, dtype=COMPUTED[dtype])


MODES = ("full", "same", "valid")
CASES = [
    *product(one=[(7,), (40,)], two=[(3,), (40,), (1,)], mode=MODES),
    *product(one=[(5, 8)], two=[(3, 2), (1, 2)], mode=MODES),
    *product(one=[(300, 7)], two=[(5, 3)], mode=MODES),  # cut in one axis
    *product(one=[(5, 250)], two=[(5, 4)], mode=MODES[:2]),
    *product(one=[(3, 4)], two=[(150, 200)], mode=MODES),  # in both, of the second
    *product(one=[(4, 300)], two=[(1, 9), (4, 9)], mode=MODES, axes=[1, (-1,)]),
    *product(one=[(2, 90, 3)], two=[(2, 4, 2)], axes=[(1, 2)]),
    *product(one=[()], two=[()]),
]


def pairs(name: str, dtype: str) -> Operation:
    return Operation(
        f"fft.{name}", (dtype,), CASES, two, partial(convolve, name), partial(convolved, dtype)
    )


test_convolutions = conform(
    [pairs(name, dtype) for name in ("fftconvolve", "oaconvolve") for dtype in COMPUTED], take=12
)
test_convolutions_of_views = conform([pairs("oaconvolve", "float32")], take=12, put=put_strided)


def one(sample: Sample, shape: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    return (sample.array(*shape),)


def spiral(device: Any, x: Any, **case: Any) -> Any:
    return device.fft.czt(x, **options(case))


def on_spiral(
    result: str,
    x: Array,
    m: int | None = None,
    w: complex | None = None,
    a: complex = 1,
    axis: int = -1,
    **_: Any,
) -> Near:
    """The sums themselves."""
    n = x.shape[axis]
    m = n if m is None else m
    k, j = np.arange(m)[:, None], np.arange(n)
    log = np.clongdouble(-2j * np.pi / m if w is None else cmath.log(w))
    turns = k * j % m if w is None else k * j
    matrix = np.exp(log * turns) * np.exp(-np.clongdouble(cmath.log(a)) * j)
    value = np.moveaxis(np.moveaxis(x, axis, -1) @ matrix.T, -1, axis)
    return Near(value, dtype=result)


SPIRALS = [
    *product(shape=[(6,), (3, 20)], m=[None, 1, 7, 50]),
    *product(shape=[(12, 4)], axis=[0], w=[cmath.exp(-0.3j), 0.99 * cmath.exp(0.1j)], a=[1, 1.02j]),
    *product(shape=[(1,)], m=[3]),
    *product(shape=[(0, 4)]),
]

test_spirals = conform(
    [
        Operation("fft.czt", (dtype,), SPIRALS, one, spiral, partial(on_spiral, result), factor=32)
        for dtype, result in {
            "float32": "complex64",
            "complex64": "complex64",
            "float64": "complex128",
            "complex128": "complex128",
        }.items()
    ],
    take=2,
)


async def test_many_points_around_the_circle_are_as_exact_as_few(device: Device) -> None:
    host = seeds.rng().uniform(-1, 1, 1 << 15)
    spectrum = await device.get(await device.fft.czt(await device.put(host)))
    expected = np.fft.fft(host)
    assert np.abs(spectrum - expected).max() < 1e-14 * np.abs(expected).max()


test_bad_input_is_refused = refuses(
    "fft",
    [
        (
            "fftconvolve(f4_3, f4_3x3)",
            ValueError,
            "in1 and in2 must have the same number of dimensions, not shapes",
        ),
        ('fftconvolve(f4_3, f4_3, mode="half")', ValueError, "mode must be one of 'full'"),
        ('oaconvolve(f4_3x5, f4_5x3, mode="valid")', ValueError, "at least as large"),
        ("oaconvolve(f4_3x5, f4_2x3, axes=1)", ValueError, "do not broadcast along axis 0"),
        ("fftconvolve(f4_3x5, f4_2x3, axes=(1, -1))", ValueError, "unique"),
        ("fftconvolve(f4_3, f4_2, axes=1)", np.exceptions.AxisError, "axis 1"),
        ("czt(f4_3, m=0)", ValueError, r"data points \(0\)"),
        ("czt(f4_0)", ValueError, r"data points \(0\)"),
        ("czt(f4_3, a=0)", ValueError, "a must be finite and nonzero, not 0j"),
        ('czt(f4_3, w="1")', TypeError, "w must be a number"),
    ],
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["fftconvolve", "oaconvolve"])
async def test_convolution_of_empty_arrays_is_empty(device: Device, name: str, mode: str) -> None:
    for shapes in [((4, 0, 1), (5, 2, 5)), ((0,), (3,)), ((3,), (0,))]:
        arrays = [np.ones(shape) for shape in shapes]
        refs = [await device.put(array) for array in arrays]
        found = await getattr(device.fft, name)(*refs, mode=mode)
        assert found.shape == getattr(scipy.signal, name)(*arrays, mode=mode).shape


async def test_products_of_integers_are_floating_point(device: Device) -> None:
    one = await device.put(np.array([[3]], np.int32))
    found = await device.fft.fftconvolve(one, one)
    assert (await device.get(found)).tolist() == [[9.0]]
    assert found.dtype == np.float64
    with pytest.raises(ValueError, match="data points"):
        await device.fft.hfft2(one)


async def test_in_batches_and_recordings(device: Device) -> None:
    rng = seeds.rng()
    long, short = rng.uniform(-1, 1, 500), rng.uniform(-1, 1, 9)
    x, y = await device.put(long), await device.put(short)
    expected = np.convolve(long, short)
    async with device.batch() as batch:
        assert batch.fft.next_fast_len(508) == 512
        results = [batch.fft.fftconvolve(x, y), batch.fft.oaconvolve(x, y)]
        spectrum = batch.fft.czt(x)
    async with device.record(x) as recording:
        results.append(recording.fft.oaconvolve(x, y))
    await recording.replay(x)
    for result in results:
        np.testing.assert_allclose(await device.get(result), expected, atol=1e-12)
    np.testing.assert_allclose(await device.get(spectrum), np.fft.fft(long), atol=1e-10)


async def test_sizes_that_are_quick(device: Device) -> None:
    for size in (*range(1, 300), 100_003, 2**31 - 1):
        found = device.fft.next_fast_len(size)
        rest = range(size, found + 1) if found < 10_000 else (found,)
        assert [each for each in rest if _smooth(each)] == [found]
    with pytest.raises(ValueError, match="target"):
        device.fft.next_fast_len(0)


async def test_sizes_before_that_are_quick(device: Device) -> None:
    for size in (*range(1, 300), 100_003, 2**31 - 1):
        found = device.fft.prev_fast_len(size)
        assert _smooth(found)
        assert found <= size < device.fft.next_fast_len(found + 1)


def _smooth(size: int) -> bool:
    for factor in (2, 3, 5, 7):
        while not size % factor:
            size //= factor
    return size == 1


async def test_convolution_differs_from_scipy_as_documented(device: Device) -> None:
    one, other = np.ones((1, 3), np.float32), np.ones((2, 7), np.float32)
    first, second = await device.put(one), await device.put(other)
    for convolve in (device.fft.fftconvolve, device.fft.oaconvolve):
        same = await convolve(first, second, "same", axes=1)
        assert same.shape == (2, 3)
        expected = scipy.signal.fftconvolve(np.broadcast_to(one, (2, 3)), other, "same", axes=1)
        np.testing.assert_allclose(await device.get(same), expected, rtol=1e-5)
    assert (await device.fft.czt(first)).dtype == np.complex64
    with pytest.raises(ValueError, match="Invalid number of FFT data points"):
        await device.fft.hfftn(first[:, :1])
