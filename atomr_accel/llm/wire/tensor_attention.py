"""Attention to pages by tensor cores, for 16-bit numbers on CUDA.

Keys are taken in chunks that begin at multiples of `CHUNK` positions. A row's result is a sum over
its chunks, from the first one on, of parts that depend on the row and the chunk alone. So it is the
same, bit for bit, whichever rows a warp computes together, and whether one warp computes all chunks
of a row or each has one of its own.

Macros are ``KIND`` (1 for float16, 2 for bfloat16), ``SIZE`` (of a head, 64 or 128), ``GROUP``
(heads of queries that share keys, 16 at most) and ``PAGE`` (positions of a page).
"""

from __future__ import annotations

from typing import Final

CHUNK: Final = 128
"""Keys of a chunk."""

TILE: Final = 16
"""Rows of a product of tensor cores: heads of one query or of several."""

WARPS: Final = 4
"""Warps of a block; each works by itself."""

NAMES: Final = ["attend_rows", "attend_chunks", "merge"]
"""Kernels: one for whole rows, and two for chunks of keys and for the sum of their parts."""

SOURCE: Final = (
    f"#define CHUNK {CHUNK}\n#define WARPS {WARPS}\n"
    r"""
#if KIND == 1
#include <cuda_fp16.h>
typedef __half T;
__device__ __forceinline__ T down(float x) { return __float2half(x); }
#define NUMBERS "f16"
#else
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
__device__ __forceinline__ T down(float x) { return __float2bfloat16(x); }
#define NUMBERS "bf16"
#endif

#define KEY_PIECES (SIZE / 32)
#define VALUE_PIECES (SIZE / 64)
#define BLOCKS (SIZE / 8)
#define STEP (2048 / SIZE)  // keys of a step: as many as registers have room for
#define HALVES (STEP / 8)
#define WHOLE_PAGES (PAGE % 16 == 0)
#define EMPTY -1e30f

// Eight numbers, as one load.
struct alignas(16) Piece { unsigned words[4]; };

__device__ __forceinline__ Piece loaded(const T* from, long long head, int piece) {
    return *(const Piece*)(from + head + 8 * piece);
}

union Numbers {
    T each[2];
    unsigned word;
};

__device__ __forceinline__ unsigned packed(float a, float b) {
    Numbers made;
    made.each[0] = down(a);
    made.each[1] = down(b);
    return made.word;
}

// Numbers of two words at the same place, as a word.
__device__ __forceinline__ unsigned paired(unsigned a, unsigned b, int upper) {
    return upper ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
}

#ifdef __CUDACC__
// c += a @ b for 16 x 16 and 16 x 8 numbers.
__device__ __forceinline__ void multiply(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NUMBERS "." NUMBERS ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// Parts of sums of a lane's two rows. Of a block of eight columns it has two of each row. Columns
// have such an order that for each row the lane has 16 numbers one after the other of every 64.
struct Part {
    float top[2], total[2], sum[BLOCKS][4];

    __device__ __forceinline__ void clear() {
        for (int row = 0; row < 2; row++) { top[row] = EMPTY; total[row] = 0.0f; }
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
            for (int i = 0; i < 4; i++) sum[block][i] = 0.0f;
    }
};

// Add a later part to an earlier one. Compilers must not choose which products they fuse, or rows
// would depend on the kernel that computes them.
__device__ __forceinline__ float added(float sum, float old, float part, float share) {
    return __fmaf_rn(sum, old, __fmul_rn(part, share));
}

__device__ __forceinline__ void add(Part& sums, const Part& part) {
    float old[2], share[2];
    for (int row = 0; row < 2; row++) {
        float top = fmaxf(sums.top[row], part.top[row]);
        old[row] = exp2f(__fsub_rn(sums.top[row], top));
        share[row] = exp2f(__fsub_rn(part.top[row], top));
        sums.top[row] = top;
        sums.total[row] = added(sums.total[row], old[row], part.total[row], share[row]);
    }
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
        for (int i = 0; i < 4; i++)
            sums.sum[block][i] =
                added(sums.sum[block][i], old[i / 2], part.sum[block][i], share[i / 2]);
}

// Consecutive rows of one sequence, whose heads a warp computes.
struct Run {
    const T* cache_k;
    const T* cache_v;
    const int* table;
    long long stride;           // numbers between two positions of the cache
    int first, last;            // keys that any of the rows needs
    int inner_low, inner_high;  // keys that all rows of the tile need
    int low[2], high[2];        // those of the lane's two rows
    int pages;
    long long found;            // the lane's place of 16 keys of the chunk

    // Numbers before a key in the cache, or -1 if there are none.
    __device__ __forceinline__ long long place(int key) const {
        int page = table[key / PAGE];
        return page < 0 || page >= pages ? -1 : ((long long)page * PAGE + key % PAGE) * stride;
    }

    // Find the chunk's keys, 16 at a time: a lane for each. To look in the table between loads of
    // keys and values would be to wait for these.
    __device__ __forceinline__ void find(int chunk) {
        int key = chunk * CHUNK + threadIdx.x % (CHUNK / 16) * 16;
        found = WHOLE_PAGES && key <= last ? place(key) : -1;
    }

    // Return whether all keys of a step are needed and there, and the places of each 16.
    __device__ __forceinline__ bool look_up(long long (&places)[STEP / 16], int start) const {
        bool whole = WHOLE_PAGES && start >= first && start + STEP <= last + 1;
#pragma unroll
        for (int i = 0; i < STEP / 16; i++) {
            places[i] = __shfl_sync(0xffffffffu, found, start % CHUNK / 16 + i);
            whole = whole && places[i] >= 0;
        }
        return whole;
    }

    // The place of a key in a step that is not whole.
    __device__ __forceinline__ long long place_of(int key, long long sixteen) const {
        if (key < first || key > last) return -1;
        if (!WHOLE_PAGES) return place(key);
        return sixteen < 0 ? -1 : sixteen + key % 16 * stride;
    }

    __device__ __forceinline__ void load_keys(Piece (&keys)[HALVES][KEY_PIECES], int start) const {
        int lane = threadIdx.x % 32;
        long long places[STEP / 16];
        bool whole = look_up(places, start);
        if (whole) {
            const T* from = cache_k + lane / 4 * stride + lane % 4 * 8;
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int i = 0; i < KEY_PIECES; i++)
                    keys[half][i] = loaded(from, places[half / 2] + half % 2 * 8 * stride, 4 * i);
            return;
        }
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            long long at = place_of(start + 8 * half + lane / 4, places[half / 2]);
#pragma unroll
            for (int i = 0; i < KEY_PIECES; i++)
                keys[half][i] = at < 0 ? Piece{} : loaded(cache_k, at, 4 * i + lane % 4);
        }
    }

    // Load values, and return a bit for each of the lane's keys that are there.
    __device__ __forceinline__ unsigned load_values(
        Piece (&values)[HALVES][2][VALUE_PIECES], int start
    ) const {
        int lane = threadIdx.x % 32;
        long long places[STEP / 16];
        bool whole = look_up(places, start);
        if (whole) {
            const T* from = cache_v + lane % 4 * 2 * stride + lane / 4 * 8;
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int piece = 0; piece < VALUE_PIECES; piece++)
                        values[half][i][piece] = loaded(
                            from, places[half / 2] + (half % 2 * 8 + i) * stride, 8 * piece);
            return 0xffffffffu;
        }
        unsigned there = 0;
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                long long at = place_of(start + 8 * half + lane % 4 * 2 + i, places[half / 2]);
                if (at >= 0) there |= 1u << (2 * half + i);
#pragma unroll
                for (int piece = 0; piece < VALUE_PIECES; piece++)
                    values[half][i][piece] =
                        at < 0 ? Piece{} : loaded(cache_v, at, 8 * piece + lane / 4);
            }
        return there;
    }
};

// Compute the part of a chunk. Queries are those of the lane's two rows. Keys and values of a step
// are loaded as soon as those of the step before have been used.
__device__ __forceinline__ void compute(
    Part& part, Run& run, const Piece (&query)[2][KEY_PIECES], int chunk, float scale
) {
    int lane = threadIdx.x % 32;
    part.clear();
    run.find(chunk);
    int start = chunk * CHUNK, end = start + CHUNK;
    if (end > run.last + 1) end = run.last + 1;
    if (start < run.first) start = run.first / STEP * STEP;
    Piece keys[HALVES][KEY_PIECES], values[HALVES][2][VALUE_PIECES];
    run.load_keys(keys, start);
    unsigned there = run.load_values(values, start);
    for (; start < end; start += STEP) {
        float scores[HALVES][4] = {};
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int i = 0; i < KEY_PIECES; i++)
#pragma unroll
                for (int j = 0; j < 4; j += 2) {
                    unsigned a[4] = {query[0][i].words[j], query[1][i].words[j],
                                     query[0][i].words[j + 1], query[1][i].words[j + 1]};
                    multiply(scores[half], a, keys[half][i].words[j], keys[half][i].words[j + 1]);
                }
        if (start + STEP < end) run.load_keys(keys, start + STEP);
        float top[2] = {EMPTY, EMPTY}, old[2];
        unsigned seen = 0xffffffffu;  // bits for both rows and the lane's keys
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            for (int i = 0; i < 4; i++) scores[half][i] = __fmul_rn(scores[half][i], scale);
        if (there == 0xffffffffu && start >= run.inner_low && start + STEP <= run.inner_high + 1) {
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                for (int i = 0; i < 4; i++) top[i / 2] = fmaxf(top[i / 2], scores[half][i]);
        } else {
            seen = 0;
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int key = start + 8 * half + lane % 4 * 2 + i % 2, row = i / 2;
                    if (!(there >> (2 * half + i % 2) & 1u)) continue;
                    if (key < run.low[row] || key > run.high[row]) continue;
                    seen |= 1u << (4 * half + i);
                    top[row] = fmaxf(top[row], scores[half][i]);
                }
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            for (int step = 1; step < 4; step *= 2)
                top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], step));
            top[row] = fmaxf(top[row], part.top[row]);
            old[row] = exp2f(__fsub_rn(part.top[row], top[row]));
            part.top[row] = top[row];
            part.total[row] = __fmul_rn(part.total[row], old[row]);
        }
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool counts = seen >> (4 * half + i) & 1u;
                float share = counts ? exp2f(__fsub_rn(scores[half][i], top[i / 2])) : 0.0f;
                scores[half][i] = share;
                part.total[i / 2] = __fadd_rn(part.total[i / 2], share);
            }
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
            for (int i = 0; i < 4; i++)
                part.sum[block][i] = __fmul_rn(part.sum[block][i], old[i / 2]);
#pragma unroll
        for (int first = 0; first < HALVES; first += 2) {
            unsigned shares[4];
            for (int i = 0; i < 4; i++) {
                const float* row = scores[first + i / 2] + i % 2 * 2;
                shares[i] = packed(row[0], row[1]);
            }
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                int at = block / 8, word = block % 8 / 2, upper = block % 2;
                unsigned pairs[2];
                for (int i = 0; i < 2; i++)
                    pairs[i] = paired(values[first + i][0][at].words[word],
                                      values[first + i][1][at].words[word], upper);
                multiply(part.sum[block], shares, pairs[0], pairs[1]);
            }
        }
        if (start + STEP < end) there = run.load_values(values, start + STEP);
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
        for (int step = 1; step < 4; step *= 2)
            part.total[row] =
                __fadd_rn(part.total[row], __shfl_xor_sync(0xffffffffu, part.total[row], step));
}

// A warp for each tile of rows and heads that share keys: `together` rows, of any sequences. With
// `split` it is one for each chunk of them, too, and writes parts for `merge`.
template <bool split> __device__ __forceinline__ void attend_tile(
    T* out, float* parts, const T* q, const T* cache_k, const T* cache_v, const int* positions,
    const int* sequences, const int* tables, int rows, int kv_heads, int columns, int pages,
    int window, int chunks, int together, float scale
) {
    int lane = threadIdx.x % 32, heads = kv_heads * GROUP;
    int warp = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    // Warps of a block read the same keys, or those of heads that lie one after the other.
    int kv_head = split ? warp % kv_heads : (int)blockIdx.y;
    int first_row = (split ? warp / kv_heads : warp) * together;
    if (first_row >= rows) return;
    int mine[2];
    long long place[2];  // of the lane's two heads of rows among all of them
    Piece query[2][KEY_PIECES];
    for (int i = 0; i < 2; i++) {
        int at = lane / 4 + 8 * i, row = first_row + at / GROUP;
        bool used = at < together * GROUP && row < rows;
        mine[i] = used ? row : -1;
        place[i] = (long long)row * heads + kv_head * GROUP + at % GROUP;
#pragma unroll
        for (int j = 0; j < KEY_PIECES; j++)
            query[i][j] = used ? loaded(q, place[i] * SIZE, 4 * j + lane % 4) : Piece{};
    }
    Part sums, part;
    if (!split) sums.clear();
    int end = first_row + together < rows ? first_row + together : rows;
    for (int row = first_row, next; row < end; row = next) {
        Run run = {cache_k + kv_head * SIZE, cache_v + kv_head * SIZE,
                   tables + (long long)sequences[row] * columns, (long long)kv_heads * SIZE,
                   0x7fffffff, -1, 0, 0x7fffffff, {0, 0}, {-1, -1}, pages, -1};
        for (next = row; next < end && sequences[next] == sequences[row]; next++) {
            int position = positions[next];
            if (position < 0 || position / PAGE >= columns) {
                run.inner_high = -1;
                continue;
            }
            int low = window > 0 && position >= window ? position - window + 1 : 0;
            run.first = low < run.first ? low : run.first;
            run.last = position > run.last ? position : run.last;
            run.inner_low = low > run.inner_low ? low : run.inner_low;
            run.inner_high = position < run.inner_high ? position : run.inner_high;
            for (int i = 0; i < 2; i++)
                if (mine[i] == next) { run.low[i] = low; run.high[i] = position; }
        }
        if (run.last < 0) continue;
        if (row > first_row || next < end) run.inner_high = -1;  // other sequences have rows, too
        if (!split) {
            for (int chunk = run.first / CHUNK; chunk <= run.last / CHUNK; chunk++) {
                compute(part, run, query, chunk, scale);
                add(sums, part);
            }
            continue;
        }
        int chunk = blockIdx.y;
        if (chunk < run.first / CHUNK || chunk > run.last / CHUNK) continue;
        compute(part, run, query, chunk, scale);
        for (int i = 0; i < 2; i++) {
            if (run.high[i] < 0 || chunk > run.high[i] / CHUNK) continue;
            long long at = place[i] * chunks + chunk;
            float* to = parts + at * SIZE;
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
                for (int j = 0; j < 2; j++)
                    to[block / 8 * 64 + lane % 4 * 16 + 8 * j + block % 8] =
                        part.sum[block][2 * i + j];
            if (lane % 4 == 0) {
                float* told = parts + (long long)rows * heads * chunks * SIZE + at * 2;
                told[0] = part.top[i];
                told[1] = part.total[i];
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        if (split || mine[i] < 0) continue;
        float total = sums.total[i];
#pragma unroll
        for (int piece = 0; piece < VALUE_PIECES; piece++)
            for (int j = 0; j < 2; j++) {
                Piece made;
                for (int word = 0; word < 4; word++) {
                    float a = sums.sum[8 * piece + 2 * word][2 * i + j];
                    float b = sums.sum[8 * piece + 2 * word + 1][2 * i + j];
                    made.words[word] = total > 0.0f ? packed(a / total, b / total) : 0u;
                }
                *(Piece*)(out + place[i] * SIZE + piece * 64 + lane % 4 * 16 + 8 * j) = made;
            }
    }
}

extern "C" __global__ void __launch_bounds__(128) attend_rows(
    T* out, const T* q, const T* cache_k, const T* cache_v, const int* positions,
    const int* sequences, const int* tables, int rows, int kv_heads, int columns, int pages,
    int window, int together, float scale
) {
    attend_tile<false>(out, nullptr, q, cache_k, cache_v, positions, sequences, tables, rows,
                       kv_heads, columns, pages, window, 0, together, scale);
}

extern "C" __global__ void __launch_bounds__(128, SIZE == 64 ? 3 : 2) attend_chunks(
    float* parts, const T* q, const T* cache_k, const T* cache_v, const int* positions,
    const int* sequences, const int* tables, int rows, int kv_heads, int columns, int pages,
    int window, int chunks, int together, float scale
) {
    attend_tile<true>(nullptr, parts, q, cache_k, cache_v, positions, sequences, tables, rows,
                      kv_heads, columns, pages, window, chunks, together, scale);
}

// A warp for each head of each row: the sum of its parts.
extern "C" __global__ void __launch_bounds__(128) merge(
    T* out, const float* parts, const int* positions, int rows, int heads, int columns, int window,
    int chunks
) {
    int lane = threadIdx.x % 32;
    long long number = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (number >= (long long)rows * heads) return;
    int position = positions[number / heads];
    float top = EMPTY, total = 0.0f, sum[SIZE / 32] = {};
    if (position >= 0 && position / PAGE < columns) {
        int low = window > 0 && position >= window ? position - window + 1 : 0;
        const float* told = parts + (long long)rows * heads * chunks * SIZE;
#pragma unroll 4
        for (int chunk = low / CHUNK; chunk <= position / CHUNK; chunk++) {
            long long at = number * chunks + chunk;
            float high = told[at * 2], highest = fmaxf(top, high);
            float old = exp2f(__fsub_rn(top, highest)), share = exp2f(__fsub_rn(high, highest));
            top = highest;
            total = added(total, old, told[at * 2 + 1], share);
            for (int i = 0; i < SIZE / 32; i++)
                sum[i] = added(sum[i], old, parts[at * SIZE + 32 * i + lane], share);
        }
    }
    for (int i = 0; i < SIZE / 32; i++)
        out[number * SIZE + 32 * i + lane] = down(total > 0.0f ? sum[i] / total : 0.0f);
}
"""
)
