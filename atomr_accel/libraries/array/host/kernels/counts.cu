// How often each number is there. Blocks count in memory of their own: numbers are few where many
// elements want the same one.

#include "types.cuh"

template <class T>
__global__ void __launch_bounds__(THREADS)
counted(u64* counts, const T* given, u64 items, u64 size) {
  __shared__ u32 mine[SHARED];
  const u64 step = (u64)gridDim.x * blockDim.x, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (size > SHARED) {
    for (u64 at = first; at < items; at += step) {
      const u64 number = (u64)(i64)given[at];  // what is negative is beyond all
      if (number < size) atomicAdd(counts + number, (u64)1);
    }
    return;
  }
  // As many counts as there is room for, so that fewer threads want the same.
  const u32 few = (u32)size, copies = SHARED / few < COPIES ? SHARED / few : COPIES;
  for (u32 at = threadIdx.x; at < few * copies; at += blockDim.x) mine[at] = 0;
  __syncthreads();
  const u32 copy = threadIdx.x % copies;
  for (u64 at = first; at < items; at += step) {
    const u64 number = (u64)(i64)given[at];
    if (number < size) atomicAdd(mine + (u32)number * copies + copy, 1u);
  }
  __syncthreads();
  for (u32 at = threadIdx.x; at < few; at += blockDim.x) {
    u64 sum = 0;
    for (u32 k = 0; k < copies; ++k) sum += mine[at * copies + k];
    if (sum) atomicAdd(counts + at, sum);
  }
}
