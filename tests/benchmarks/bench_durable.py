"""Durable memory: the tokens of a paged cache that survive a fault, and what digests cost.

``python tests/benchmarks/bench_durable.py --backend cuda --gib 20`` fills a durable cache of that
size with 256 sequences. A kernel scribbles over 100 of its pages, then the device faults. It prints
the share of tokens that were kept, and the milliseconds from the fault's detection until the tokens
are verified, and until attention that the program has used before computes with them. A standby is
ready at the fault. Then it compares steps with durable buffers and with plain ones: recorded decode
steps of 256 sequences, and steps of gemms. Each figure is printed at once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio
from measuring import AT_ONCE

from atomr_accel import Standby, open_device
from atomr_accel.testing import poison, standby_ready

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.durable.scribbling import Scribbler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import Device

SEQUENCES: Final = 256
SCRIBBLED: Final = 100
HEADS, SIZE, PAGE = 8, 128, 64
ROWS: Final = (SEQUENCES, 2 * PAGE, HEADS, SIZE)
"""Shape of the rows of the largest append; values are between 0 and 1."""


def show(name: str, figure: str) -> None:
    """Print a figure."""
    print(f"{name:58} {figure}", flush=True)


async def filled(device: Device, pages: int, *, durable: bool) -> tuple[Any, list[int]]:
    """Return a cache whose sequences together have all its pages but one each."""
    cache = await device.dnn.kv_cache(pages, PAGE, HEADS, SIZE, dtype="float16", durable=durable)
    sequences = [cache.new() for _ in range(SEQUENCES)]
    rest = (pages // SEQUENCES - 1) * PAGE
    bits = np.random.default_rng(0).integers(0, 0x3C00, ROWS, np.uint16)
    while rest:
        new = min(rest, ROWS[1])
        rest -= new
        rows = await device.put(bits[:, :new].view(np.float16))
        await cache.append(sequences, rows, rows)
    return cache, sequences


async def survival(device: Device, gib: float) -> None:
    """Fault with scribbled pages, and recover."""
    token = 2 * HEADS * SIZE * 2
    pages = max(2, int(gib * 2**30) // (PAGE * token) // SEQUENCES) * SEQUENCES
    begun = time.perf_counter()
    cache, sequences = await filled(device, pages, durable=True)
    tokens = cache.statistics().tokens
    seconds = time.perf_counter() - begun
    nbytes = cache.statistics().nbytes
    show("cache filled and proven", f"{nbytes / 2**30:.2f} GiB, {tokens} tokens, {seconds:.1f} s")
    await fault_and_recover(device, cache, sequences, "after a fault")

    random = np.random.default_rng(0)
    scribbler = Scribbler(device)
    before = {each: (cache.length(each), cache.pages(each)) for each in sequences}
    used = [page for _, held in before.values() for page in held]
    chosen = set(random.choice(used, min(SCRIBBLED, len(used)), replace=False).tolist())
    row = HEADS * SIZE * 2
    for page in chosen:
        start = (page * PAGE + int(random.integers(PAGE))) * row
        await scribbler(cache.k, start, random.bytes(64))
    told = await fault_and_recover(device, cache, sequences, "after scribbled pages and a fault")
    found = 0
    for each, (length, held) in before.items():
        first = min((at for at, page in enumerate(held) if page in chosen), default=None)
        if first is None:
            assert told[each].length == length, "a false alarm"
            continue
        # What comes after the first change is lost with it.
        assert first * PAGE <= told[each].length < (first + 1) * PAGE, "not found"
        found += sum(page in chosen for page in held)
    show("scribbled pages found, or behind one that was", f"{found} of {len(chosen)}")
    assert found == len(chosen)


async def fault_and_recover(
    device: Device, cache: Any, sequences: list[int], name: str
) -> dict[int, Any]:
    """Fail the device and recover; print the share that is kept, and the time it takes."""
    tokens = cache.statistics().tokens
    await attended(device, cache, sequences)
    await standby_ready(device)
    await poison(device)  # which returns once the fault is detected
    detected = time.perf_counter()
    told: dict[int, Any] = await cache.recover()
    recovered = time.perf_counter()
    await attended(device, cache, sequences)
    used = time.perf_counter()
    kept = cache.statistics().tokens
    show(f"{name}: tokens kept and verified", f"{100 * kept / tokens:.2f} %")
    show(
        f"{name}: detection until verified, in use",
        f"{1e3 * (recovered - detected):.0f} ms, {1e3 * (used - detected):.0f} ms",
    )
    return told


async def attended(device: Device, cache: Any, sequences: list[int]) -> None:
    """Compute attention to one of the sequences."""
    some = [each for each in sequences if cache.length(each)][:1]
    q = await device.put(np.ones((1, 1, HEADS, SIZE), np.float16))
    await cache.attend(q, some)


async def in_turns(
    plain: Callable[[], Awaitable[object]], durable: Callable[[], Awaitable[object]], seconds: float
) -> tuple[float, float]:
    """Return the median seconds of two steps, which take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for step in (plain, durable):
        await step()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not times[1]:
        for step, taken in zip((plain, durable), times, strict=True):
            begun = time.perf_counter()
            await step()
            taken.append(time.perf_counter() - begun)
    return statistics.median(times[0]), statistics.median(times[1])


async def decoding(device: Device, length: int) -> Callable[[bool], Any]:
    """Return what makes a recorded decode step."""

    async def made(durable: bool) -> Callable[[], Awaitable[object]]:
        columns = -(-(length + PAGE) // PAGE)
        cache, sequences = await filled(device, SEQUENCES * (columns + 1), durable=durable)
        for each in sequences:
            cache.trim(each, min(length, cache.length(each)))
        shape = (SEQUENCES, 1, HEADS, SIZE)
        q = await device.put(np.ones(shape, np.float16))
        lengths = await device.zeros((SEQUENCES,), np.int32)
        table = await device.zeros((SEQUENCES, columns + 1), np.int32)
        async with device.record(q, lengths, table) as recording:
            options: dict[str, Any] = {"cache_seqlens": lengths, "block_table": table}
            recording.dnn.flash_attention_with_kvcache(q, cache.k[0], cache.v[0], q, q, **options)

        async def step() -> None:
            if cache.length(sequences[0]) >= columns * PAGE:
                for each in sequences:
                    cache.trim(each, length)
            with cache.growing(sequences, columns=columns + 1) as rows:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(put, rows.lengths, lengths)
                    nursery.start_soon(put, rows.table, table)
                await recording.replay()

        return step

    async def put(array: np.ndarray[Any, Any], ref: Any) -> None:
        await device.put(array, out=ref)

    return made


async def training(device: Device, size: int) -> Callable[[bool], Any]:
    """Return what makes a step of gemms, of which the last writes to a buffer."""

    async def made(durable: bool) -> Callable[[], Awaitable[object]]:
        state = await device.zeros((size, size), np.float32, durable=durable)
        factor = await device.put(np.eye(size, dtype=np.float32))

        async def step() -> None:
            async with device.batch() as batch:
                made = factor
                for _ in range(8):
                    made = batch.blas.gemm(made, factor)
                batch.blas.gemm(made, factor, out=state)

        return step

    return made


async def costs(device: Device, words: argparse.Namespace) -> None:
    """Print the ratios of steps with durable buffers and with plain ones."""
    kinds = {
        f"recorded decode step, {SEQUENCES} x {words.length}": await decoding(device, words.length),
        f"step of 9 gemms of {words.size}": await training(device, words.size),
    }
    for name, make in kinds.items():
        plain, durable = await in_turns(await make(False), await make(True), words.seconds)
        show(
            f"{name}: plain, durable",
            f"{1e3 * plain:.3f} ms, {1e3 * durable:.3f} ms, {durable / plain:.3f} times",
        )


async def run(words: argparse.Namespace) -> None:
    """Measure and print."""
    begun = time.perf_counter()
    standby = Standby(hot=1)
    async with open_device(0, backend=words.backend, standby=standby, backoff=AT_ONCE) as device:
        await costs(device, words)
        await survival(device, words.gib)
    show("in all", f"{time.perf_counter() - begun:.0f} s")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--gib", type=float, help="size of the cache; by default 20, or little")
    parser.add_argument("--length", type=int, help="tokens of a sequence in decode steps")
    parser.add_argument("--size", type=int, help="size of the gemms")
    parser.add_argument("--seconds", type=float, help="how long each kind of step is measured")
    words = parser.parse_args()
    small = words.backend == "cpu"
    defaults = {
        "gib": 0.25 if small else 20.0,
        "length": 16 if small else 1024,
        "size": 256 if small else 4096,
        "seconds": 2.0 if small else 10.0,
    }
    for name, value in defaults.items():
        if getattr(words, name) is None:
            setattr(words, name, value)
    trio.run(run, words)


if __name__ == "__main__":
    main()
