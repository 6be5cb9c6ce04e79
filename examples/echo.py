"""The smallest program: an array goes to the device and comes back."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device


async def main() -> None:
    """Send some numbers, and fetch them again."""
    sent = np.arange(6, dtype=np.float32).reshape(2, 3)
    async with open_device(0) as device:
        ref = await device.put(sent)
        received = await device.get(ref)
        print(f"{device.name} ({device.backend}) answers {ref.dtype} {ref.shape}:\n{received}")
    assert (received == sent).all()


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
