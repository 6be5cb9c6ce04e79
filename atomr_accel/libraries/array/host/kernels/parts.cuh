// What is counted in parts, and then put in a row: a part has "each" elements, a multiple of
// THREADS * ITEMS. A block takes one part, or several in turn.
#pragma once

#include "types.cuh"

// Sums of all threads before each, and of all.
__device__ u32 before(u32 value, u32& total) {
  __shared__ u32 sums[2][THREADS];
  int now = 0;
  sums[0][threadIdx.x] = value;
  __syncthreads();
  for (int step = 1; step < THREADS; step *= 2) {
    const u32 other = threadIdx.x >= step ? sums[now][threadIdx.x - step] : 0;
    sums[1 - now][threadIdx.x] = sums[now][threadIdx.x] + other;
    now = 1 - now;
    __syncthreads();
  }
  total = sums[now][THREADS - 1];
  const u32 found = sums[now][threadIdx.x] - value;
  __syncthreads();
  return found;
}

// The sum of what all threads have.
__device__ u64 sum_of(u64 mine) {
  __shared__ u64 sums[THREADS];
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (int step = THREADS / 2; step; step /= 2) {
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    __syncthreads();
  }
  const u64 found = sums[0];
  __syncthreads();
  return found;
}

// How many there are in all parts before one: each block looks for itself, sooner than another
// kernel is launched.
__device__ u64 before_part(const i64* counts, u64 part) {
  u64 mine = 0;
  for (u64 at = threadIdx.x; at < part; at += THREADS) mine += counts[at];
  return sum_of(mine);
}
