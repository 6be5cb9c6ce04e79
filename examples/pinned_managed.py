"""Page-locked and managed memory: faster transfers, and memory that moves by itself."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Unsupported, open_device


async def main() -> None:
    """Use one page-locked array for many frames, then a buffer that both sides may hold."""
    async with open_device(0) as device:
        ref = await device.zeros((512, 512), np.float32)
        async with device.pinned.array(ref.shape, np.float32) as frame:
            for number in range(3):
                frame[:] = number
                await device.put(frame, out=ref)  # no copy to staging memory
                await device.evaluate(ref * 2 + 1, out=ref)
                await device.get(ref, out=frame)
                assert (frame == 2 * number + 1).all()
            used = device.pinned.statistics().used
        print(f"pinned: 3 frames through {used >> 10} KiB of page-locked memory")
        del frame

        try:
            managed = await device.managed(1000)
        except Unsupported as error:
            print(f"managed: {error}")
            return
        await device.fill(managed, 2.0)
        square = await device.get(await device.blas.dot(managed, managed))
        print(f"managed: {managed.nbytes} bytes, their squares sum to {float(square):g}")
        assert square == 4000


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
