"""Copies between devices: how they are linked, how fast that is, and what a fault there does."""

import numpy as np
import trio

from atomr_accel import ContextPoisoned, Device, DeviceUnavailable, open_devices
from atomr_accel.testing import kill_host


async def ring(devices: list[Device], array: np.ndarray) -> np.ndarray:
    """Send an array once round all devices."""
    ref = await devices[0].put(array)
    for device in [*devices[1:], devices[0]]:
        ref = await device.copy(ref)
    return await devices[0].get(ref)


async def run(backend: str) -> None:
    """Show the links of two devices, and use them."""
    async with open_devices(range(2), backend=backend, max_restarts=9) as devices:
        print(await devices.topology().measure(16 << 20))

        one, two = devices
        array = np.random.default_rng(0).standard_normal((1 << 20,), dtype=np.float32)
        np.testing.assert_array_equal(await ring(list(devices), array), array)

        # Both directions at once: copies are ops like any others.
        async with trio.open_nursery() as nursery:
            x, y = await one.put(array), await two.put(array)
            nursery.start_soon(two.copy, x)
            nursery.start_soon(one.copy, y)

        # The source fails: the copy says so, and the target does not even notice.
        sealed = await one.put(array, sealed=True)
        kept = await two.put(array)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_host, one)
            try:
                await two.copy(sealed)
            except ContextPoisoned as error:
                print(error)
        assert two.generation == 1
        np.testing.assert_array_equal(await two.get(kept), array)
        # What was sealed is there again, and so can be copied again.
        np.testing.assert_array_equal(await two.get(await two.copy(sealed)), array)
        print("generations:", [device.generation for device in devices])


async def main() -> None:
    """On two GPUs if there are two."""
    try:
        await run("cuda")
    except DeviceUnavailable as error:
        print(f"on the CPU: {error}")
        await run("cpu")


if __name__ == "__main__":
    trio.run(main)
