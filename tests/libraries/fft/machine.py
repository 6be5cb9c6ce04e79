"""A plan's steps, run with NumPy in place of cuFFT and of the kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atomr_accel.libraries.fft.wire import _plan
from atomr_accel.libraries.fft.wire._messages import FftSpec
from atomr_accel.libraries.fft.wire._plan import (
    INPUT,
    OUTPUT,
    SCRATCH,
    BufferOffset,
    CufftRun,
    Move,
    plan,
    result_shape,
    result_type,
)

from ..conformance import dtype_of

Array = np.ndarray[Any, Any]


class Machine:
    """Buffers as cuFFT and the kernels see them, and what those do, in NumPy."""

    def __init__(self, spec: FftSpec, source: Array, *, in_place: bool = False) -> None:
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
                assert isinstance(step, CufftRun)
                places = {step.source.buffer, step.target.buffer}
                assert self.spec.source_aligned or INPUT not in places
                assert self.spec.target_aligned or OUTPUT not in places
                self.fft(step)
        assert in_place or self.buffers[INPUT].tobytes() == before
        result = self.read(BufferOffset(OUTPUT), result_type(self.spec))
        return result.reshape(result_shape(self.spec))

    def elements(self, place: BufferOffset, kind: str) -> Array:
        name, pair, _ = kind.partition("x2")
        flat = self.buffers[place.buffer][place.offset :]
        dtype = dtype_of(name)
        width = dtype.itemsize * (2 if pair else 1)
        flat = flat[: len(flat) // width * width].view(dtype)
        return flat.reshape(-1, 2) if pair else flat

    def read(self, place: BufferOffset, kind: str) -> Array:
        values = self.elements(place, kind)
        if kind.endswith("x2"):
            wide = values.astype(np.float32)
            return wide[:, 0] + 1j * wide[:, 1]
        return values

    def write(self, place: BufferOffset, kind: str, at: Array, values: Array) -> None:
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

    def fft(self, step: CufftRun) -> None:
        layout = step.layout
        real_in = not layout.source_type.startswith("complex") and "x2" not in layout.source_type
        real_out = not layout.target_type.startswith("complex") and "x2" not in layout.target_type
        half = (*layout.sizes[:-1], layout.sizes[-1] // 2 + 1)
        assert 1 <= len(layout.sizes) <= 3
        if real_in or real_out:
            assert layout.sizes[-1] > 1 or len(layout.sizes) == 1, "cuFFT drops the real axis"
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
