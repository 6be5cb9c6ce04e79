"""Programs of ops over shared buffers, and their results in sequential order.

A program is a list of ``(kind, seed)``. ``Run`` submits its ops in that order, each from a task of
its own, and waits only if it must. It keeps a NumPy model that has run them one after the other.
Where an op is cancelled both outcomes are right, so the model of a buffer is a list of contents.

All numbers are whole and stay below 2**24, so float32 computes them exactly in any order.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, final

import cloudpickle
import numpy as np
import trio
import trio.testing

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefSealed, GpuRefStale, LibraryError
from atomr_accel.device.batches.batch import Batch, BatchResult
from atomr_accel.device.batches.record import Recording
from atomr_accel.libraries.nvrtc.kernel import Kernel
from atomr_accel.ops import Awaited
from atomr_accel.testing import kill_host, poison

from ..harness import ON_CUDA, Gate, settled

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

ADD: Final = """
    extern "C" __global__ void add(float* x, float value) { x[threadIdx.x] += value; }
"""


def add(x: Any, value: Any) -> None:
    x += value


async def adder(device: Device) -> Kernel[Awaited]:
    return await device.nvrtc.compile(ADD, "add", cpu=add)


async def held(
    device: Device, gate: Gate
) -> tuple[Callable[..., Awaitable[None]], GpuRef, Recording]:
    """Return a kernel that occupies a buffer, the buffer, and a recording that adds 1 to it."""
    hold, kernel = await gate.kernel(device), await adder(device)
    x = await device.zeros(4, np.float32)
    gate.open()
    await hold(x)
    async with device.record() as recorded:
        recorded.launch(kernel, 1, 4, x, 1.0)
    await recorded.replay()
    return hold, x, recorded


Array = np.ndarray[Any, Any]
Contents = list[Array] | None
"""The possible contents of a buffer; None if they are undefined."""

Op = tuple[str, int]

SIDE: Final = 8
SLOTS: Final = 5
EXACT: Final = 2**24
MOST_CONTENTS: Final = 8
TOO_MANY: Final = {"shared": 200 << 10, "cooperative": True}
"""By which a launch of many blocks fails that the program cannot refuse: a device holds one block
of them on each multiprocessor, and cooperative ones have to be there together."""
LONGEST: Final = 300
"""Microseconds that a slow kernel takes at most."""

KINDS: Final = (
    "mix",
    "slow",
    "slow",
    "part",
    "gemm",
    "gemm new",
    "get",
    "get",
    "put",
    "put sealed",
    "put out",
    "copy",
    "fill",
    "full",
    "seal",
    "free",
    "drop",
    "fail",
    "batch",
    "batch that waits",
    "replay",
)
FAULTS: Final = ("poison", "kill host")

SOURCE: Final = """
    extern "C" __global__ void mix(
        const float* a, const float* b, float* out, int n, int microseconds, int early, int fail)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float x = 0, y = 0, z = 0;
        if (early && i < n) { x = a[i]; y = b[i]; z = out[i]; }
        long long begin, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin) :: "memory");
        do {
            __nanosleep(1000);
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
        } while (now - begin < microseconds * 1000LL);
        if (!early && i < n) { x = a[i]; y = b[i]; z = out[i]; }
        if (i < n) {
            out[i] = fmodf(
                3 * fmodf(x, 251) + 5 * fmodf(y, 251) + 7 * fmodf(z, 251) + 1, 251);
        }
    }
"""
"""Reads, waits and writes, or waits, reads and writes: either way, an early op shows."""


def mixed(a: Array, b: Array, out: Array) -> Array:
    """Return the value that the kernel leaves in ``out``."""
    x, y, z = (np.fmod(array, np.float32(251)) for array in (a, b, out))
    result: Array = np.fmod(3 * x + 5 * y + 7 * z + 1, np.float32(251))
    return result


def mix(a: Any, b: Any, out: Any, n: Any, microseconds: Any, early: Any, fail: Any) -> None:
    if fail:
        raise LookupError("this launch was to fail")
    if early:
        a, b, now = a.copy(), b.copy(), out.copy()
    if microseconds:
        time.sleep(microseconds * 1e-6)
    out[...] = mixed(a, b, now if early else out)


Step: TypeAlias = "Callable[[Batch, list[GpuRef], list[BatchResult[Array]]], None]"
"""An op of a batch, given the refs that the batch has made and the arrays that it has got."""

REFUSED: Final[type[Exception]] = LibraryError if ON_CUDA else LookupError
"""Raised by a launch that was made to fail."""


def launched(*, fail: bool) -> tuple[int, dict[str, Any]]:
    """The grid and the options of a launch, which may be one that fails on a device."""
    return (1000, TOO_MANY) if fail and ON_CUDA else (1, {})


@final
class Request:
    """One call of the program, in a task of its own.

    Attributes:
        name: the called function.
        expected: the error that it must raise, or None if it must succeed.
        may_raise: other errors that it may raise because of events while it was in flight.
        answers: how often it came to an end.
    """

    def __init__(
        self, name: str, call: Callable[[], Awaitable[Any]], expected: type[Exception] | None
    ) -> None:
        self.name = name
        self.call = call
        self.expected = expected
        self.may_raise: tuple[type[Exception], ...] = ()
        self.answers = 0
        self.finished = False
        self.error: Exception | None = None
        self.result: Any = None
        self.check: Callable[[Any], None] = lambda result: None
        self.scope = trio.CancelScope()
        self.done = trio.Event()

    async def run(self) -> None:
        with self.scope:
            try:
                self.result = await self.call()
                self.finished = True
            except Exception as error:  # noqa: BLE001 (verified at the end)
                self.error = error
        self.answers += 1
        self.done.set()

    def verify(self) -> None:
        assert self.answers == 1, f"{self.name} was answered {self.answers} times"
        if self.finished:
            assert self.expected is None, f"{self.name} should raise {self.expected}"
            self.check(self.result)
        elif self.error is None:
            assert self.scope.cancel_called, f"{self.name} was cancelled by nobody"
        elif type(self.error) is not self.expected and not isinstance(self.error, self.may_raise):
            raise AssertionError(f"{self.name} should not raise this") from self.error


@dataclass
class Slot:
    """A variable of the program: a ref, or the request that will return one."""

    ref: GpuRef | None = None
    pending: Request | None = None
    contents: Contents = None


@dataclass
class Run:
    """Runs one program."""

    device: Device
    kernel: Kernel[Awaited]
    slots: list[Slot] = field(default_factory=lambda: [Slot() for _ in range(SLOTS)])
    requests: list[Request] = field(default_factory=list)
    cancel_at: dict[int, list[Request]] = field(default_factory=dict)
    sealing: dict[GpuRef, list[Request]] = field(default_factory=dict)
    step: int = 0
    recorded: Recording | None = None

    async def run(self, ops: list[Op]) -> None:
        """Run the program, and raise AssertionError where the model disagrees."""
        await self._warm()
        async with trio.open_nursery() as self.nursery:
            for kind, seed in ops:
                for request in self.cancel_at.pop(self.step, ()):
                    request.scope.cancel()
                await self._do(kind, random.Random(seed))
                self.step += 1
            for requests in self.cancel_at.values():
                for request in requests:
                    request.scope.cancel()
            await self._all_done()
        for request in self.requests:
            request.verify()
        for slot in self.slots:
            ref = await self._ref_of(slot)
            if ref is not None and not ref.is_stale:
                same_as_one(slot.contents, await self.device.get(ref), "a buffer at the end")
        await settled(self.device)
        for lane in self.device.statistics().lanes:
            assert (lane.in_flight, lane.queued) == (0, 0)
            assert lane.submitted == lane.completed + lane.failed

    async def _warm(self) -> None:
        """Have lanes, slabs and the kernel ready: submitting takes no wait from here on."""
        device = self.device
        a = await device.put(np.zeros((SIDE, SIDE), np.float32))
        await device.put(np.zeros((SIDE, SIDE), np.float32), sealed=True)
        await device.blas.gemm(a, a)
        await self.kernel.launch(1, SIDE * SIDE, a, a, a, SIDE * SIDE, 0, 0, 0)
        if self.recorded is None:
            self.recorded = await self._record()
        await self.recorded.replay(*[await device.zeros((SIDE, SIDE), np.float32) for _ in "abc"])

    async def _record(self) -> Recording:
        """A program that calls another, and has a section on which a flag decides."""
        device, count = self.device, SIDE * SIDE
        a, b, out = [await device.zeros((SIDE, SIDE), np.float32) for _ in range(3)]
        flag = await device.put(np.True_, sealed=True)
        async with device.record(a, b, out) as inner:
            inner.launch(self.kernel, 1, count, a, b, out, count, 50, 1, 0)
        async with device.record(a, b, out) as outer:
            outer.call(inner, a, b, out)
            with outer.when(flag):
                outer.launch(self.kernel, 1, count, b, a, out, count, 50, 0, 0)
        return outer

    # --- submitting -----------------------------------------------------------------------

    async def _start(
        self,
        name: str,
        call: Callable[[], Awaitable[Any]],
        expected: type[Exception] | None = None,
        cancel: int | None = None,
    ) -> Request:
        """Start a call, and come back once it waits for its answer.

        Args:
            name: what to call it.
            call: the call.
            expected: the error it must raise.
            cancel: after how many further ops to cancel it: -1 before it starts.
        """
        request = Request(name, call, expected)
        self.requests.append(request)
        if cancel == -1:
            request.scope.cancel()
        elif cancel:
            self.cancel_at.setdefault(self.step + cancel, []).append(request)
        self.nursery.start_soon(request.run)
        await trio.testing.wait_all_tasks_blocked()
        if cancel == 0:
            request.scope.cancel()
        return request

    async def _all_done(self) -> None:
        for request in self.requests:
            await request.done.wait()

    async def _ref_of(self, slot: Slot) -> GpuRef | None:
        if slot.pending is not None:
            await slot.pending.done.wait()
            result = slot.pending.result
            slot.ref = result if slot.pending.finished else None
            slot.pending = None
        return slot.ref

    async def _filled(self, slot: Slot, rng: random.Random) -> GpuRef:
        """The slot's ref; if it has none, or now and then if it is freed, a new one."""
        ref = await self._ref_of(slot)
        if ref is None or (ref.is_stale and rng.random() < 0.7):
            array = some_array(rng)
            ref = slot.ref = await self.device.put(array)
            slot.contents = [array]
        return ref

    # --- ops ------------------------------------------------------------------------------

    async def _do(self, kind: str, rng: random.Random) -> None:
        cancel = rng.choice([-1, 0, 1, 3]) if rng.random() < 0.15 else None
        if kind in FAULTS:
            await self._fault(kind)
        elif kind in ("mix", "slow", "fail"):
            await self._mix(kind, rng, cancel)
        elif kind == "part":
            await self._part(rng, cancel)
        elif kind == "replay":
            await self._replay(rng, cancel)
        elif kind in ("put out", "copy", "fill"):
            await self._write(kind, rng, cancel)
        elif kind in ("gemm", "gemm new"):
            await self._gemm(kind, rng, cancel)
        elif kind in ("put", "put sealed", "full"):
            await self._make(kind, rng, cancel)
        elif kind in ("seal", "free", "drop"):
            await self._end(kind, rng, cancel)
        elif kind == "get":
            await self._get(rng, cancel)
        else:
            await self._batch(rng, cancel, waits=kind == "batch that waits")

    async def _mix(self, kind: str, rng: random.Random, cancel: int | None) -> None:
        slots = [rng.choice(self.slots) for _ in range(3)]
        a, b, out = [await self._filled(slot, rng) for slot in slots]
        wait = rng.randrange(LONGEST) if kind == "slow" else 0
        expected = refusal([a, b], out) or (REFUSED if kind == "fail" else None)
        call = self._launch(a, b, out, wait, early=rng.random() < 0.5, fail=kind == "fail")
        await self._start(kind, call, expected, cancel)
        if expected is None:
            after = combine(mixed, *(slot.contents for slot in slots))
            slots[2].contents = either(after, slots[2].contents, both=cancel is not None)

    async def _replay(self, rng: random.Random, cancel: int | None) -> None:
        """The program on other buffers, perhaps on one of them in several places."""
        slots = [rng.choice(self.slots) for _ in range(3)]
        a, b, out = [await self._filled(slot, rng) for slot in slots]
        assert self.recorded is not None
        expected = refusal([a, b], out)
        if expected is None and self.kernel.parameters is None and (a.sealed or b.sealed):
            expected = GpuRefSealed  # it was recorded as writing all of its buffers
        await self._start("replay", partial(self.recorded.replay, a, b, out), expected, cancel)
        if expected is None:

            def after(x: Array, y: Array, z: Array) -> Array:
                first = mixed(x, y, z)
                return mixed(first if b is out else y, first if a is out else x, first)

            contents = combine(after, *(slot.contents for slot in slots))
            slots[2].contents = either(contents, slots[2].contents, both=cancel is not None)

    async def _part(self, rng: random.Random, cancel: int | None) -> None:
        """The kernel on some rows of each buffer: views that may overlap."""
        slots = [rng.choice(self.slots) for _ in range(3)]
        a, b, out = [await self._filled(slot, rng) for slot in slots]
        count = rng.randrange(1, SIDE)
        i, j, k = (slice(at, at + count) for at in rng.choices(range(SIDE - count), k=3))
        if a is out:
            i = k  # or what one thread reads another might have written
        if b is out:
            j = k
        expected = refusal([a, b], out)

        async def call() -> None:
            wait = rng.randrange(LONGEST)
            self._refuse_sealed(a, b, out)
            await self.kernel.launch(1, 64, a[i], b[j], out[k], count * SIDE, wait, 1, 0)

        await self._start("part", call, expected, cancel)
        if expected is None:

            def after(x: Array, y: Array, z: Array) -> Array:
                whole = z.copy()
                whole[k] = mixed(x[i], y[j], z[k])
                return whole

            contents = combine(after, *(slot.contents for slot in slots))
            slots[2].contents = either(contents, slots[2].contents, both=cancel is not None)

    async def _write(self, kind: str, rng: random.Random, cancel: int | None) -> None:
        """From the program or another buffer into a buffer that exists."""
        slot, source = rng.choice(self.slots), rng.choice(self.slots)
        out = await self._filled(slot, rng)
        device, array = self.device, some_array(rng)
        after: Contents = [array]
        expected = refusal([], out)
        call: Callable[[], Awaitable[Any]]
        if kind == "put out":
            call = partial(device.put, array, out=out)
        elif kind == "fill":
            array[...] = array[0, 0]
            call = partial(device.fill, out, array[0, 0])
        else:
            ref = await self._filled(source, rng)
            if source is slot or out.is_stale:
                return
            expected, after = refusal([ref], out), source.contents
            call = partial(device.copy, ref, out)
        await self._start(kind, call, expected, cancel)
        if expected is None:
            slot.contents = either(after, slot.contents, both=cancel is not None)

    def _launch(
        self, a: GpuRef, b: GpuRef, out: GpuRef, wait: int, *, early: bool, fail: bool
    ) -> Callable[[], Awaitable[None]]:
        arguments = (a, b, out, SIDE * SIDE, wait, int(early), int(fail))
        blocks, options = launched(fail=fail)

        async def call() -> None:
            self._refuse_sealed(a, b, out)
            await self.kernel.launch(blocks, SIDE * SIDE, *arguments, **options)

        return call

    def _refuse_sealed(self, a: GpuRef, b: GpuRef, out: GpuRef) -> None:
        """Refuse as a kernel does, if no compiler has reported its outputs."""
        if self.kernel.parameters is None and refusal([a, b], out) is GpuRefSealed:
            raise GpuRefSealed("out is sealed")

    async def _gemm(self, kind: str, rng: random.Random, cancel: int | None) -> None:
        slots = [rng.choice(self.slots) for _ in range(3)]
        beta = float(rng.random() < 0.3)
        a, b = [await self._filled(slot, rng) for slot in slots[:2]]
        blas = self.device.blas
        if not fits(*(slot.contents for slot in slots[:2])):
            await self._mix("mix", rng, cancel)
        elif kind == "gemm new":
            expected = refusal([a, b])
            product = combine(np.matmul, slots[0].contents, slots[1].contents)
            request = await self._start(kind, lambda: blas.gemm(a, b), expected, cancel)
            if expected is None:
                await self._replace(slots[2], request, product)
        else:
            out = await self._filled(slots[2], rng)
            if not fits(*(slot.contents for slot in slots)):
                beta = 0.0
            expected = refusal([a, b], out, apart=True)
            request = await self._start(
                kind, lambda: blas.gemm(a, b, out=out, beta=beta), expected, cancel
            )
            if expected is None:
                whole = combine(
                    lambda a, b, c: a @ b + np.float32(beta) * c if beta else a @ b,
                    *(slot.contents for slot in slots[: 3 if beta else 2]),
                    *([[np.zeros(1)]] if not beta else []),
                )
                slots[2].contents = either(whole, slots[2].contents, both=cancel is not None)

    async def _replace(self, slot: Slot, request: Request, contents: Contents) -> None:
        await self._ref_of(slot)
        slot.ref, slot.pending, slot.contents = None, request, contents

    async def _make(self, kind: str, rng: random.Random, cancel: int | None) -> None:
        slot, array = rng.choice(self.slots), some_array(rng)
        device = self.device
        if kind == "full":
            array[...] = array[0, 0]

            async def make() -> GpuRef:
                return await device.full(array.shape, array[0, 0], np.float32)
        else:

            async def make() -> GpuRef:
                return await device.put(array, sealed=kind == "put sealed")

        await self._replace(slot, await self._start(kind, make, None, cancel), [array])

    async def _end(self, kind: str, rng: random.Random, cancel: int | None) -> None:
        slot = rng.choice(self.slots)
        ref = await self._filled(slot, rng)
        if kind == "drop":
            slot.ref = None
            return
        if kind == "free":
            for sealing in self.sealing.pop(ref, ()):
                sealing.may_raise = (GpuRefStale,)
        call = self.device.seal if kind == "seal" else self.device.free
        # Whether one that is cancelled took place is looked up, so it must be over.
        request = await self._start(kind, lambda: call(ref), refusal([ref]), cancel and -1)
        if kind == "seal":
            self.sealing.setdefault(ref, []).append(request)
        if cancel is not None:
            request.scope.cancel()
            await request.done.wait()

    async def _get(self, rng: random.Random, cancel: int | None) -> None:
        slot = rng.choice(self.slots)
        ref = await self._filled(slot, rng)
        request = await self._start("get", lambda: self.device.get(ref), refusal([ref]), cancel)
        contents = slot.contents
        request.check = lambda found: same_as_one(contents, found, "what get returned")

    async def _batch(self, rng: random.Random, cancel: int | None, *, waits: bool) -> None:
        """A few ops of one batch; its puts and gets are awaited, since its end sends them."""
        steps: list[Step] = []
        results: list[Contents] = []
        local: list[Contents] = []
        expected: type[Exception] | None = None
        for _ in range(rng.randrange(1, 7)):
            slots = [rng.choice(self.slots) for _ in range(3)]
            a, b, out = [await self._filled(slot, rng) for slot in slots]
            kind = rng.choice(["mix", "slow", "gemm new", "use", "fail", "put", "get"])
            if kind == "fail" and (expected is not None or rng.random() < 0.6):
                kind = "mix"
            if kind in ("put", "get") and not waits:
                kind = "use"
            if kind == "put":
                array = some_array(rng)
                local.append([array])
                steps.append(partial(_put, array))
            elif kind == "get":
                if refusal([a]) is None:
                    results.append(slots[0].contents)
                    steps.append(partial(_get, a))
            elif kind == "gemm new":
                if refusal([a, b]) is None and fits(slots[0].contents, slots[1].contents):
                    local.append(combine(np.matmul, slots[0].contents, slots[1].contents))
                    steps.append(partial(_multiply, a, b))
            elif refusal([a, b], out) is None:
                wait = rng.randrange(LONGEST) if kind == "slow" else 0
                flags = (int(rng.random() < 0.5), int(kind == "fail"))
                which = rng.randrange(len(local)) if local and kind == "use" else None
                steps.append(self._launch_in_batch(a, b, out, wait, flags, which))
                if kind == "fail":
                    expected = REFUSED
                else:
                    first = slots[0].contents if which is None else local[which]
                    after = combine(mixed, first, slots[1].contents, slots[2].contents)
                    slots[2].contents = either(after, slots[2].contents, both=cancel is not None)
        device = self.device

        async def call() -> list[Array]:
            made: list[GpuRef] = []
            found: list[BatchResult[Array]] = []
            try:
                async with device.batch() as batch:
                    for step in steps:
                        step(batch, made, found)
            except Exception:
                assert all(ref.is_stale for ref in made)
                raise
            return [later.value for later in found]

        def check(found: list[Array]) -> None:
            for contents, array in zip(results, found, strict=True):
                same_as_one(contents, array, "what batch.get returned")

        request = await self._start("batch", call, expected, cancel)
        request.check = check
        if waits:
            await request.done.wait()

    def _launch_in_batch(
        self,
        a: GpuRef,
        b: GpuRef,
        out: GpuRef,
        wait: int,
        flags: tuple[int, int],
        which: int | None,
    ) -> Step:
        blocks, options = launched(fail=bool(flags[1]))

        def step(batch: Batch, made: list[GpuRef], _found: list[BatchResult[Array]]) -> None:
            first = a if which is None else made[which]
            arguments = (first, b, out, SIDE * SIDE, wait, *flags)
            batch.launch(self.kernel, blocks, SIDE * SIDE, *arguments, **options)

        return step

    async def _fault(self, kind: str) -> None:
        """A fault while ops are in flight: plain buffers are gone, sealed ones are not."""
        for request in self.requests:
            if not request.done.is_set():
                request.may_raise = (ContextPoisoned, GpuRefStale)
        generation = self.device.generation
        await (poison(self.device) if kind == "poison" else kill_host(self.device))
        assert self.device.generation == generation + 1
        await self._all_done()
        for slot in self.slots:
            ref = await self._ref_of(slot)
            if ref is not None:
                assert ref.is_stale or ref.sealed
        await self._warm()


def _put(array: Array, batch: Batch, made: list[GpuRef], _found: list[BatchResult[Array]]) -> None:
    made.append(batch.put(array))


def _get(ref: GpuRef, batch: Batch, _made: list[GpuRef], found: list[BatchResult[Array]]) -> None:
    found.append(batch.get(ref))


def _multiply(
    a: GpuRef, b: GpuRef, batch: Batch, made: list[GpuRef], _found: list[BatchResult[Array]]
) -> None:
    made.append(batch.blas.gemm(a, b))


# --- the model -----------------------------------------------------------------------------


def some_array(rng: random.Random) -> Array:
    """Small whole numbers."""
    return np.random.default_rng(rng.randrange(2**32)).integers(-9, 10, (SIDE, SIDE)).astype("f4")


def refusal(
    inputs: list[GpuRef], out: GpuRef | None = None, *, apart: bool = False
) -> type[Exception] | None:
    """Return the error of an op on these buffers in their present state."""
    if any(ref.is_stale for ref in (*inputs, *([out] if out is not None else []))):
        return GpuRefStale
    if out is not None and out.sealed:
        return GpuRefSealed
    if apart and any(ref is out for ref in inputs):
        return ValueError
    return None


def fits(*contents: Contents) -> bool:
    """Return whether the product of two, plus the third, is exact."""
    peaks = [
        max((float(np.abs(array).max()) for array in c), default=0) for c in map(known, contents)
    ]
    return SIDE * peaks[0] * peaks[1] + sum(peaks[2:]) < EXACT


def known(contents: Contents) -> list[Array]:
    return [] if contents is None else contents


def combine(function: Callable[..., Array], *inputs: Contents) -> Contents:
    """Return the possible results of a function of buffers."""
    choices: list[tuple[Array, ...]] = [()]
    for contents in inputs:
        if contents is None:
            return None
        choices = [(*chosen, array) for chosen in choices for array in contents]
        if len(choices) > MOST_CONTENTS:
            return None
    return [function(*chosen) for chosen in choices]


def either(after: Contents, before: Contents, *, both: bool) -> Contents:
    """Return the possible contents after an op that, if ``both``, may not have taken place."""
    if not both:
        return after
    if after is None or before is None or len(after) + len(before) > MOST_CONTENTS:
        return None
    return [*before, *after]


def same_as_one(contents: Contents, found: Array, what: str) -> None:
    if contents is None:
        return
    assert any(np.array_equal(found, array) for array in contents), (
        f"{what} is none of the {len(contents)} possible:\n{found}\n{contents[0]}"
    )
