"""Four devices share the work of many clients; one fails, one is drained; a picture shows it."""

import sys
from collections import Counter

import numpy as np
import trio

from atomr_accel import CandidateState, ContextPoisoned, Devices, Hints, open_devices
from atomr_accel.actors import Directive
from atomr_accel.testing import kill_host

DEVICES, CLIENTS, LIMIT = 4, 16, 3
SIGNS = {CandidateState.READY: " ", CandidateState.RECOVERING: "!", CandidateState.LOST: "x"}

placed: Counter[str] = Counter()


def picture(devices: Devices) -> str:
    """Return a bar for each device, with its ops in flight, and all its ops so far."""
    found = devices.statistics()
    lines = [
        f"{SIGNS.get(each.state, '-')} {each.name} [{'#' * each.in_flight:{LIMIT}}] "
        f"{placed[each.name]:4} placed, {each.free_bytes >> 20:6} MiB free, "
        f"generation {each.generation}, {each.state.value}"
        for each in found.devices
    ]
    return "\n".join([*lines, f"  {found.waiting} wait"])


async def watch(devices: Devices) -> None:
    """Show the present load; in a terminal, always in the same place."""
    while True:
        print(picture(devices), flush=True)
        await trio.sleep(0.2)
        if sys.stdout.isatty():
            print(f"\x1b[{len(devices) + 1}A", end="")


async def client(devices: Devices, number: int) -> None:
    """Ask for a few products, always with the same key."""
    rng = np.random.default_rng(number)
    x = rng.standard_normal((64, 64), dtype=np.float32)
    left = 6
    while left:
        hints = Hints(key=number, nbytes=3 * x.nbytes)
        async with devices.place(hints=hints) as device:
            placed[device.name] += 1
            try:
                ref = await device.put(x)
                product = await device.get(await device.blas.gemm(ref, ref))
            except ContextPoisoned:
                continue  # to wherever there is room now
        np.testing.assert_allclose(product, x.astype(np.float64) @ x, rtol=1e-3, atol=1e-3)
        left -= 1


async def main() -> None:
    """Simulated devices, so that there are as many on every machine."""
    async with open_devices(
        range(DEVICES),
        backend="cpu",
        policy="consistent_hash",
        limit=LIMIT,
        max_restarts=9,
        on_loss=Directive.STOP,
    ) as devices:
        async with trio.open_nursery() as watching:
            watching.start_soon(watch, devices)
            async with trio.open_nursery() as nursery:
                for number in range(CLIENTS):
                    nursery.start_soon(client, devices, number)
                await kill_host(devices[1])
                await devices.drain(2)
            watching.cancel_scope.cancel()
        print(picture(devices))
        assert placed.total() >= 6 * CLIENTS
        assert devices.statistics().devices[2].state is CandidateState.DRAINED


if __name__ == "__main__":
    trio.run(main)
