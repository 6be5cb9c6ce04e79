"""Programs of one task over every library, to be recorded; those of many tasks are in ordering."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from atomr_accel import Device, GpuRef

from .ops import DRAWN, OPS, made

SIDE = 4
VARIANTS = 6  # of each input: journals of many programs are smaller where these come again
SOURCE = """
    extern "C" __global__ void scaled(const float* x, float factor, float* out) {
        out[threadIdx.x] = x[threadIdx.x] * factor;
    }
"""


def scaled(x: Any, factor: Any, out: Any) -> None:
    out[...] = x * factor


def array_of(x: Any) -> Any:
    """Return the argument of a ``device.run`` function as an array that computes."""
    if not hasattr(x, "__cuda_array_interface__"):
        return x
    import cupy

    return cupy.asarray(x)


def shifted(x: Any) -> None:
    array = array_of(x)
    array += 1


def shifted_by(x: Any, _thing: object) -> None:
    array = array_of(x)
    array += 1


def added(x: Any, out: Any) -> None:
    array = array_of(out)
    array += array_of(x)


def dies_of_seven(x: Any) -> None:
    if (array_of(x) == 7).any():
        raise SystemExit  # which no host survives


def dies_when_told(pipe: str, *_given: object) -> None:
    with open(pipe, "rb") as told:  # noqa: PTH123 (no file, but what it waits for)
        told.read()
    os._exit(3)


def drawn(out: Any, line: Any, n: Any, steps: Any) -> None:
    """A line, for a kernel of a module."""
    out[:n] = line["slope"] * np.arange(n) + line["offset"] + steps[0]


def dies(*_given: object) -> None:
    os._exit(3)


def gelu(x: Any) -> Any:
    return x * 0.5 + np.tanh(x)


class Random:
    """Makes calls by chance, on a few matrices, as a program would."""

    def __init__(self, device: Device, seed: int) -> None:
        self.device = device
        self.rng = random.Random(seed)
        self.refs: list[GpuRef] = []
        self.steps: list[Callable[[], Awaitable[object]]] = [
            self._put,
            self._put_into,
            self._get,
            self._gemm,
            self._fft,
            self._draw,
            self._evaluate,
            self._fused,
            self._kernel,
            self._view,
            self._sorted,
            self._run,
            self._batch,
            self._record,
            self._seal,
            self._free,
            self._wrong,
        ]

    async def run(self, count: int) -> None:
        device = self.device
        self.kernel = await device.nvrtc.compile(SOURCE, "scaled", cpu=scaled)
        self.generator = device.rng.default_rng(self.rng.randrange(100))
        self.fused = device.fuse(gelu)
        await self._put()
        for _ in range(count):
            await self.rng.choice(self.steps)()
            del self.refs[:-6]
        for ref in self.refs:
            if not ref.is_stale:
                await device.get(ref)

    def some(self) -> GpuRef:
        return self.rng.choice(self.refs)

    def array(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        chosen = np.random.default_rng(self.rng.randrange(2**32))
        return chosen.standard_normal((SIDE, SIDE)).astype(np.float32)

    async def _put(self) -> None:
        self.refs.append(await self.device.put(self.array(), sealed=self.rng.random() < 0.2))

    async def _put_into(self) -> None:
        ref = self.some()
        if not ref.sealed:
            await self.device.put(self.array(), out=ref)

    async def _get(self) -> None:
        ref = self.some()
        await self.device.get(self.rng.choice([ref, ref.T, ref[1:3], ref[:, ::2]]))

    async def _gemm(self) -> None:
        a, b = self.some(), self.some()
        alpha = self.rng.choice([1.0, 0.5])
        self.refs.append(await self.device.blas.gemm(a, b, alpha=alpha))

    async def _fft(self) -> None:
        spectrum = await self.device.fft.rfft(self.some())
        self.refs.append(await self.device.fft.irfft(spectrum, n=SIDE))

    async def _draw(self) -> None:
        self.refs.append(await self.generator.normal(size=(SIDE, SIDE), dtype="float32"))
        if self.rng.random() < 0.3:
            self.generator.advance(8)

    async def _evaluate(self) -> None:
        x, y = self.some(), self.some()
        self.refs.append(await self.device.evaluate(np.maximum(x, 0.25) * 0.5 - y.T))

    async def _fused(self) -> None:
        self.refs.append(await self.fused(self.some()))

    async def _kernel(self) -> None:
        out = await self.device.zeros((SIDE, SIDE), np.float32)
        await self.kernel.launch(1, SIDE * SIDE, self.some(), np.float32(0.5), out)
        self.refs.append(out)

    async def _view(self) -> None:
        self.refs.append(await self.device.copy(self.some().T))

    async def _sorted(self) -> None:
        self.refs.append(await self.device.array.sort(self.some(), axis=0))
        await self.device.array.getitem(self.some(), (slice(None, 2), ...))

    async def _run(self) -> None:
        ref = self.some()
        if not ref.sealed:
            await self.device.run(shifted, ref)

    async def _batch(self) -> None:
        async with self.device.batch() as batch:
            made = batch.blas.gemm(self.some(), self.some())
            batch.launch(self.kernel, 1, SIDE * SIDE, made, np.float32(2), made)
            batch.get(made)
            self.refs.append(batch.using(self.generator).normal(size=(SIDE, SIDE), dtype="float32"))
        self.refs.append(made)

    async def _record(self) -> None:
        x = self.some()
        async with self.device.record(x) as recording:
            y = recording.blas.gemm(x, x)
            recording.launch(self.kernel, 1, SIDE * SIDE, y, np.float32(0.5), y)
        if self.rng.random() < 0.5:
            await recording.replay(self.some(), get=[y, self.some().T, y[1:3]])
        else:
            await recording.replay(self.some())
            await self.device.get(y)

    async def _seal(self) -> None:
        await self.device.seal(self.some())

    async def _free(self) -> None:
        if len(self.refs) > 2:
            await self.device.free(self.refs.pop(self.rng.randrange(len(self.refs))))
            self.refs = [ref for ref in self.refs if not ref.is_stale]

    async def _wrong(self) -> None:
        try:
            await self.device.blas.gemm(self.some(), await self.device.zeros((3, 3), np.float32))
        except ValueError:
            return
        raise AssertionError("it should have been refused")


class Wide(Random):
    """Adds many more ops with inputs of their own, and chooses them twice as often.

    Without functions of the program, so that any backend can do it again.
    """

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        self.steps.remove(self._run)
        narrow = len(self.steps)
        self.steps += [self._op] * narrow + [self._several] * (narrow // 2)
        self.steps += [self._distribution] * (narrow // 2)
        self.there: dict[tuple[str, str], GpuRef] = {}

    async def _op(self) -> None:
        name = self.rng.choice([*OPS])
        await OPS[name].call(self.device, *await self.given(name))

    async def _several(self) -> None:
        names = self.rng.sample([name for name, op in OPS.items() if not op.alone], 3)
        given = [await self.given(name) for name in names]
        async with self.device.batch() as batch:
            for name, refs in zip(names, given, strict=True):
                OPS[name].call(batch, *refs)

    async def _distribution(self) -> None:
        name = self.rng.choice([*DRAWN])
        await getattr(self.generator, name)(**DRAWN[name])

    async def given(self, name: str) -> list[GpuRef]:
        """Return the inputs of a row's op: earlier inputs, unless the op writes to them."""
        op = OPS[name]
        dtype = self.rng.choice(op.dtypes)
        chance = np.random.default_rng(self.rng.randrange(VARIANTS))
        refs = []
        for at, spec in enumerate(op.inputs):
            key = f"{spec} {at}", dtype
            if op.writes or key not in self.there or self.there[key].is_stale:
                ref = await self.device.put(made(spec, dtype, chance))
                if not op.writes:
                    self.there[key] = ref
            else:
                ref = self.there[key]
            refs.append(ref)
        return refs
