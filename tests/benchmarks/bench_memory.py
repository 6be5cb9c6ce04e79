"""Memory: transfers, allocation, and the time that sealed memory saves after a fault.

The rivals are measured in the same run: pinned ``cuMemcpyAsync`` by hand, CuPy, PyTorch, and
``trio.to_thread.run_sync`` around them. Missing rivals are left out by name; without a GPU there
are only our own numbers, of the CPU backend. ``bench_memory.py tune`` tries numbers of copying
threads and sizes of chunks instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio
from measuring import AT_ONCE, median_of
from side_by_side import open_first

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.backends import cuda
from atomr_accel.device import core as _core
from atomr_accel.device.data import _bulk, _copiers
from atomr_accel.memory import Block, MemoryMap, Slab
from atomr_accel.testing import poison

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from atomr_accel import Device

ON_CUDA: Final = cuda.why_absent() is None
LARGE: Final = 1 << 30 if ON_CUDA else 1 << 27
SMALL: Final = 4096
REPEATS: Final = 2000
CHURN: Final = 1_000_000
SEALED_GIB: Final = 100
UPLOADED_GIB: Final = 10

Row = tuple[str, str, str, str]


# --- measuring -----------------------------------------------------------------------------


async def soonest(call: Callable[[], Awaitable[object]], attempts: int = 5) -> float:
    """Seconds of the fastest of some awaited calls, the first to warm up."""
    await call()
    best = float("inf")
    for _ in range(attempts):
        start = time.perf_counter()
        result = await call()
        best = min(best, time.perf_counter() - start)
        del result
    return best


async def usual(call: Callable[[], Awaitable[object]], repeats: int = REPEATS) -> float:
    """Median seconds of an awaited call."""
    return await median_of(call, repeats, before=repeats // 5)


def sync(call: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    """A function that waits for the device by itself, to be measured like the others."""

    async def wait() -> object:
        return call()

    return wait


def in_thread(call: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    """Return the call in a worker thread, as a trio user writes it without this package."""
    return lambda: trio.to_thread.run_sync(call)


def speeds(name: str, ours: float, theirs: list[tuple[str, float]], goal: str) -> Iterator[Row]:
    """Lines for transfers of ``LARGE`` bytes; the goal holds against the fastest rival."""
    text = f"{LARGE / ours / 1e9:.1f} GB/s"
    if not theirs:
        yield name, text, "", ""
    fastest = min((seconds for _, seconds in theirs), default=0.0)
    for rival, seconds in theirs:
        note = f" ({goal})" if goal and seconds == fastest else ""
        speed = f"{rival} {LARGE / seconds / 1e9:.1f} GB/s"
        yield name, text, speed, f"{seconds / ours:.2f}{note}"


def latencies(name: str, ours: float, theirs: list[tuple[str, float]], goal: str) -> Iterator[Row]:
    """Lines for latencies."""
    text = f"{ours * 1e6:.1f} us"
    if not theirs:
        yield name, text, "", ""
    for rival, seconds in theirs:
        note = f" ({goal})" if goal else ""
        yield name, text, f"{rival} {seconds * 1e6:.1f} us", f"{ours / seconds:.2f}{note}"


# --- the rivals ----------------------------------------------------------------------------


class Rival:
    """CuPy or PyTorch in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module: Any = importlib.import_module(name)

    def finish(self) -> None:
        """Wait for everything."""
        if self.name == "torch":
            self.module.cuda.synchronize()
        else:
            self.module.cuda.get_current_stream().synchronize()

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        """To the device."""
        on_device = (
            self.module.from_numpy(host).cuda()
            if self.name == "torch"
            else self.module.asarray(host)
        )
        self.finish()
        return on_device

    def get(self, on_device: Any) -> Any:
        """Back to a new array."""
        return on_device.cpu() if self.name == "torch" else self.module.asnumpy(on_device)

    def empty(self) -> Any:
        """A small buffer from its pool."""
        if self.name == "torch":
            return self.module.empty(SMALL, dtype=self.module.uint8, device="cuda")
        return self.module.empty(SMALL, np.uint8)


def rivals() -> list[Rival]:
    """Return the installed rivals."""
    found = []
    for name in ("cupy", "torch"):
        if not ON_CUDA or importlib.util.find_spec(name) is None:
            print(f"left out: {name}, which is not here")
        else:
            found.append(Rival(name))
    return found


class ByHand:
    """Page-locked memory of this process and ``cuMemcpyAsync``, with nothing around it."""

    def __init__(self, nbytes: int) -> None:
        from atomr_accel.backends.cuda.host.driver import check, driver

        self._check, self._driver, self._nbytes = check, driver, nbytes
        check("cuInit", driver.cuInit(0))
        gpu = check("cuDeviceGet", driver.cuDeviceGet(0))
        context = check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(gpu))
        check("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))
        self._host = check("cuMemHostAlloc", driver.cuMemHostAlloc(nbytes, 0))
        self._device = check("cuMemAlloc", driver.cuMemAlloc(nbytes))
        self._stream = check("cuStreamCreate", driver.cuStreamCreate(1))

    def put(self) -> None:
        """To the device, waited for."""
        copy = self._driver.cuMemcpyHtoDAsync
        self._check("cuMemcpyHtoDAsync", copy(self._device, self._host, self._nbytes, self._stream))
        self._check("cuStreamSynchronize", self._driver.cuStreamSynchronize(self._stream))

    def get(self) -> None:
        """And back."""
        copy = self._driver.cuMemcpyDtoHAsync
        self._check("cuMemcpyDtoHAsync", copy(self._host, self._device, self._nbytes, self._stream))
        self._check("cuStreamSynchronize", self._driver.cuStreamSynchronize(self._stream))

    def close(self) -> None:
        """Give the memory back."""
        self._check("cuMemFree", self._driver.cuMemFree(self._device))
        self._check("cuMemFreeHost", self._driver.cuMemFreeHost(self._host))


# --- measurements ------------------------------------------------------------------------


async def pinned(device: Device, others: list[Rival]) -> list[Row]:
    """A large page-locked array both ways."""
    del others
    rows: list[Row] = []
    ref = await device.empty(LARGE, np.uint8)
    async with device.pinned.array((LARGE,), np.uint8) as array:
        array[:] = 1
        put = await soonest(lambda: device.put(array, out=ref))
        get = await soonest(lambda: device.get(ref, out=array))
    puts, gets = [], []
    if ON_CUDA:
        hand = ByHand(LARGE)
        puts.append(("cuMemcpyAsync", await soonest(sync(hand.put))))
        gets.append(("cuMemcpyAsync", await soonest(sync(hand.get))))
        hand.close()
    rows += speeds("put, page-locked", put, puts, "goal >= 0.95")
    rows += speeds("get, page-locked", get, gets, "goal >= 0.95")
    return rows


async def ordinary(device: Device, others: list[Rival]) -> list[Row]:
    """A large array of NumPy both ways."""
    host = np.random.default_rng(0).integers(0, 256, LARGE, np.uint8)
    out = np.zeros_like(host)
    put = await soonest(lambda: device.put(host))
    ref = await device.put(host)
    get = await soonest(lambda: device.get(ref))
    again = await soonest(lambda: device.get(ref, out=out))
    assert np.array_equal(out, host)
    await device.free(ref)
    puts, gets = [], []
    for rival in others:
        puts.append((rival.name, await soonest(sync(lambda r=rival: r.put(host)))))  # type: ignore[misc]
        there = rival.put(host)
        gets.append((rival.name, await soonest(sync(lambda r=rival, x=there: r.get(x)))))  # type: ignore[misc]
        del there
    return [
        *speeds("put, ordinary", put, puts, "goal >= 3"),
        *speeds("get, ordinary, new array", get, gets, "goal >= 3"),
        *speeds("get, ordinary, out=", again, [], ""),
    ]


async def small(device: Device, others: list[Rival]) -> list[Row]:
    """4 KiB both ways, and memory for as much."""
    rows: list[Row] = []
    host = np.zeros(SMALL, np.uint8)
    ref = await device.put(host)

    async def both() -> None:
        await device.get(await device.put(host))

    ours = [
        await usual(lambda: device.put(host)),
        await usual(lambda: device.get(ref)),
        await usual(both),
        await usual(lambda: device.empty(SMALL, np.uint8), 10 * REPEATS),
    ]
    theirs: list[list[tuple[str, float]]] = [[], [], [], []]
    for rival in others[:1]:
        there = rival.put(host)
        calls: list[Callable[[], object]] = [
            lambda r=rival: r.put(host),  # type: ignore[misc]
            lambda r=rival, x=there: r.get(x),  # type: ignore[misc]
            lambda r=rival: r.get(r.put(host)),  # type: ignore[misc]
        ]
        for at, call in enumerate(calls):
            theirs[at].append((f"{rival.name} in a thread", await usual(in_thread(call))))
    for rival in others:
        took = await usual(sync(rival.empty), 10 * REPEATS)
        theirs[3].append((f"{rival.name}'s pool", took))
    rows += latencies("put 4 KiB (returns once sent)", ours[0], theirs[0], "goal <= 0.6")
    rows += latencies("get 4 KiB", ours[1], theirs[1], "goal <= 0.6")
    rows += latencies("put and get 4 KiB", ours[2], theirs[2], "")
    rows += latencies("empty 4 KiB", ours[3], theirs[3], "")
    return rows


async def sealed(device: Device, others: list[Rival]) -> list[Row]:
    """Measure mapping sealed memory again after a fault, and the upload that it replaces."""
    del others
    gib = 1 << 30 if ON_CUDA else 1 << 22
    room = device.info.total_memory // (1 << 30) - 16
    count = max(1, min(SEALED_GIB, room)) if ON_CUDA else SEALED_GIB
    tile = np.ones(gib, np.uint8)
    again = min(UPLOADED_GIB, count)
    start = time.perf_counter()
    for _ in range(again):
        await device.free(await device.put(tile))
    upload = (time.perf_counter() - start) * count / again
    kept = [await device.put(tile, sealed=True) for _ in range(count)]
    await poison(device)
    assert (await device.get(kept[-1][-1000:]) == 1).all()
    startup = device.statistics().startup
    assert startup is not None
    assert startup.remapped_bytes >= count * gib
    size = f"{count} GiB" if ON_CUDA else f"{count} x 4 MiB"
    return [
        (
            f"sealed {size}, mapped again",
            f"{startup.remap * 1e3:.1f} ms",
            f"uploading it {upload * 1e3:,.0f} ms, of {again} measured",
            f"{startup.remap / upload:.4f} (goal < 200 ms)",
        )
    ]


def churn() -> list[Row]:
    """A million allocations and frees of 256 bytes to 16 MiB, up to 2,000 alive at a time."""
    memory = MemoryMap("nowhere")
    memory.bump()
    rng = random.Random(0)
    sizes = [int(2 ** rng.uniform(8, 24)) for _ in range(4096)]
    live: list[Block] = []
    took, unused = [], []
    in_use = most = 0
    for step in range(CHURN):
        nbytes = sizes[rng.randrange(4096)]
        start = time.perf_counter()
        block = memory.allocate(nbytes)
        while block is None:
            size = memory.growth(nbytes)
            memory.add_slab(Slab(memory.new_slab_id(), size, -1, sealed=False))
            block = memory.allocate(nbytes)
        took.append(time.perf_counter() - start)
        live.append(block)
        in_use += block.size
        most = max(most, in_use)
        if len(live) > 2000:
            at = rng.randrange(2000)
            live[at], live[-1] = live[-1], live[at]
            in_use -= live[-1].size
            start = time.perf_counter()
            del block
            live.pop()  # the last handle is gone, which is how most memory is freed
            took[-1] += time.perf_counter() - start
        if step % 10_000 == 9_999 and step > CHURN // 10:
            found = memory.statistics()
            unused.append(found.fragmentation * found.free / found.capacity)
    found = memory.statistics()
    took.sort()
    worst = max(unused)
    middle = took[len(took) // 2] * 1e6
    tail = took[len(took) * 999 // 1000] * 1e6
    return [
        (
            "churn, allocate and free, median",
            f"{middle:.2f} us",
            f"0.1 % over {tail:.0f} us",
            "(goal < 5 us)",
        ),
        (
            "churn, memory lost to fragments",
            f"{worst:.1%}",
            f"{found.capacity >> 20} MiB of slabs, {most >> 20} in use at most",
            "(goal < 10 %)",
        ),
    ]


# --- tuning --------------------------------------------------------------------------------


async def tune() -> None:
    """Transfers of ordinary arrays with other numbers of threads and sizes of chunks."""
    host = np.random.default_rng(0).integers(0, 256, LARGE, np.uint8)
    out = np.zeros_like(host)
    print(f"{os.cpu_count()} cores, {LARGE >> 20} MiB: threads, chunk, put, get GB/s")
    _core.STAGING_BYTES = 1 << 28  # type: ignore[attr-defined]
    for copiers in (4, 6, 8, 10, 12, 16):
        _bulk.COPIERS = _copiers.COPIERS = copiers  # type: ignore[misc, attr-defined]
        async with open_device(0, standby=None) as device:
            await tune_chunks(device, host, out, copiers)


async def tune_chunks(
    device: Device, host: np.ndarray[Any, Any], out: np.ndarray[Any, Any], copiers: int
) -> None:
    """Try chunk sizes for one number of threads."""
    ref = await device.put(host)
    for chunk in (1, 2, 4, 8):
        _bulk.CHUNK = chunk << 20  # type: ignore[attr-defined]
        put = await soonest(lambda: device.put(host, out=ref), 4)
        get = await soonest(lambda: device.get(ref, out=out), 4)
        print(
            f"{copiers:4} {chunk:3} MiB {LARGE / put / 1e9:6.1f} {LARGE / get / 1e9:6.1f}",
            flush=True,
        )


async def run() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore", CpuFallbackWarning)
    show(churn())
    others = rivals()
    async with open_first(backoff=AT_ONCE, pinned_limit=2 * LARGE) as device:
        for measure in (pinned, ordinary, small, sealed):
            show(await measure(device, others))


def show(rows: list[Row]) -> None:
    """Print lines of the table."""
    for name, ours, them, ratio in rows:
        print(f"{name:34} {ours:>12}   {them:40} {ratio}", flush=True)


if __name__ == "__main__":
    trio.run(tune if sys.argv[1:] == ["tune"] else run)
