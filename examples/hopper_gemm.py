"""A matrix product for Hopper, from TMA, mbarriers, clusters and ``wgmma``: a tutorial.

``out = alpha * a @ b.T`` for ``a`` of (m, k) and ``b`` of (n, k), in bfloat16 or fp8 (e4m3), summed
in float32 and rounded to bfloat16. Rows take multiples of 16 bytes; sizes are any otherwise.

The parts of the kernel:

- An output tile of 128 rows and 256 columns belongs to a block, which goes through k by 128 bytes a
  step. A *stage* is what a step needs of ``a`` and ``b``; shared memory holds four, in a ring.
- One thread, the *producer*, asks TMA for stages. The *full* barrier of a stage counts the bytes
  that have come, the *empty* barrier those who have read it.
- Two warpgroups, the *consumers*, have 64 rows of the tile each: 128 sums in the registers
  of each of their threads. The tensor cores read both factors from shared memory themselves.
- Two blocks, a *cluster*, have tiles one above the other, so they need the same rows of ``b``.
  Each loads half of them and TMA delivers them to both.
- Blocks stay, one on each multiprocessor, and take tile after tile. Sums go out through two
  small buffers of each consumer, by TMA, while it is at work on the next tile.

``docs/how-to/hopper.md`` tells more. The kernel is for compute capability 9.0 alone; on the CPU a
function of NumPy stands for it.
"""

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import trio

from atomr_accel import CompileOptions, Device, GpuRef, TensorMap, open_device

SOURCE = r"""
using u32 = unsigned;
using u64 = unsigned long long;
struct CUtensorMap { alignas(64) u64 opaque[16]; };  // as in cuda.h

constexpr int GROUP_THREADS = 128;                        // of a warpgroup
constexpr int CONSUMERS = 2;                              // warpgroups that multiply
constexpr int ROWS = 64;                                  // of the tile, for each of them
constexpr int TILE_M = CONSUMERS * ROWS;
constexpr int LINE = 128;                                 // bytes of k in a stage
constexpr int TILE_K = LINE / ITEM;
constexpr int A_BYTES = TILE_M * LINE, B_BYTES = TILE_N * LINE;
constexpr int SUMS = TILE_N / 2;                          // of a thread: ROWS * TILE_N / 128
constexpr int PIECE = 64;                                 // columns that are stored at a time
constexpr int PIECE_BYTES = ROWS * PIECE * 2;             // a line of 128 bytes for each row, too
constexpr int BUFFERS = 2;                                // pieces of a consumer that TMA stores

// --- barriers ---------------------------------------------------------------------------------
// An mbarrier is in a phase until as many have arrived as it was made for, and all bytes have
// come that were announced; then the next phase begins. One waits for the end of a phase by its
// parity: phases are 0, 1, 0, 1, ... and that before the first counts as 1.

__device__ void make_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(barrier), "r"(arrivals) : "memory");
}

__device__ bool passed(u32 barrier, u32 parity) {
    u32 done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}

__device__ void wait(u32 barrier, u32 parity) {
    while (!passed(barrier, parity)) {}
}

__device__ void announce(u32 barrier, u32 bytes) {  // and arrive
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(bytes) : "memory");
}

__device__ void arrive(u32 barrier, u32 block) {  // at that barrier of a block of the cluster
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" :: "r"(barrier), "r"(block) : "memory");
}

__device__ void meet() {  // all threads of all blocks of the cluster
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::: "memory");
}

__device__ void meet_group(int group) {  // the threads of a warpgroup; barrier 0 is __syncthreads
    asm volatile("bar.sync %0, %1;" :: "r"(group), "n"(GROUP_THREADS) : "memory");
}

// Where in the ring of stages one is, and in which round.
struct Place {
    int stage = 0;
    u32 parity = 0;

    __device__ void advance() {
        if (++stage == STAGES) { stage = 0; parity ^= 1; }
    }
};

// --- TMA --------------------------------------------------------------------------------------
// What is beyond an array's edges comes as zeros, which do no harm to sums, and is not stored.
// So sizes that are no multiples of the tile's need nothing here.

__device__ void prefetch(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

__device__ void load(u32 to, const CUtensorMap& map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// To the same place in all blocks of the cluster; the bytes count at each one's own barrier.
__device__ void load_for_all(u32 to, const CUtensorMap& map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier),
                    "h"((unsigned short)((1 << CLUSTER) - 1)) : "memory");
}

__device__ void store(const CUtensorMap& map, int x, int y, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
                 " [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;"
                 :: "l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
}

template <int N> __device__ void wait_until_read() {  // what all stores but the newest N took
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}

// --- tensor cores -----------------------------------------------------------------------------
// A warpgroup multiplies 64 rows of a by TILE_N rows of b, 32 bytes of k at a time. Both lie in
// shared memory as TMA's 128-byte swizzle has them: rows are lines of 128 bytes, and in
// line r the 16 bytes at place c are at place c ^ (r % 8), so that reading a column of eight lines
// meets all banks. A descriptor says so: where it begins and how far it is from eight lines to
// the next eight (1024 bytes), in units of 16 bytes, and the swizzle's number, 1.

__device__ u64 describe(u32 at) {
    return u64(1) << 62 | u64(1024 >> 4) << 32 | u64(1) << 16 | (at & 0x3ffff) >> 4;
}

__device__ __forceinline__ void multiply(float (&d)[SUMS], u64 a, u64 b, int add) {
    asm volatile(WGMMA);  // d = a * b + (add ? d : 0), asynchronously
}

__device__ void begin_multiplying() {  // registers are what they should be
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ void end_multiplying() {  // of a step
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ void wait_until_multiplied() {  // all steps but the newest N
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

// The compiler does not know that registers change while others are at work: no use of sums may
// be moved before this.
__device__ __forceinline__ void settle(float (&d)[SUMS]) {
    #pragma unroll
    for (int i = 0; i < SUMS; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

// A thread's sums: d[4 * j + i] is in row 16 * (warp % 4) + lane / 4 + 8 * (i / 2), and column
// 8 * j + 2 * (lane % 4) + i % 2. Four matrices of 8 x 8 go to shared memory at a time, where
// lane l tells the place of row l % 16 of the columns from 8 * (l / 16) on.
__device__ void write_piece(u32 to, const float (&d)[SUMS], int first, float alpha) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    #pragma unroll
    for (int j = 0; j < PIECE; j += 16) {
        u32 pairs[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = (first + j) / 2 + 2 * i;
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;"  // the first is the upper half
                : "=r"(pairs[i]) : "f"(alpha * d[at + 1]), "f"(alpha * d[at]));
        }
        const int place = j / 8 + lane / 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     :: "r"(to + row * LINE + (place ^ row % 8) * 16),
                        "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3]) : "memory");
    }
}

// --- the kernel -------------------------------------------------------------------------------

// Where tiles are in the product. Blocks that run at the same time should need the same rows
// and columns, which are in the L2 cache then: GROUP rows of tiles go together, column by column.
struct Tiles {
    int rows, columns;  // a row of tiles here is one for each block of the cluster

    __device__ Tiles(int m, int n)
        : rows((m + CLUSTER * TILE_M - 1) / (CLUSTER * TILE_M)),
          columns((n + TILE_N - 1) / TILE_N) {}
    __device__ int count() const { return rows * columns; }
    __device__ void find(int tile, int block, int& y, int& x) const {
        const int first = tile / (GROUP * columns) * GROUP;
        const int height = min(GROUP, rows - first), within = tile - first * columns;
        y = ((first + within % height) * CLUSTER + block) * TILE_M;
        x = within / height * TILE_N;
    }
};

extern "C" __global__ void __launch_bounds__((1 + CONSUMERS) * GROUP_THREADS, 1) gemm(
    const __grid_constant__ CUtensorMap a,
    const __grid_constant__ CUtensorMap b,
    const __grid_constant__ CUtensorMap out,
    int m, int n, int k, float alpha)
{
    // The swizzle goes by addresses, so lines begin at a multiple of 1024 bytes.
    extern __shared__ unsigned char memory[];
    const u32 stages_a = (u32(__cvta_generic_to_shared(memory)) + 1023) / 1024 * 1024;
    const u32 stages_b = stages_a + STAGES * A_BYTES;
    const u32 pieces = stages_b + STAGES * B_BYTES;
    const u32 full = pieces + CONSUMERS * BUFFERS * PIECE_BYTES, empty = full + STAGES * 8;

    // The same for all threads of a warp, and the compiler knows.
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0);
    const int block = blockIdx.x % CLUSTER;
    const int steps = (k + TILE_K - 1) / TILE_K;
    const Tiles tiles(m, n);
    const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    int x, y;
    Place place;

    if (threadIdx.x == 0) {
        prefetch(a); prefetch(b); prefetch(out);
        for (int i = 0; i < STAGES; i++) {
            make_barrier(full + 8 * i, 1);
            make_barrier(empty + 8 * i, CLUSTER * CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    meet();  // barriers are there before another block, or TMA, arrives at them

    if (group == 0) {
        // The producer has no use for registers; consumers have: 40 + 2 * 232 = 3 * 168.
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            for (int tile = first; tile < tiles.count(); tile += stride) {
                tiles.find(tile, block, y, x);
                for (int step = 0; step < steps; step++, place.advance()) {
                    const u32 arrived = full + 8 * place.stage;
                    // Consumers of all blocks have read the stage's last contents: this block
                    // writes to all of them.
                    wait(empty + 8 * place.stage, place.parity ^ 1);
                    // A and all of b, also what others send. What is beyond edges counts, too.
                    announce(arrived, A_BYTES + B_BYTES);
                    load(stages_a + place.stage * A_BYTES, a, step * TILE_K, y, arrived);
                    const u32 to = stages_b + place.stage * B_BYTES;
                    if constexpr (CLUSTER == 1) {
                        load(to, b, step * TILE_K, x, arrived);
                    } else {
                        load_for_all(to + block * (B_BYTES / CLUSTER), b, step * TILE_K,
                                     x + block * (TILE_N / CLUSTER), arrived);
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int consumer = group - 1;
        const u32 thread = threadIdx.x % GROUP_THREADS;
        const u32 rows = stages_a + consumer * ROWS * LINE;  // this consumer's, of the first stage
        const u32 buffers = pieces + consumer * BUFFERS * PIECE_BYTES;

        // The sums of some steps. Those of one step are asked for while those of the one before are
        // made, so the tensor cores never wait; a stage is free when its step is done. A
        // warpgroup's products are done for all its warps, so one thread speaks for it, to each
        // block of the cluster.
        auto sum = [&](float (&d)[SUMS], int count) {
            int before = 0;
            for (int step = 0; step < count; step++, place.advance()) {
                wait(full + 8 * place.stage, place.parity);
                const u64 left = describe(rows + place.stage * A_BYTES);
                const u64 right = describe(stages_b + place.stage * B_BYTES);
                begin_multiplying();
                #pragma unroll
                for (int i = 0; i < LINE / 32; i++) {
                    multiply(d, left + 2 * i, right + 2 * i, step + i);
                }
                end_multiplying();
                wait_until_multiplied<1>();
                if (step > 0 && thread < CLUSTER) arrive(empty + 8 * before, thread);
                before = place.stage;
            }
            wait_until_multiplied<0>();
            settle(d);
            if (thread < CLUSTER) arrive(empty + 8 * before, thread);
        };

        for (int tile = first; tile < tiles.count(); tile += stride) {
            tiles.find(tile, block, y, x);
            float d[SUMS];
            if constexpr (PROMOTE == 0) {
                sum(d, steps);
            } else {
                float part[SUMS];
                for (int i = 0; i < SUMS; i++) d[i] = 0;
                for (int step = 0; step < steps; step += PROMOTE) {
                    sum(part, min(PROMOTE, steps - step));
                    #pragma unroll
                    for (int i = 0; i < SUMS; i++) d[i] += part[i];
                }
            }

            #pragma unroll
            for (int column = 0; column < TILE_N; column += PIECE) {
                const u32 buffer = buffers + column / PIECE % BUFFERS * PIECE_BYTES;
                if (thread == 0) wait_until_read<BUFFERS - 1>();  // what this one had
                meet_group(1 + consumer);
                write_piece(buffer, d, column, alpha);
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA sees it
                meet_group(1 + consumer);
                if (thread == 0) store(out, x + column, y + consumer * ROWS, buffer);
            }
        }
        if (thread == 0) wait_until_read<0>();  // shared memory ends with the block
    }
    meet();  // no block may end while others arrive at its barriers
}
"""

TILE_M, PIECE = 128, (64, 64)
KINDS = {"bfloat16": "bf16", "float8_e4m3fn": "e4m3"}


@dataclass(frozen=True)
class Plan:
    """Tile sizes of a product.

    Attributes:
        tile_n: columns of an output tile: 256, or 128 for products that have few tiles.
        stages: steps that shared memory holds; by default as many as there is room for.
        cluster: blocks that load the same columns together, 1 or 2.
        group: how many rows of tiles go together in time, in units of a cluster's.
        promote: steps after which partial sums are added to float32 registers, with
            ``tile_n=128``. The tensor cores sum fp8 with about 14 bits; 0 leaves it at that.
        blocks: how many blocks share the tiles; by default one for each multiprocessor.
    """

    tile_n: int = 256
    stages: int | None = None
    cluster: int = 2
    group: int = 4
    promote: int = 0
    blocks: int | None = None

    def __post_init__(self) -> None:
        """Refuse what the kernel is not made for."""
        for good, rule in (
            (self.tile_n in (128, 256), "tile_n is 128 or 256"),
            (self.cluster in (1, 2), "cluster is 1 or 2"),
            (self.depth > 1, "stages is at least 2: one is read while the next is asked for"),
            (min(self.group, self.blocks or 1) > 0 <= self.promote, "counts are positive"),
            (not self.promote or self.tile_n == 128, "promote has registers with tile_n=128"),
        ):
            if not good:
                raise ValueError(f"{rule}; {self} is not made")

    @property
    def depth(self) -> int:
        """Stages."""
        return self.stages or (4 if self.tile_n == 256 else 6)

    @property
    def shared(self) -> int:
        """Bytes of shared memory: for alignment, stages, buffers of consumers, barriers."""
        buffers = 2 * 2 * math.prod(PIECE) * 2
        return 1024 + self.depth * ((TILE_M + self.tile_n) * 128 + 16) + buffers

    def source(self, dtype: np.dtype[Any]) -> str:
        """The kernel's source for factors of a dtype."""
        macros = {
            "ITEM": dtype.itemsize,
            "TILE_N": self.tile_n,
            "STAGES": self.depth,
            "CLUSTER": self.cluster,
            "GROUP": self.group,
            "PROMOTE": self.promote,
            "WGMMA": wgmma(KINDS[dtype.name], self.tile_n),
        }
        return "".join(f"#define {name} {text}\n" for name, text in macros.items()) + SOURCE


def wgmma(kind: str, columns: int) -> str:
    """The instruction that multiplies, with the names of all its registers.

    Args:
        kind: ``"bf16"`` or ``"e4m3"``.
        columns: 128 or 256; a thread has half as many sums.
    """
    sums = columns // 2
    k, layouts = (16, ", 0, 0") if kind == "bf16" else (32, "")  # bf16 could be transposed
    registers = ", ".join(f"%{i}" for i in range(sums))
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{sums + 2}, 0; "
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{k}.f32.{kind}.{kind} "
        f"{{{registers}}}, %{sums}, %{sums + 1}, p, 1, 1{layouts}; }}"
    )
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(sums))
    return f'"{text}" : {outputs} : "l"(a), "l"(b), "r"(add)'


def twin(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, m: int, n: int, k: int, alpha: float
) -> None:
    """Compute the kernel's result from the arrays of the tensor maps."""
    left, right = (x[:, :k].astype(np.float32) for x in (a, b))
    out[:m, :n] = alpha * (left @ right.T)


async def build(device: Device, dtype: np.dtype[Any], plan: Plan) -> Any:
    """The kernel for factors of a dtype; it is kept on disk."""
    options = CompileOptions(architecture="sm_90a", ptxas_options=["-v"])
    return await device.nvrtc.compile(plan.source(dtype), "gemm", cpu=twin, options=options)


async def gemm(
    device: Device,
    a: GpuRef,
    b: GpuRef,
    out: GpuRef,
    *,
    alpha: float = 1.0,
    plan: Plan = Plan(),
    kernel: Any = None,
) -> None:
    """Multiply: ``out = alpha * a @ b.T``.

    Args:
        device: whose kernel it is.
        a: (m, k), bfloat16 or float8_e4m3fn.
        b: (n, k), of the same dtype.
        out: (m, n), bfloat16.
        alpha: for fp8 the product of both scales.
        plan: how the product is cut.
        kernel: what ``build`` gave for this plan, if it is at hand.

    Raises:
        ValueError: shapes or dtypes that do not fit together, or rows that are no multiples of 16
            bytes, which TMA wants.
    """
    grid, arguments, options = launch(device, a, b, out, alpha, plan)
    kernel = kernel or await build(device, a.dtype, plan)
    await kernel.launch(grid, 384, *arguments, **options)


def launch(
    device: Device, a: GpuRef, b: GpuRef, out: GpuRef, alpha: float, plan: Plan
) -> tuple[int, tuple[Any, ...], dict[str, int]]:
    """The grid, the arguments and the options of a launch."""
    (m, k), (n, depth) = a.shape, b.shape
    if depth != k or out.shape != (m, n):
        raise ValueError(f"out = a @ b.T takes (m, k), (n, k) and (m, n), not {a}, {b} and {out}")
    if a.dtype.name not in KINDS or a.dtype != b.dtype or out.dtype.name != "bfloat16":
        raise ValueError(f"a and b are both of {' or '.join(KINDS)}, out of bfloat16")
    line, part = 128 // a.dtype.itemsize, plan.tile_n // plan.cluster
    maps = (
        TensorMap(a, (TILE_M, line), swizzle=128, promotion=256, written=False),
        TensorMap(b, (part, line), swizzle=128, promotion=256, written=False),
        TensorMap(out, PIECE, swizzle=128),
    )
    tiles = -(-m // (TILE_M * plan.cluster)) * -(-n // plan.tile_n)
    blocks = plan.blocks or device.info.multiprocessors or 1
    grid = min(tiles, max(blocks // plan.cluster, 1)) * plan.cluster
    options = {"shared": plan.shared} | ({"cluster": plan.cluster} if plan.cluster > 1 else {})
    return grid, (*maps, m, n, k, alpha), options


async def run(device: Device) -> None:
    """Multiply matrices whose sizes are no multiples of the tile's, and compare."""
    rng = np.random.default_rng()
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        for m, n, k in ((200, 328, 160), (77, 104, 1040)):
            a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k)))
            out = await device.zeros((m, n), ml_dtypes.bfloat16)
            await gemm(device, await device.put(a), await device.put(b), out, alpha=0.5)
            exact = 0.5 * a.astype(np.float64) @ b.astype(np.float64).T
            got = (await device.get(out)).astype(np.float64)
            error = np.abs(got - exact).max() / np.abs(exact).max()
            assert error < 4e-3, error
            print(f"{a.dtype.name} {m} x {n} x {k}: right to {error:.1e}")


async def main() -> None:
    """On a device that has ``wgmma``."""
    async with open_device(0) as device:
        capability = device.info.compute_capability
        if capability not in ((0, 0), (9, 0)):
            print(f"{device.info.name} has compute capability {capability}; this is for 9.0")
            return
        await run(device)


if __name__ == "__main__":
    trio.run(main)
