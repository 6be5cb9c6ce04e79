"""Sealed copies on all devices, and snapshots: how fast they are made, and come back.

Beside each there is what a program would do without: put to one device after the other, get and
put arrays. On two GPUs, or two devices of the CPU backend.

    python tests/benchmarks/bench_snapshots.py [MiB]
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import TYPE_CHECKING, Final

import numpy as np
import trio
from measuring import median_of

from atomr_accel import CpuFallbackWarning, DeviceUnavailable, open_devices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import Devices

TIMES: Final = 3
BUFFERS: Final = 16


async def rate(nbytes: int, call: Callable[[], Awaitable[object]]) -> float:
    """GB/s of a call; the median."""
    return nbytes / await median_of(call, TIMES, before=0) / 1e9


async def measure(devices: Devices, mebibytes: int) -> None:
    """Print the table."""
    one, two = devices
    nbytes = mebibytes << 20
    array = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
    refs = [await one.put(part) for part in np.split(array, BUFFERS)]

    async def put_to_all() -> object:
        return [await device.put(array, sealed=True) for device in devices]

    rows: dict[str, Callable[[], Awaitable[object]]] = {
        "put(sealed=True), on each": put_to_all,
        "seal_everywhere": lambda: devices.seal_everywhere(array),
    }
    print(f"{mebibytes} MiB on {one.name} and {two.name}, GB/s")
    for name, call in rows.items():
        print(f"{name:34} {await rate(nbytes, call):8.2f}")

    copies = await devices.seal_everywhere(array)

    async def again() -> object:
        await two.free(copies[two])
        return await copies.restore(two)

    async def put_again() -> object:
        return await two.put(array, sealed=True)

    print(f"{'put(sealed=True) again':34} {await rate(nbytes, put_again):8.2f}")
    print(f"{'restore from the peer':34} {await rate(nbytes, again):8.2f}")
    assert (await two.get(copies[two]) == array).all()
    for device, ref in copies.items():
        await device.free(ref)

    taken = await one.snapshot(refs)
    await taken.wait()
    on_peer = await one.snapshot(refs, to=two)
    await on_peer.wait()

    async def get_all() -> object:
        return [await one.get(ref) for ref in refs]

    async def new() -> object:
        snapshot = await one.snapshot(refs)
        await snapshot.wait()
        return snapshot

    async def in_place() -> None:
        await (await one.snapshot(refs, out=taken)).wait()

    async def to_peer() -> object:
        snapshot = await one.snapshot(refs, to=two)
        await snapshot.wait()
        return snapshot

    rows = {
        "get, one after the other": get_all,
        "snapshot": new,
        "snapshot(out=...)": in_place,
        "snapshot(to=peer)": to_peer,
        "restore": lambda: one.restore(taken),
        "restore(out=...)": lambda: one.restore(taken, out=refs),
        "restore from the peer": lambda: one.restore(on_peer),
        "restore(out=...) from the peer": lambda: one.restore(on_peer, out=refs),
    }
    for name, call in rows.items():
        print(f"{name:34} {await rate(nbytes, call):8.2f}")
    for ref, part in zip(refs, np.split(array, BUFFERS), strict=True):
        assert (await one.get(ref) == part).all()
    begun = time.perf_counter()
    await one.snapshot(refs, out=taken)
    held = time.perf_counter() - begun
    print(f"a snapshot keeps its caller for {held * 1e6:.0f} us")
    await taken.wait()


async def main(mebibytes: int) -> None:
    """On GPUs if there are two."""
    try:
        async with open_devices(range(2), backend="cuda") as devices:
            await measure(devices, mebibytes or 4096)
    except DeviceUnavailable:
        async with open_devices(range(2), backend="cpu") as devices:
            await measure(devices, mebibytes or 64)


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 0)
