"""Random programs with durable buffers, beside a model that says what becomes of each.

A program writes in all ways to its buffers: whole ones and views, by ops, batches, recordings and
functions. It appends to a durable cache. Bytes of memory are scribbled over behind its back, which
no op does. Then the device fails, often with writes in flight. Afterwards each buffer must have
exactly the bytes of the model, or be stale for the reason that the model knows. Each sequence of
the cache must be cut to what the model can prove.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, final

import numpy as np
import trio

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefStale, Recording
from atomr_accel.testing import kill_host, poison
from atomr_accel.wire import CHUNK_BYTES

from .caches import ModelledCache
from .scribbling import Scribbler

CHANGED: Final = "have changed that no op has written"
IN_FLIGHT: Final = "a write to it was in flight"

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def change(array: Any, row: int, value: float) -> None:
    """Change a row, in the host."""
    if hasattr(array, "__cuda_array_interface__"):
        import cupy

        array = cupy.asarray(array)
    array[row] = value


@final
class Modelled:
    """A durable buffer, and what the model knows of it.

    Attributes:
        ref: the buffer, a matrix of float32.
        content: the bytes that its memory has.
        proven: the bytes at the last digest of each chunk.
        lost: text in the error that its next use must raise, or an empty one. "?" if it may raise,
            since a write was interrupted.
        interrupted: index and values of that write, which may have been done.
        recording: a recording that fills it, if there is one.
    """

    def __init__(self, ref: GpuRef, array: np.ndarray[Any, Any]) -> None:
        self.ref = ref
        self.content: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()
        self.proven = self.content.copy()
        self.lost = ""
        self.interrupted: tuple[Any, Any] | None = None
        self.recording: Recording | None = None

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The content as the buffer's array."""
        return self.content.view(np.float32).reshape(self.ref.shape)

    def write(self, key: Any, values: Any) -> None:
        """An op has written by a view, and digests cover it from its first to its last byte."""
        view = self.array[key]
        low, high = np.lib.array_utils.byte_bounds(view)
        base, _ = np.lib.array_utils.byte_bounds(self.content)
        begin, end = low - base, high - base
        for chunk in {begin // CHUNK_BYTES, (end - 1) // CHUNK_BYTES}:
            first, last = chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, len(self.content))
            whole = begin <= first and last <= end
            part = slice(first, last)
            if not whole and (self.content[part] != self.proven[part]).any():
                self.lost = CHANGED
        view[...] = values
        first, last = begin // CHUNK_BYTES * CHUNK_BYTES, -(-end // CHUNK_BYTES) * CHUNK_BYTES
        self.proven[first:last] = self.content[first:last]

    async def scribble(self, scribbler: Scribbler, start: int, data: bytes) -> None:
        """Bytes have changed behind the program's back."""
        await scribbler(self.ref, start, data)
        self.content[start : start + len(data)] = np.frombuffer(data, np.uint8)

    def fail(self) -> None:
        """The device has failed, with no write to this buffer in flight."""
        if not self.lost and (self.content != self.proven).any():
            self.lost = CHANGED


@final
class Program:
    """A program on a device that others share, earlier, later and at the same time."""

    def __init__(self, device: Device, random: random.Random, scribbler: Scribbler) -> None:
        self.device: Final = device
        self.random: Final = random
        self.numbers: Final = np.random.default_rng(random.getrandbits(64))
        self.buffers: Final[list[Modelled]] = []
        self.counts: Counter[str] = Counter()
        self.cache: ModelledCache | None = None
        self._scribbler: Final = scribbler
        self._busy: list[Modelled] = []
        self._appends = False
        self._failed: Any = None
        self._ended: list[tuple[Modelled, Any, Any, bool]] = []

    async def begin(self) -> None:
        """Make what the program works on."""
        for _ in range(self.random.randint(2, 6)):
            await self._make()
        if self.random.random() < 0.5:
            self.cache = await ModelledCache.make(self.device, self.random)

    async def go_on(self) -> None:
        """Do some steps."""
        while not self.buffers:
            await self._make()
        for _ in range(self.random.randint(0, 16)):
            await self._step()

    async def check(self) -> None:
        """Check everything after a fault."""
        if self.cache is not None:
            self.counts["tokens lost"] += await self.cache.recover(self._failed)
        for buffer in list(self.buffers):
            await self._check(buffer)

    def _values(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return self.numbers.integers(-99, 99, shape).astype(np.float32)

    async def _make(self) -> None:
        rows, columns = self.random.randint(1, 300), self.random.choice([1, 7, 64, 256, 333])
        array, device = self._values((rows, columns)), self.device
        way = self.random.choice(["put", "zeros", "full", "convert"])
        if way == "put":
            ref = await device.put(array, durable=True)
        elif way == "zeros":
            array[...] = 0
            ref = await device.zeros(array.shape, np.float32, durable=True)
        elif way == "full":
            array[...] = 3
            ref = await device.full(array.shape, 3, np.float32, durable=True)
        else:
            ref = await device.make_durable(await device.put(array))
        self.buffers.append(Modelled(ref, array))

    def _key(self, buffer: Modelled) -> tuple[slice, slice]:
        """Return the index of a random view, contiguous or not, of any steps."""
        draw, (rows, columns) = self.random, buffer.ref.shape
        first = draw.randrange(rows)
        last = draw.randint(first + 1, rows)
        kind = draw.choice(["rows", "rows", "all", "block", "steps", "back"])
        if kind == "rows":
            return slice(first, last), slice(None)
        if kind == "all":
            return slice(None), slice(None)
        left = draw.randrange(columns)
        right = draw.randint(left + 1, columns)
        if kind == "block":
            return slice(first, last), slice(left, right)
        if kind == "steps":
            return slice(first, last, draw.randint(1, 3)), slice(left, None, draw.randint(1, 3))
        return slice(None, None, -1), slice(None, None, -draw.randint(1, 2))

    def _write(self, buffer: Modelled) -> tuple[Callable[[], Awaitable[object]], Any, Any]:
        """Draw a write; return the call, the view's index, and the values for the model."""
        device, key = self.device, self._key(buffer)
        target = buffer.ref[key]
        values = self._values(target.shape)
        way = self.random.choice(["put", "fill", "copy", "expression", "run", "gemm"])

        async def put() -> None:
            await device.put(values, out=target)

        async def fill() -> None:
            await device.fill(target, 7)

        async def copy() -> None:
            await device.copy(await device.put(values), target)

        async def expression() -> None:
            await device.evaluate(await device.put(values) * 2 + 1, out=target)

        async def run() -> None:
            await device.run(change, target, 0, 5.0)

        async def gemm() -> None:
            left = await device.put(values)
            right = await device.put(np.eye(values.shape[1], dtype=np.float32))
            await device.blas.gemm(left, right, out=target)

        if way == "run":
            after = buffer.array[key].copy()
            after[0] = 5
            return run, key, after
        if way == "fill":
            return fill, key, 7
        calls = {"put": put, "copy": copy, "expression": expression, "gemm": gemm}
        return calls[way], key, values * 2 + 1 if way == "expression" else values

    async def _step(self) -> None:
        draw = self.random
        buffer = draw.choice(self.buffers)
        step = draw.choice(
            ["write", "write", "write", "batch", "record", "scribble", "make", "free"]
            + ["cache"] * 4 * (self.cache is not None)
        )
        self.counts[step] += 1
        if step == "cache":
            assert self.cache is not None
            await (
                self.cache.change() if draw.random() < 0.9 else self.cache.scribble(self._scribbler)
            )
        elif step == "make" and len(self.buffers) < 6:
            await self._make()
        elif step == "free" and len(self.buffers) > 1:
            self.buffers.remove(buffer)
            if draw.random() < 0.5 and not buffer.lost:
                await self.device.free(buffer.ref)
        elif step == "scribble":
            await self._scribble(buffer)
        elif step == "batch":
            await self._batch()
        elif buffer.lost:
            await self._check(buffer)
            if not self.buffers:
                await self._make()
        elif step == "record":
            await self._replay(buffer)
        else:
            call, key, values = self._write(buffer)
            await call()
            buffer.write(key, values)

    async def _scribble(self, buffer: Modelled) -> None:
        size = len(buffer.content)
        start = self.random.randrange(size)
        length = self.random.choice([1, 4, 100, 70000])
        data = self.numbers.bytes(min(length, size - start))
        if buffer.lost and self.device.backend != "cpu":
            return  # what scribbles there is a kernel, which gets no buffer that is lost
        await buffer.scribble(self._scribbler, start, data)

    async def _batch(self) -> None:
        written = [buffer for buffer in self.buffers if not buffer.lost]
        async with self.device.batch() as batch:
            for buffer in written:
                key = self._key(buffer)
                if self.random.random() < 0.5:
                    batch.fill(buffer.ref[key], 9)
                    buffer.write(key, 9)
                else:
                    values = self._values(buffer.array[key].shape)
                    batch.copy(batch.put(values), buffer.ref[key])
                    buffer.write(key, values)

    async def _replay(self, buffer: Modelled) -> None:
        if buffer.recording is None:
            async with self.device.record(buffer.ref) as recording:
                recording.fill(buffer.ref[:1], 4)
            buffer.recording = recording
        await buffer.recording.replay()
        after = buffer.array.copy()
        after[:1] = 4
        buffer.write(slice(None), after)

    def write_on(self, nursery: trio.Nursery) -> None:
        """Begin writes that may be in flight when the device fails."""
        draw = self.random
        self._busy = [buffer for buffer in self.buffers if not buffer.lost and draw.random() < 0.4]
        # What was scribbled over before would be found by the write.
        self._busy = [each for each in self._busy if (each.content == each.proven).all()]
        self._appends = self.cache is not None and draw.random() < 0.5
        self._failed = None
        self._ended.clear()
        if self._appends:
            nursery.start_soon(self._append)
        for buffer in self._busy:
            nursery.start_soon(self._try_write, buffer)

    async def _append(self) -> None:
        assert self.cache is not None
        self._failed = await self.cache.in_flight()

    async def _try_write(self, buffer: Modelled) -> None:
        call, key, values = self._write(buffer)
        try:
            await call()
        except (ContextPoisoned, GpuRefStale):
            # The op itself, or one that it needs first, which then has not written.
            self.counts["write failed"] += 1
            self._ended.append((buffer, key, values, False))
        else:
            self._ended.append((buffer, key, values, True))

    async def scribble(self) -> None:
        """Scribble over bytes that no op in flight writes."""
        draw, cache = self.random, self.cache
        for buffer in self.buffers:
            if buffer not in self._busy and draw.random() < 0.3:
                await self._scribble(buffer)
                self.counts["scribbled"] += 1
        if cache is not None and not self._appends:
            for _ in range(draw.randrange(3)):
                await cache.scribble(self._scribbler)
                self.counts["cache scribbled"] += 1

    def fail(self) -> None:
        """The device has failed."""
        for buffer in self.buffers:
            if buffer not in self._busy:
                buffer.fail()
        for buffer, key, values, done in self._ended:
            if done:
                buffer.write(key, values)
            else:
                buffer.lost, buffer.interrupted = "?", (key, values)

    async def _check(self, buffer: Modelled) -> None:
        """A buffer is what the model says; a lost one is dropped."""
        found, said = None, ""
        try:
            found = await self.device.get(buffer.ref)
        except GpuRefStale as error:
            said = str(error)
        if found is None:
            expected = IN_FLIGHT if buffer.lost == "?" else buffer.lost
            assert expected, f"it is as it was: {said}"
            assert expected in said, said
            self.counts["changed" if expected == CHANGED else "in flight"] += 1
            self.buffers.remove(buffer)
            return
        assert buffer.lost in ("", "?"), f"not found: {buffer.lost}"
        # An interrupted write may not have begun when the device failed, or it was done and proven,
        # but not answered yet.
        if buffer.interrupted is not None and found.tobytes() != buffer.content.tobytes():
            buffer.write(*buffer.interrupted)
            self.counts["done, not answered"] += 1
        assert found.tobytes() == buffer.content.tobytes()  # what was scribbled may be NaN
        buffer.lost, buffer.interrupted = "", None
        self.counts["continued"] += 1


async def run_together(
    device: Device, random: random.Random, programs: Sequence[Program], *, faults: int = 2
) -> None:
    """Run programs that share a device and its faults, and check everything after each fault."""
    for each in programs:
        await each.begin()
    for _ in range(faults):
        for each in programs:
            await each.go_on()
        before = device.generation
        async with trio.open_nursery() as nursery:
            for each in programs:
                each.write_on(nursery)
            for _ in range(random.choice([0, 1, 2, 5, 20])):
                await trio.lowlevel.checkpoint()
            for each in programs:
                await each.scribble()
            await (poison if random.random() < 0.5 else kill_host)(device)
        await device.get(await device.zeros(1))
        assert device.generation > before
        for each in programs:
            each.fail()
        for each in programs:
            await each.check()
