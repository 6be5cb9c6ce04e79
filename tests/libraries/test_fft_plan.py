"""The steps of transforms, run with NumPy in place of cuFFT and of the kernels."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from atomr_accel.libraries.fft._arguments import FAMILIES, resolve
from atomr_accel.libraries.fft._cache import PlanCache
from atomr_accel.libraries.fft.wire import _plan
from atomr_accel.libraries.fft.wire._plan import (
    INPUT,
    OUTPUT,
    SCRATCH,
    Fft,
    Move,
    Place,
    plan,
    result_shape,
    result_type,
)

from .. import seeds
from .conformance import dtype_of

if TYPE_CHECKING:
    from atomr_accel.libraries.fft.wire._messages import Spec

Array = np.ndarray[Any, Any]


class Machine:
    """Buffers as cuFFT and the kernels see them, and what those do, in NumPy."""

    def __init__(self, spec: Spec, source: Array, *, in_place: bool = False) -> None:
        self.spec = spec
        self.program = plan(spec)
        elements = math.prod(result_shape(spec))
        kind = result_type(spec)
        nbytes = elements * _plan.ITEMSIZE[kind]
        self.buffers = {
            INPUT: np.frombuffer(source.tobytes(), np.uint8).copy(),
            OUTPUT: np.full(nbytes, 0x7F, np.uint8),
            SCRATCH: np.full(self.program.scratch, 0x7F, np.uint8),
        }
        if in_place:
            self.buffers[OUTPUT] = self.buffers[INPUT]

    def run(self) -> Array:
        before = self.buffers[INPUT].tobytes()
        in_place = self.buffers[OUTPUT] is self.buffers[INPUT]
        for step in self.program.steps:
            if isinstance(step, Move):
                self.move(step)
            else:
                places = {step.source.buffer, step.target.buffer}
                assert self.spec.source_aligned or INPUT not in places
                assert self.spec.target_aligned or OUTPUT not in places
                self.fft(step)
        assert in_place or self.buffers[INPUT].tobytes() == before
        result = self.read(Place(OUTPUT), result_type(self.spec))
        return result.reshape(result_shape(self.spec))

    def elements(self, place: Place, kind: str) -> Array:
        name, pair, _ = kind.partition("x2")
        flat = self.buffers[place.buffer][place.offset :]
        dtype = dtype_of(name)
        width = dtype.itemsize * (2 if pair else 1)
        flat = flat[: len(flat) // width * width].view(dtype)
        return flat.reshape(-1, 2) if pair else flat

    def read(self, place: Place, kind: str) -> Array:
        values = self.elements(place, kind)
        if kind.endswith("x2"):
            wide = values.astype(np.float32)
            return wide[:, 0] + 1j * wide[:, 1]
        return values

    def write(self, place: Place, kind: str, at: Array, values: Array) -> None:
        target = self.elements(place, kind)
        if kind.endswith("x2"):
            target[at] = np.stack((values.real, values.imag), -1)
        elif kind.startswith("complex"):
            target[at] = values
        else:
            target[at] = values.real

    def move(self, step: Move) -> None:
        sizes = [dim.size for dim in step.dims]
        index = np.indices(sizes).reshape(len(sizes), -1)
        to = sum(i * dim.target for i, dim in zip(index, step.dims, strict=True))
        source = sum(i * dim.source for i, dim in zip(index, step.dims, strict=True))
        inside = np.logical_and.reduce(
            [i < dim.extent for i, dim in zip(index, step.dims, strict=True)]
        )
        values = np.zeros(index.shape[1], np.complex128)
        values[inside] = self.read(step.source, step.source_type)[np.asarray(source)[inside]]
        values *= step.scale
        if step.conjugate:
            values = values.conj()
        if step.edge >= 0:
            edge = index[step.edge]
            values.imag[(edge == 0) | (edge == step.middle)] = 0
        self.write(step.target, step.target_type, np.asarray(to), values)

    def fft(self, step: Fft) -> None:
        layout = step.layout
        real_in = not layout.source_type.startswith("complex") and "x2" not in layout.source_type
        real_out = not layout.target_type.startswith("complex") and "x2" not in layout.target_type
        half = (*layout.sizes[:-1], layout.sizes[-1] // 2 + 1)
        assert 1 <= len(layout.sizes) <= 3
        widths = _plan.ITEMSIZE[layout.source_type], _plan.ITEMSIZE[layout.target_type]
        before = self.grid(
            half if real_out else layout.sizes,
            (layout.source_embed, layout.source_stride, layout.source_distance, layout.batch),
        )
        after = self.grid(
            half if real_in else layout.sizes,
            (layout.target_embed, layout.target_stride, layout.target_distance, layout.batch),
        )
        for source, target in step.offsets:
            assert not source % (widths[0] * (1 + real_in)), "real data is not aligned as complex"
            assert not target % (widths[1] * (1 + real_out)), "real data is not aligned as complex"
            at = before + source // widths[0]
            values = self.read(step.source, layout.source_type)[at]
            axes = tuple(range(1, values.ndim))
            if real_in:
                values = np.fft.rfftn(values, axes=axes)
            elif real_out:
                self.write(step.source, layout.source_type, at, np.full(at.shape, np.nan + 0j))
                values = np.fft.irfftn(values, layout.sizes, axes, norm="forward")
            elif step.inverse:
                values = np.fft.ifftn(values, axes=axes, norm="forward")
            else:
                values = np.fft.fftn(values, axes=axes)
            self.write(step.target, layout.target_type, after + target // widths[1], values)

    @staticmethod
    def grid(sizes: tuple[int, ...], how: tuple[tuple[int, ...], int, int, int]) -> Array:
        """The indices of what a plan touches, as the advanced layout defines them."""
        embed, stride, distance, batch = how
        at = np.zeros((), np.int64)
        for size, rows in zip(sizes, embed, strict=True):
            assert rows >= size
            at = at[..., None] * rows + np.arange(size)
        return np.arange(batch).reshape(-1, *[1] * len(sizes)) * distance + at * stride


def reference(family: str, array: Array, call: tuple[Any, ...]) -> Array:
    """NumPy's answer, in double precision."""
    axes, sizes, norm = call
    if family in ("hfft", "ihfft"):
        result: Array = getattr(np.fft, family)(array, sizes[0], axes[0], norm)
    else:
        result = getattr(np.fft, f"{family}n")(array, sizes, axes, norm)
    return result


def sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    values: Array = rng.uniform(-1, 1, shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.uniform(-1, 1, shape)
    if dtype in ("int32", "uint8"):
        values = rng.integers(0, 100, shape)
    return np.asarray(values).astype(dtype_of(dtype))


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


def spec_of(family: str, shape: tuple[int, ...], axes: tuple[int, ...], **more: Any) -> Spec:
    dtype = np.dtype(more.get("dtype", "complex64"))
    sizes = more.get("sizes", tuple(shape[axis] for axis in axes))
    return resolve(family, family, shape, dtype, axes, sizes, more.get("norm"), half=False).spec


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
    ],
)
def test_no_more_work_than_needed(spec: Spec, runs: list[int], moves: int) -> None:
    steps = plan(spec).steps
    assert [len(step.offsets) for step in steps if isinstance(step, Fft)] == runs
    assert sum(isinstance(step, Move) for step in steps) == moves


def test_sizes_beyond_32_bits() -> None:
    spec = spec_of("ifft", (3, 2**32), (1,))
    (fft, scale) = plan(spec).steps
    assert isinstance(fft, Fft)
    assert isinstance(scale, Move)
    assert fft.layout.sizes == (2**32,)
    assert fft.layout.source_distance == 2**32
    assert [dim.size for dim in scale.dims] == [3 * 2**32]


def test_nothing_to_do() -> None:
    assert plan(spec_of("fft", (0, 4), (1,))).steps == ()


def test_a_plan_has_the_number_of_its_transform() -> None:
    """So a host that two devices have had takes none for another."""
    one, other = (PlanCache(cast("Any", None)) for _ in range(2))
    specs = [bytes([number]) * 9 for number in range(50)]
    numbers = [one._plan(spec).number for spec in specs]
    assert numbers == [other._plan(spec).number for spec in reversed(specs)][::-1]
    assert len(set(numbers)) == len(specs)
    assert all(0 <= number < 1 << 63 for number in numbers)
