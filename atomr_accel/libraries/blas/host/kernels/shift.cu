// Pivots: cuBLAS counts from one, everybody else here from zero.
//
// Launched with one thread for each element, or with fewer, which take several in turn.

#include "types.cuh"

template <class T> __global__ void shift(T* target, const T* source, u64 count, i64 delta) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step)
    target[at] = source[at] + (T)delta;
}
