// Where flags are set, in their order: "count" counts in parts, "place" adds these up, and
// "compact" writes positions.
//
// A part has "each" flags, a multiple of THREADS * ITEMS. A block takes one part, or several in
// turn; of "place" one block does all.

#include "types.cuh"

// How many of ITEMS flags are set.
__device__ u32 set_in(const unsigned char* flags, u64 first, u64 end) {
  u32 found = 0;
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) found += first + k < end && flags[first + k];
  return found;
}

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

__global__ void __launch_bounds__(THREADS)
count(i64* counts, const unsigned char* flags, u64 size, u64 each, u64 parts) {
  __shared__ u64 sums[THREADS];
  for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
    const u64 start = part * each, end = start + each < size ? start + each : size;
    u64 mine = 0;
    for (u64 at = start; at < end; at += THREADS * ITEMS)
      mine += set_in(flags, at + threadIdx.x * ITEMS, end);
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (int step = THREADS / 2; step; step /= 2) {
      if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
      __syncthreads();
    }
    if (!threadIdx.x) counts[part] = (i64)sums[0];
    __syncthreads();
  }
}

// Each part's first place, and behind them all of them together.
__global__ void __launch_bounds__(THREADS) place(i64* counts, u64 parts) {
  __shared__ i64 sums[PARTS];
  if (blockIdx.x) return;
  for (u64 at = threadIdx.x; at < parts; at += blockDim.x) sums[at + 1] = counts[at];
  __syncthreads();
  if (!threadIdx.x) {
    sums[0] = 0;
    for (u64 at = 0; at < parts; ++at) sums[at + 1] += sums[at];
  }
  __syncthreads();
  for (u64 at = threadIdx.x; at <= parts; at += blockDim.x) counts[at] = sums[at];
}

__global__ void __launch_bounds__(THREADS)
compact(i64* positions, const i64* counts, const unsigned char* flags, u64 size, u64 each,
        u64 parts) {
  for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
    const u64 start = part * each, end = start + each < size ? start + each : size;
    u64 place = counts[part];
    for (u64 at = start; at < end; at += THREADS * ITEMS) {
      const u64 first = at + threadIdx.x * ITEMS;
      u32 total;
      u64 to = place + before(set_in(flags, first, end), total);
#pragma unroll
      for (int k = 0; k < ITEMS; ++k)
        if (first + k < end && flags[first + k] && to < size) positions[to++] = (i64)(first + k);
      place += total;
    }
  }
}
