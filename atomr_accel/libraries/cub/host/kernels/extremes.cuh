// The position of the first of the extreme elements of a row, the LARGEST or the smallest ones.
// NaN are beyond all others. Blocks of THREADS threads read 16 bytes at a time and write what they
// have found; the block that is the last to do so compares that. V is the type in which elements of
// T are compared.
#pragma once

#include "access.cuh"
#include "types.cuh"

// A value and its place; -1 where there is none yet.
template <class V> struct Found {
  V value;
  i64 at;
};
template <class T> union Pack {
  uint4 all;
  T each[16 / sizeof(T)];
};

template <bool LARGEST, class V> __device__ bool beyond(V a, V b) {
  return (LARGEST ? b < a : a < b) | (a != a & b == b);  // without branches
}
template <bool LARGEST, class V> __device__ Found<V> better(Found<V> a, Found<V> b) {
  if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
  if (beyond<LARGEST>(a.value, b.value)) return a;
  if (beyond<LARGEST>(b.value, a.value)) return b;
  return a.at < b.at ? a : b;
}
// Of all threads of a block; the first one gets it.
template <bool LARGEST, class V> __device__ Found<V> best_of_block(Found<V> mine) {
  __shared__ Found<V> found[THREADS];
  found[threadIdx.x] = mine;
#pragma unroll
  for (int half = THREADS / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      found[threadIdx.x] = better<LARGEST>(found[threadIdx.x], found[threadIdx.x + half]);
  }
  return found[0];
}

// What blocks have found, and how many have; 0 again after each launch. Launches that may run at
// the same time must be of different modules, whose memory this is.
template <class V> __device__ Found<V> found_by_blocks[PARTS];
static __device__ u32 blocks_done;

template <class T, class V, bool LARGEST>
__global__ void __launch_bounds__(THREADS) extreme(i64* position, const T* given, i64 count) {
  constexpr int N = 16 / sizeof(T);
  const i64 until = (i64)(-(u64)given % 16 / sizeof(T)), head = until < count ? until : count;
  const i64 packs = (count - head) / N, step = (i64)gridDim.x * THREADS * PACKS;
  const uint4* all = (const uint4*)(given + head);
  Found<V> best = {V(), -1};
  i64 first = (i64)blockIdx.x * THREADS * PACKS + threadIdx.x;
  for (; first < packs; first += step) {
    Pack<T> some[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const i64 at = first + k * THREADS;
      some[k].all = all[at < packs ? at : packs - 1];
    }
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      const i64 at = first + k * THREADS;
      V value = get<V>(some[k].each[0]);
#pragma unroll
      for (int i = 1; i < N; ++i) {
        const V other = get<V>(some[k].each[i]);
        value = (LARGEST ? value < other : other < value) | other != other ? other : value;
      }
      const bool more = at < packs & (best.at < 0 | beyond<LARGEST>(value, best.value));
      best = more ? Found<V>{value, at} : best;
    }
  }
  if (best.at >= 0) {  // the place in its pack
    Pack<T> pack;
    pack.all = all[best.at];
    int place = 0;
#pragma unroll
    for (int i = N - 1; i >= 0; --i)
      if (!beyond<LARGEST>(best.value, get<V>(pack.each[i]))) place = i;
    best.at = head + best.at * N + place;
  }
  if (blockIdx.x == 0 && threadIdx.x < count - packs * N) {  // before and after the packs
    const i64 at = threadIdx.x < head ? threadIdx.x : threadIdx.x + packs * N;
    best = better<LARGEST>(best, Found<V>{get<V>(given[at]), at});
  }
  best = best_of_block<LARGEST>(best);
  if (gridDim.x > 1) {
    volatile Found<V>* parts = found_by_blocks<V>;
    __shared__ bool last;
    if (threadIdx.x == 0) {
      parts[blockIdx.x].value = best.value;
      parts[blockIdx.x].at = best.at;
      __threadfence();
      last = atomicInc(&blocks_done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    Found<V> some[PARTS / THREADS];
#pragma unroll
    for (int k = 0; k < PARTS / THREADS; ++k) {  // all under way at a time
      const u32 at = threadIdx.x + k * THREADS;
      some[k].value = parts[at].value;
      some[k].at = at < gridDim.x ? parts[at].at : -1;
    }
#pragma unroll
    for (int k = 0; k < PARTS / THREADS; ++k) best = better<LARGEST>(k ? best : some[0], some[k]);
    best = best_of_block<LARGEST>(best);
  }
  if (threadIdx.x == 0) *position = best.at;
}
