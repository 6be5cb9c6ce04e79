"""Blocks of a cluster read each other's shared memory: sums of long rows in one kernel.

Clusters are there from compute capability 9.0 on. On the CPU a function of NumPy stands for the
kernel; on an older GPU there is nothing to show.
"""

import numpy as np
import trio

from atomr_accel import Device, open_device

SOURCE = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void row_sums(const float* x, float* sums, int columns) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ float part;
    if (threadIdx.x == 0) part = 0;
    __syncthreads();

    // A row belongs to a cluster: its blocks take turns along it.
    const float* row = x + size_t(blockIdx.y) * columns;
    float mine = 0;
    for (int i = cluster.thread_rank(); i < columns; i += cluster.num_threads()) mine += row[i];
    atomicAdd(&part, mine);
    cluster.sync();

    // One thread reads what all blocks have, each in its own shared memory.
    if (cluster.thread_rank() == 0) {
        float sum = 0;
        for (int rank = 0; rank < cluster.num_blocks(); rank++)
            sum += *cluster.map_shared_rank(&part, rank);
        sums[blockIdx.y] = sum;
    }
    cluster.sync();  // no block may end while others read its memory
}
"""

ROWS, COLUMNS, BLOCKS, THREADS = 64, 100_000, 8, 256


def row_sums(x: np.ndarray, sums: np.ndarray, columns: int) -> None:
    """Compute the kernel's result."""
    sums[:] = x.reshape(-1, columns).sum(1)


async def run(device: Device) -> None:
    """Sum rows, eight blocks for each."""
    kernel = await device.nvrtc.compile(SOURCE, "row_sums", cpu=row_sums)
    x = np.random.default_rng().random((ROWS, COLUMNS), np.float32)
    sums = await device.zeros(ROWS, np.float32)
    await kernel.launch(
        (BLOCKS, ROWS), THREADS, await device.put(x), sums, COLUMNS, cluster=(BLOCKS, 1)
    )
    np.testing.assert_allclose(await device.get(sums), x.sum(1, dtype=np.float64), rtol=1e-4)
    print(f"{ROWS} rows of {COLUMNS} elements, {BLOCKS} blocks for each: right")
    if device.backend == "cuda":
        print("clusters at a time:", await kernel.occupancy(THREADS, cluster=BLOCKS))


async def main() -> None:
    """On a device that has clusters."""
    async with open_device(0) as device:
        capability = device.info.compute_capability
        if (0, 0) < capability < (9, 0):
            print(f"{device.info.name} has compute capability {capability}, and no clusters")
            return
        await run(device)


if __name__ == "__main__":
    trio.run(main)
