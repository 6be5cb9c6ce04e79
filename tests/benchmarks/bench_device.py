"""The main job against doing it by hand: latency, throughput, recovery.

Measured in one run, side by side: this package; `trio.to_thread.run_sync` around CuPy and
a stream synchronization, written by hand; and a tight synchronous CuPy loop. Without CuPy
and a GPU only our own numbers are printed, on the CPU backend.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import trio
from measuring import AT_ONCE, median_of, seconds_in_flight
from side_by_side import cupy_of, open_first, parser_of_lines, wanted

from atomr_accel.testing import poison

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import Device

SIZE = 256
IN_FLIGHT = 64
SEALED_GIB = 8


async def median_latency(call: Callable[[], Awaitable[object]], repeats: int) -> float:
    """Median seconds of one awaited call."""
    return await median_of(call, repeats, before=repeats // 5)


async def throughput(call: Callable[[], Awaitable[object]], total: int) -> float:
    """Calls per second with IN_FLIGHT tasks calling in a loop; the best of three."""
    return 1 / min([await seconds_in_flight(call, IN_FLIGHT, total // IN_FLIGHT) for _ in range(3)])


class ByHand:
    """CuPy calls in worker threads, as a trio user writes them without this package."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.a = cupy.random.random((SIZE, SIZE), dtype=np.float32)
        self.b = cupy.random.random((SIZE, SIZE), dtype=np.float32)

    def gemm_and_wait(self) -> Any:
        """One product, waited for."""
        c = self.a @ self.b
        self.cupy.cuda.get_current_stream().synchronize()
        return c

    async def gemm(self) -> Any:
        """Run the product off the trio thread."""
        return await trio.to_thread.run_sync(self.gemm_and_wait)

    def tight_loop(self, total: int) -> float:
        """Return products per second of a loop that waits once, after all of them; the best of
        three.
        """
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            for _ in range(total):
                self.a @ self.b
            self.cupy.cuda.get_current_stream().synchronize()
            best = max(best, total / (time.perf_counter() - start))
        return best


async def recovery(device: Device) -> tuple[float, float, float]:
    """Seconds from causing a fault to the next good result, with a warm standby host and
    without, and seconds to map a sealed GiB again."""
    host = np.random.default_rng().random((SIZE, SIZE), dtype=np.float32)
    sealed = await device.put(host, sealed=True)
    expected = host.astype(np.float64) @ host
    gib = SEALED_GIB if device.backend == "cuda" else 1
    ones = np.ones(1 << 28, np.float32)
    ballast = [await device.put(ones, sealed=True) for _ in range(gib)]
    warm: list[float] = []
    cold: list[float] = []
    remaps: list[float] = []
    for attempt in range(8):
        if attempt % 2 == 0:
            await trio.sleep(3.0 if device.backend == "cuda" else 0)  # the standby warms up
        start = time.perf_counter()
        await poison(device)
        seen = time.perf_counter()
        result = await device.get(await device.blas.gemm(sealed, sealed))
        end = time.perf_counter()
        (cold if attempt % 2 else warm).append(end - start)
        np.testing.assert_allclose(result, expected, rtol=1e-3)
        startup = device.statistics().startup
        assert startup is not None
        remaps.append(startup.remap / (startup.remapped_bytes / 2**30))
        print(
            f"    fault seen after {seen - start:.3f} s, good after {end - start:.3f} s: {startup}"
        )
    del ballast
    return statistics.median(warm), statistics.median(cold), statistics.median(remaps)


Line = tuple[str, str, str, str]
"""Texts: the name, our figure, theirs, and the ratio with its goal."""


async def latencies(ours: Callable[[], Awaitable[object]], hand: ByHand | None) -> list[Line]:
    """Measure an ask."""
    latency = await median_latency(ours, 3000 if hand else 150)
    what, us = "ask latency, gemm 256", f"{latency * 1e6:.1f} us"
    if hand is None:
        return [(what, us, "", "")]
    theirs = await median_latency(hand.gemm, 1000)
    ratio = f"{latency / theirs:.2f} (goal <= 0.6)"
    return [(what, us, f"by hand {theirs * 1e6:.1f} us", ratio)]


async def rates(ours: Callable[[], Awaitable[object]], hand: ByHand | None) -> list[Line]:
    """Measure many asks at once."""
    rate = await throughput(ours, 32000 if hand else 1600)
    what, us = "64 in flight", f"{rate:,.0f} op/s"
    if hand is None:
        return [(what, us, "", "")]
    by_hand, tight = await throughput(hand.gemm, 6400), hand.tight_loop(32000)
    return [
        (what, us, f"by hand {by_hand:,.0f} op/s", f"{rate / by_hand:.1f} (goal >= 15)"),
        (what, us, f"tight CuPy loop {tight:,.0f} op/s", f"{rate / tight:.2f} (goal >= 1.0)"),
    ]


async def faults(device: Device) -> list[Line]:
    """Measure recovery."""
    warm, cold, remap = await recovery(device)
    return [
        ("fault to next good result", f"{warm * 1e3:.0f} ms", "", "(goal < 1 s)"),
        ("the same, no warm host yet", f"{cold * 1e3:.0f} ms", "", ""),
        ("re-map of a sealed GiB", f"{remap * 1e3:.2f} ms", "", "(goal < 1 ms)"),
    ]


async def run(only: list[str]) -> None:
    """Measure and print."""
    rows: list[Line] = []
    async with open_first(max_restarts=100, backoff=AT_ONCE) as device:
        rng = np.random.default_rng()
        a = await device.put(rng.random((SIZE, SIZE), dtype=np.float32))
        b = await device.put(rng.random((SIZE, SIZE), dtype=np.float32))

        async def ours() -> Any:
            return await device.blas.gemm(a, b)

        hand = ByHand() if cupy_of(device) else None
        if wanted("ask", only):
            rows += await latencies(ours, hand)
        if wanted("64 in flight", only):
            rows += await rates(ours, hand)
        if wanted("fault", only):
            rows += await faults(device)
    for name, us, them, ratio in rows:
        print(f"{name:28} {us:>16}   {them:32} {ratio}")


if __name__ == "__main__":
    trio.run(run, parser_of_lines(__doc__).parse_args().only)
