"""The steps of transforms, run with NumPy in place of cuFFT and of the kernels."""

from __future__ import annotations

import itertools
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from atomr_accel.libraries.fft._arguments import FAMILIES, resolve
from atomr_accel.libraries.fft._cache import FftPlanCache
from atomr_accel.libraries.fft.wire import _plan
from atomr_accel.libraries.fft.wire._messages import FftSpec
from atomr_accel.libraries.fft.wire._plan import CufftRun, Move, plan

from ... import seeds
from .machine import Machine, reference, sample


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("calls", [1, 16])
def test_random_transforms(family: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plan, "MOST_CALLS", calls)
    seed = seeds.draw()
    rng = np.random.default_rng(seed)
    kind = FAMILIES[family].kind
    for trial in range(150):
        ndim = int(rng.integers(1, 6))
        shape = tuple(map(int, rng.integers(1, 5, ndim)))
        most = 1 if family in ("hfft", "ihfft") else ndim
        count = int(rng.integers(1, most + 1))
        axes = tuple(map(int, rng.permutation(ndim)[:count]))
        sizes = tuple(
            max(1, shape[axis] + int(rng.integers(-2, 3)) * int(rng.integers(0, 2)))
            for axis in axes
        )
        dtype = str(rng.choice(["float32", "float64", "int32", "uint8", "float16"]))
        if kind != "r2c" and rng.integers(0, 2):
            dtype = str(rng.choice(["complex64", "complex128"]))
        norm = str(rng.choice(["backward", "ortho", "forward"]))
        array = sample(rng, shape, dtype)
        aligned = bool(rng.integers(0, 2)), bool(rng.integers(0, 2))
        call = resolve(
            family, family, shape, array.dtype, axes, sizes, norm, half=False, aligned=aligned
        )
        what = (
            f"seed {seed}, trial {trial}: {family} {dtype}{shape} {axes} {sizes} {norm} {aligned}"
        )
        got = Machine(call.spec, array).run()
        wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
        expected = reference(family, wide, (axes, sizes, norm))
        assert got.dtype == call.dtype, what
        tolerance = 3e-5 if call.spec.precision == "float32" else 1e-12
        np.testing.assert_allclose(
            got, expected, atol=tolerance * max(1, np.abs(expected).max()), err_msg=what
        )


@pytest.mark.parametrize("family", ["fft", "ifft", "rfft", "irfft"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(family: str, dtype: str) -> None:
    rng = seeds.rng()
    kind = FAMILIES[family].kind
    for shape, axes in itertools.product(
        [(4, 8, 2), (2, 4, 4)], [(0,), (1,), (2,), (1, 2), (0, 2), (0, 1), (2, 0), (0, 1, 2)]
    ):
        sizes = [shape[axis] for axis in axes]
        if kind == "c2r":
            sizes[-1] = 4
        pairs = () if kind == "r2c" else (2,)
        array = sample(rng, (*shape, *pairs), dtype)
        call = resolve(family, family, shape, array.dtype, axes, tuple(sizes), "ortho", half=True)
        got = Machine(call.spec, array).run()
        wide = array.astype(np.float64)
        values = wide[..., 0] + 1j * wide[..., 1] if pairs else wide
        expected = reference(family, values, (axes, sizes, "ortho"))
        tolerance = 0.01 if dtype == "float16" else 0.08
        np.testing.assert_allclose(got, expected, atol=tolerance * np.abs(expected).max())


def test_in_place() -> None:
    rng = seeds.rng()
    shape = (3, 4, 5, 2)
    for count in (1, 2, 3, 4):
        for axes in itertools.combinations(range(4), count):
            array = sample(rng, shape, "complex128")
            sizes = tuple(shape[axis] for axis in axes)
            call = resolve("fft", "fft", shape, array.dtype, axes, sizes, None, half=False)
            got = Machine(call.spec, array, in_place=True).run()
            np.testing.assert_allclose(got, np.fft.fftn(array, axes=axes), atol=1e-12)


def spec_of(family: str, shape: tuple[int, ...], axes: tuple[int, ...], **more: Any) -> FftSpec:
    dtype = np.dtype(more.get("dtype", "complex64"))
    sizes = more.get("sizes", tuple(shape[axis] for axis in axes))
    return resolve(family, family, shape, dtype, axes, sizes, more.get("norm"), half=False).spec


def spent(spec: FftSpec) -> FftSpec:
    return msgspec.structs.replace(spec, spent=True)


@pytest.mark.parametrize(
    ("spec", "runs", "moves"),
    [
        (spec_of("fft", (8, 1024), (1,)), [1], 0),
        (spec_of("fft", (8, 1024), (0,)), [1], 0),  # strided, all batches in one call
        (spec_of("fft", (8, 16, 1024), (1,)), [8], 0),  # batches on both sides: a few calls
        (spec_of("fft", (64, 16, 64), (1,)), [1], 2),  # many: brought together first
        (spec_of("fft", (8, 16, 32), (0, 2)), [1], 0),  # axes with a batch between them
        (spec_of("fft", (8, 16, 32), (0, 1, 2)), [1], 0),
        (spec_of("fft", (4, 8, 16, 32), (0, 1, 2, 3)), [1, 1], 0),
        (spec_of("fft", (8, 1024), (1,), sizes=(1000,)), [1], 0),  # cropped by its strides
        (spec_of("fft", (8, 1000), (1,), sizes=(1024,)), [1], 1),  # padded on the way
        (spec_of("fft", (8, 1024), (1,), dtype="float32"), [1], 1),  # made complex
        (spec_of("ifft", (8, 1024), (1,)), [1], 1),  # scaled at the end
        (spec_of("ifft", (8, 1024), (1,), dtype="float64"), [1], 1),  # scaled on the way
        (spec_of("rfft", (8, 1024), (1,), dtype="float32"), [1], 0),
        (spec_of("rfft", (8, 16, 1024), (0, 2), dtype="float32"), [1], 0),
        (spec_of("rfft", (8, 1024), (1, 0), dtype="float32"), [1, 1], 0),  # real axis outside
        (spec_of("irfft", (8, 513), (1,), sizes=(1024,)), [1], 1),  # a copy to overwrite
        (spent(spec_of("irfft", (8, 513), (1,), sizes=(1024,), norm="forward")), [1], 0),
    ],
)
def test_no_more_work_than_needed(spec: FftSpec, runs: list[int], moves: int) -> None:
    steps = plan(spec).steps
    assert [len(step.offsets) for step in steps if isinstance(step, CufftRun)] == runs
    assert sum(isinstance(step, Move) for step in steps) == moves


def test_sizes_beyond_32_bits() -> None:
    spec = spec_of("ifft", (3, 2**32), (1,))
    (fft, scale) = plan(spec).steps
    assert isinstance(fft, CufftRun)
    assert isinstance(scale, Move)
    assert fft.layout.sizes == (2**32,)
    assert fft.layout.source_distance == 2**32
    assert [dim.size for dim in scale.dims] == [3 * 2**32]


def test_empty_transform_needs_no_plan() -> None:
    assert plan(spec_of("fft", (0, 4), (1,))).steps == ()


def test_a_plan_has_the_number_of_its_transform() -> None:
    """A host that serves two devices in turn therefore never confuses their plans."""
    one, other = (FftPlanCache(cast("Any", None)) for _ in range(2))
    specs = [bytes([number]) * 9 for number in range(50)]
    numbers = [one._plan(spec).number for spec in specs]
    assert numbers == [other._plan(spec).number for spec in reversed(specs)][::-1]
    assert len(set(numbers)) == len(specs)
    assert all(0 <= number < 1 << 63 for number in numbers)
