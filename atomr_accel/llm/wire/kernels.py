"""Kernels of a layer: normalization, rotation into the cache, and attention to pages.

Each row is computed by itself, in an order that depends on its position alone. So its results are
the same in any batch, and however a prompt is cut into chunks.

Macros are ``KIND`` (0 for float32, 1 for float16, 2 for bfloat16), ``SIZE`` (of a head), and
``HEADS`` (heads of queries that a block computes, which share keys).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

THREADS: Final = 128
"""Threads of a block of any of the kernels but the last: four warps."""

CHOOSERS: Final = 1024
"""Threads of a block that chooses a token."""

SOURCE: Final = r"""
#if KIND == 1
#include <cuda_fp16.h>
typedef __half T;
__device__ __forceinline__ float up(T x) { return __half2float(x); }
__device__ __forceinline__ T down(float x) { return __float2half(x); }
#elif KIND == 2
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
__device__ __forceinline__ float up(T x) { return __bfloat162float(x); }
__device__ __forceinline__ T down(float x) { return __float2bfloat16(x); }
#else
typedef float T;
__device__ __forceinline__ float up(T x) { return x; }
__device__ __forceinline__ T down(float x) { return x; }
#endif

#define WARPS 4
#define PER ((SIZE + 31) / 32)

// Numbers that are one load, or two, where a row has whole ones.
template <class X, int count> struct alignas(16) Several { X each[count]; };

// The sum of a number of each lane, in all lanes.
__device__ __forceinline__ float together(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// A block for each row: divide by the root of the mean square, and multiply by weights.
extern "C" __global__ void __launch_bounds__(128) norm_rows(
    T* out, const T* x, const T* weight, int rows, int size, float epsilon
) {
    __shared__ float parts[WARPS];
    int row = blockIdx.x;
    if (row >= rows) return;
    const T* from = x + (long long)row * size;
    T* to = out + (long long)row * size;
    typedef Several<T, 8> Eight;
    int eights = size % 8 == 0 ? size / 8 : 0;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < eights; i += 32 * WARPS) {
        Eight values = ((const Eight*)from)[i];
        for (int j = 0; j < 8; j++) sum += up(values.each[j]) * up(values.each[j]);
    }
    for (int i = 8 * eights + threadIdx.x; i < size; i += 32 * WARPS) {
        float value = up(from[i]);
        sum += value * value;
    }
    sum = together(sum);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int warp = 0; warp < WARPS; warp++) sum += parts[warp];
    float factor = 1.0f / sqrtf(sum / (float)size + epsilon);
    for (int i = threadIdx.x; i < eights; i += 32 * WARPS) {
        Eight values = ((const Eight*)from)[i], weights = ((const Eight*)weight)[i];
        for (int j = 0; j < 8; j++)
            values.each[j] =
                down(up(weights.each[j]) * up(down(up(values.each[j]) * factor)));
        ((Eight*)to)[i] = values;
    }
    for (int i = 8 * eights + threadIdx.x; i < size; i += 32 * WARPS)
        to[i] = down(up(weight[i]) * up(down(up(from[i]) * factor)));
}

// A warp for each head of each row. Heads are those of queries, then of keys, then of values.
// Queries and keys are normalized if that is wanted, and turned. Keys and values go to the cache.
extern "C" __global__ void __launch_bounds__(128) turn(
    T* q, T* cache_k, T* cache_v, const T* qkv, const T* weights, const float* table,
    const int* positions, const int* slots, int rows, int heads, int kv_heads, int context,
    int limit, int normed, float epsilon
) {
    int all = heads + 2 * kv_heads;
    long long number = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (number >= (long long)rows * all) return;
    int row = (int)(number / all), head = (int)(number % all);
    const T* from = qkv + number * SIZE;
    int position = positions[row], slot = slots[row];
    if (position < 0 || position >= context) return;
    T* to;
    if (head < heads) {
        to = q + ((long long)row * heads + head) * SIZE;
    } else {
        if (slot < 0 || slot >= limit) return;
        int which = (head - heads) % kv_heads;
        to = (head < heads + kv_heads ? cache_k : cache_v)
            + ((long long)slot * kv_heads + which) * SIZE;
    }
    if (head >= heads + kv_heads) {
        for (int i = lane; i < SIZE; i += 32) to[i] = from[i];
        return;
    }
    float factor = 1.0f;
    const T* weight = weights + (head < heads ? 0 : SIZE);
    if (normed) {
        float sum = 0.0f;
        for (int i = lane; i < SIZE; i += 32) {
            float value = up(from[i]);
            sum += value * value;
        }
        factor = 1.0f / sqrtf(together(sum) / (float)SIZE + epsilon);
    }
    const float* angles = table + (long long)position * SIZE;
    for (int i = lane; i < SIZE / 2; i += 32) {
        float a = up(from[i]), b = up(from[i + SIZE / 2]);
        if (normed) {
            a = up(down(up(weight[i]) * up(down(a * factor))));
            b = up(down(up(weight[i + SIZE / 2]) * up(down(b * factor))));
        }
        float cosine = angles[i], sine = angles[SIZE / 2 + i];
        to[i] = down(a * cosine - b * sine);
        to[i + SIZE / 2] = down(b * cosine + a * sine);
    }
}

// A block for each row and HEADS heads of its query. Warps take keys by turns, and their sums are
// added in the order of warps.
extern "C" __global__ void __launch_bounds__(128) attend(
    T* out, const T* q, const T* cache_k, const T* cache_v, const int* positions,
    const int* sequences, const int* tables, int rows, int heads, int kv_heads, int columns,
    int page_size, int pages, int window, float scale
) {
    __shared__ float sums[WARPS][HEADS][SIZE];
    __shared__ float parts[WARPS][HEADS], tops[WARPS][HEADS];
    int blocks = heads / HEADS;
    int row = blockIdx.x / blocks, first_head = blockIdx.x % blocks * HEADS;
    if (row >= rows) return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int kv_head = first_head / (heads / kv_heads);
    int position = positions[row];
    long long place = ((long long)row * heads + first_head) * SIZE;
    if (position < 0 || position / page_size >= columns) {
        for (int i = threadIdx.x; i < HEADS * SIZE; i += 32 * WARPS) out[place + i] = down(0.0f);
        return;
    }
    float query[HEADS][PER], sum[HEADS][PER], part[HEADS], top[HEADS];
    for (int head = 0; head < HEADS; head++) {
        part[head] = 0.0f;
        top[head] = -1e30f;
        for (int j = 0; j < PER; j++) {
            int i = lane + 32 * j;
            query[head][j] = i < SIZE ? up(q[place + head * SIZE + i]) * scale : 0.0f;
            sum[head][j] = 0.0f;
        }
    }
    const int* table = tables + (long long)sequences[row] * columns;
    int first = window > 0 && position >= window ? position - window + 1 : 0;
    for (int key = first + warp; key <= position; key += WARPS) {
        int page = table[key / page_size];
        if (page < 0 || page >= pages) continue;
        long long from =
            (((long long)page * page_size + key % page_size) * kv_heads + kv_head) * SIZE;
        float keys[PER], values[PER];
        for (int j = 0; j < PER; j++) {
            int i = lane + 32 * j;
            keys[j] = i < SIZE ? up(cache_k[from + i]) : 0.0f;
            values[j] = i < SIZE ? up(cache_v[from + i]) : 0.0f;
        }
        for (int head = 0; head < HEADS; head++) {
            float score = 0.0f;
            for (int j = 0; j < PER; j++) score += query[head][j] * keys[j];
            score = together(score);
            float most = fmaxf(top[head], score);
            float old = expf(top[head] - most), share = expf(score - most);
            top[head] = most;
            part[head] = part[head] * old + share;
            for (int j = 0; j < PER; j++) sum[head][j] = sum[head][j] * old + share * values[j];
        }
    }
    for (int head = 0; head < HEADS; head++) {
        for (int j = 0; j < PER; j++) {
            int i = lane + 32 * j;
            if (i < SIZE) sums[warp][head][i] = sum[head][j];
        }
        if (lane == 0) {
            parts[warp][head] = part[head];
            tops[warp][head] = top[head];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HEADS * SIZE; i += 32 * WARPS) {
        int head = i / SIZE;
        float most = tops[0][head], total = 0.0f, value = 0.0f;
        for (int each = 1; each < WARPS; each++) most = fmaxf(most, tops[each][head]);
        for (int each = 0; each < WARPS; each++) {
            float share = expf(tops[each][head] - most);
            total += share * parts[each][head];
            value += share * sums[each][head][i % SIZE];
        }
        out[place + i] = down(total > 0.0f ? value / total : 0.0f);
    }
}

// A block for each row of logits: a token by its probability, or that of the largest logit.
// A row of choices is a temperature and a number from 0 to 1, both double. Sums of parts of the row
// are added in the order of tokens, so that the token follows from the row and its choice alone.
extern "C" __global__ void __launch_bounds__(1024) choose_rows(
    int* out, const float* logits, const int* choices, int rows, int size
) {
    __shared__ float tops[32];
    __shared__ int places[32], wrong[32];
    __shared__ double sums[1024], groups[32];
    int row = blockIdx.x, warps = blockDim.x / 32;
    if (row >= rows) return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* from = logits + (long long)row * size;
    union { int words[4]; double values[2]; } choice;
    for (int i = 0; i < 4; i++) choice.words[i] = choices[4ll * row + i];
    const float largest = 3.402823466e38f;
    float top = -largest;
    int place = -1, bad = 0;
    typedef Several<float, 4> Four;
    int fours = size % 4 == 0 ? size / 4 : 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < fours; i += blockDim.x) {
        Four values = ((const Four*)from)[i];
        for (int j = 0; j < 4; j++) {
            if (!(values.each[j] <= largest)) bad = 1;
            if (values.each[j] > top) { top = values.each[j]; place = 4 * i + j; }
        }
    }
    for (int i = 4 * fours + threadIdx.x; i < size; i += blockDim.x) {
        float value = from[i];
        if (!(value <= largest)) bad = 1;
        if (value > top) { top = value; place = i; }
    }
    for (int step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, step);
        int there = __shfl_xor_sync(0xffffffffu, place, step);
        bad |= __shfl_xor_sync(0xffffffffu, bad, step);
        if (there >= 0 && (place < 0 || other > top || (other == top && there < place))) {
            top = other;
            place = there;
        }
    }
    if (lane == 0) { tops[warp] = top; places[warp] = place; wrong[warp] = bad; }
    __syncthreads();
    for (int each = 0; each < warps; each++) {
        bad |= wrong[each];
        if (places[each] < 0) continue;
        if (place < 0 || tops[each] > top || (tops[each] == top && places[each] < place)) {
            top = tops[each];
            place = places[each];
        }
    }
    double temperature = choice.values[0];
    if (bad || place < 0 || temperature == 0.0) {
        if (threadIdx.x == 0) out[row] = bad ? -1 : place;
        return;
    }
    int length = 32 * ((size + 32 * 1024 - 1) / (32 * 1024));
    for (int part = warp; part < 1024; part += warps) {
        double sum = 0.0;
        for (int i = part * length + lane; i < (part + 1) * length && i < size; i += 32)
            sum += exp(((double)from[i] - (double)top) / temperature);
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) sums[part] = sum;
    }
    __syncthreads();
    for (int group = threadIdx.x; group < 32; group += blockDim.x) {
        double sum = 0.0;
        for (int i = 0; i < 32; i++) sum += sums[32 * group + i];
        groups[group] = sum;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    double total = 0.0, before = 0.0;
    for (int i = 0; i < 32; i++) total += groups[i];
    double target = choice.values[1] * total;
    int group = 0, part = 0, last = place;
    while (group < 31 && !(before + groups[group] > target)) before += groups[group++];
    part = 32 * group;
    while (part < 32 * group + 31 && !(before + sums[part] > target)) before += sums[part++];
    for (int i = part * length; i < (part + 1) * length && i < size; i++) {
        double weight = exp(((double)from[i] - (double)top) / temperature);
        before += weight;
        if (weight > 0.0) last = i;
        if (before > target) break;
    }
    out[row] = last;
}
"""


def _single(x: Array) -> Array:
    return x.astype(np.float32, copy=False)


def _normed(x: Array, weight: Array, epsilon: float) -> Array:
    """Return float32 numbers, rounded as the dtype of ``x`` where the kernels round."""
    wide = _single(x)
    root = np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float32(epsilon))
    rounded = _single((wide * (1 / root)).astype(x.dtype))
    return _single((_single(weight) * rounded).astype(x.dtype))


def norm_rows(out: Array, x: Array, weight: Array, rows: int, size: int, epsilon: float) -> None:
    """Divide rows by the root of their mean square, and multiply by weights."""
    x, out = x.reshape(rows, size), out.reshape(rows, size)
    out[...] = _normed(x, weight, epsilon)


def turn(
    q: Array,
    cache_k: Array,
    cache_v: Array,
    qkv: Array,
    weights: Array,
    table: Array,
    positions: Array,
    slots: Array,
    rows: int,
    heads: int,
    kv_heads: int,
    context: int,
    limit: int,
    normed: int,
    epsilon: float,
) -> None:
    """Turn queries and keys by their positions, and write keys and values to the cache."""
    there = (positions >= 0) & (positions < context)
    kept = there & (slots >= 0) & (slots < limit)
    size = qkv.size // rows // (heads + 2 * kv_heads)
    x = qkv.reshape(rows, -1, size)
    angles = table.reshape(-1, 2, 1, size // 2)
    q = q.reshape(rows, heads, size)
    parts = (
        (q, np.arange(rows), there, x[:, :heads], 0),
        (cache_k.reshape(-1, kv_heads, size), slots, kept, x[:, heads : heads + kv_heads], 1),
    )
    for to, places, chosen, given, which in parts:
        values = given[chosen]
        if normed:
            values = _normed(values, weights.reshape(2, size)[which], epsilon)
        a, b = np.split(_single(values), 2, axis=-1)
        cosine, sine = np.moveaxis(angles[positions[chosen]], 1, 0)
        to[places[chosen]] = np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)
    cache_v.reshape(-1, kv_heads, size)[slots[kept]] = x[kept, heads + kv_heads :]


def attend(
    out: Array,
    q: Array,
    cache_k: Array,
    cache_v: Array,
    positions: Array,
    sequences: Array,
    tables: Array,
    rows: int,
    heads: int,
    kv_heads: int,
    columns: int,
    page_size: int,
    pages: int,
    window: int,
    scale: float,
) -> None:
    """Attention of each row to the keys of its sequence, up to its own position."""
    size = q.size // rows // heads
    queries = _single(q.reshape(rows, kv_heads, heads // kv_heads, size)) * np.float32(scale)
    results = out.reshape(rows, kv_heads, heads // kv_heads, size)
    results[...] = 0
    tables = tables.reshape(-1, columns)
    there = np.flatnonzero((positions >= 0) & (positions // page_size < columns))
    for sequence in np.unique(sequences[there]).tolist():
        mine = there[sequences[there] == sequence]
        count = int(positions[mine].max()) // page_size + 1
        taken = tables[sequence, :count]
        k, v = (
            _single(cache.reshape(pages, page_size, kv_heads, size)[taken])
            .reshape(count * page_size, kv_heads, size)
            .swapaxes(0, 1)
            for cache in (cache_k, cache_v)
        )
        for row in mine.tolist():  # one by one, so that none depends on the others
            last = int(positions[row]) + 1
            first = last - int(window) if 0 < window < last else 0
            scores = queries[row] @ k[:, first:last].swapaxes(1, 2)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            results[row] = (shares @ v[:, first:last]) / shares.sum(-1, keepdims=True)


def choose_rows(out: Array, logits: Array, choices: Array, rows: int, size: int) -> None:
    """Choose a token for each row by its probability, or that of the largest logit."""
    given = np.ascontiguousarray(choices).view(np.float64).reshape(rows, 2)
    for row, each in enumerate(logits.reshape(rows, size)):
        place = int(each.argmax())  # NaN is the largest
        temperature, number = given[row]
        if not np.isfinite(each[place]):
            place = -1
        elif temperature:
            wide = each.astype(np.float64)
            sums = np.cumsum(np.exp((wide - wide[place]) / temperature))
            found = int(np.searchsorted(sums, number * sums[-1], side="right"))
            place = found if found < size else place
        out[row] = place


TWINS: Final[Mapping[str, Callable[..., None]]] = {
    "norm_rows": norm_rows,
    "turn": turn,
    "attend": attend,
    "choose_rows": choose_rows,
}
"""Functions that do the same as the kernels, with NumPy arrays."""
