"""Tiles by the tensor memory accelerator (TMA): loaded, scaled in shared memory, stored.

One thread of a block requests a tile, and an mbarrier signals its arrival. Beyond the array's edge,
loads give zeros and stores are left out. TMA is there from compute capability 9.0 on. On the CPU a
function of NumPy stands for the kernel; on an older GPU there is nothing to show.
"""

import numpy as np
import trio

from atomr_accel import Device, TensorMap, open_device

ROWS, COLUMNS = 16, 32

SOURCE = """
struct CUtensorMap { alignas(64) unsigned long long opaque[16]; };  // as in cuda.h

extern "C" __global__ void scale(
    const __grid_constant__ CUtensorMap source,
    const __grid_constant__ CUtensorMap target,
    float factor)
{
    __shared__ alignas(128) float tile[ROWS * COLUMNS];
    __shared__ alignas(8) unsigned long long arrived;
    unsigned at = __cvta_generic_to_shared(tile), barrier = __cvta_generic_to_shared(&arrived);
    int x = blockIdx.x * COLUMNS, y = blockIdx.y * ROWS;

    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(barrier), "r"(int(sizeof tile)) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                     ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     :: "r"(at), "l"(&source), "r"(x), "r"(y), "r"(barrier) : "memory");
    }
    __syncthreads();  // the barrier is there for all
    asm volatile("{\\n"
                 ".reg .pred done;\\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\\n"
                 "@!done bra again;\\n"
                 "}" :: "r"(barrier) : "memory");

    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) tile[i] *= factor;

    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA sees what threads wrote
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                     :: "l"(&target), "r"(x), "r"(y), "r"(at) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""


def scale(source: np.ndarray, target: np.ndarray, factor: float) -> None:
    """Compute the kernel's result from the arrays of the tensor maps."""
    target[:] = source * factor


async def run(device: Device) -> None:
    """Scale an array whose sizes are no multiples of the tile's."""
    options = (f"-DROWS={ROWS}", f"-DCOLUMNS={COLUMNS}")
    kernel = await device.nvrtc.compile(SOURCE, "scale", cpu=scale, options=options)
    x = np.random.default_rng().standard_normal((1000, 500), np.float32)
    source = await device.put(x, sealed=True)
    target = await device.zeros(x.shape, np.float32)
    box = (ROWS, COLUMNS)
    tiles = -(-x.shape[1] // COLUMNS), -(-x.shape[0] // ROWS)
    loads = TensorMap(source, box, written=False, promotion=128)
    await kernel.launch(tiles, 128, loads, TensorMap(target, box), 2.5)
    np.testing.assert_allclose(await device.get(target), x * np.float32(2.5), rtol=1e-6)
    print(f"{x.shape} by tiles of {box}: right")


async def main() -> None:
    """On a device that has TMA."""
    async with open_device(0) as device:
        capability = device.info.compute_capability
        if (0, 0) < capability < (9, 0):
            print(f"{device.info.name} has compute capability {capability}, and no TMA")
            return
        await run(device)


if __name__ == "__main__":
    trio.run(main)
