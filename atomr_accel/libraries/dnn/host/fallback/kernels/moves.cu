// Elements from one place to another: move<A, Y, T>.
//
// Element i of a walk is where its shape, counted with the last dimension fastest, and its steps
// say. Two walks of equal length are a reshape, a slice, a transpose, or a part of what is joined.
// Launched with one thread for each element, or with fewer, which take several in turn. DIMS, the
// most dimensions, comes from Python.

#include "access.cuh"
#include "types.cuh"

struct Walk { i64 first, ndim; i64 shape[DIMS]; i64 step[DIMS]; };

__device__ i64 place(const Walk& walk, i64 i) {
  i64 at = walk.first;
  for (i64 d = walk.ndim - 1; d >= 0; --d) {
    const i64 before = i / walk.shape[d];
    at += (i - before * walk.shape[d]) * walk.step[d];
    i = before;
  }
  return at;
}

template <class A, class Y, class T>
__global__ void move(Y* y, const T* x, Walk to, Walk from, i64 count) {
  const i64 threads = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads)
    put(y[place(to, i)], get<A>(x[place(from, i)]));
}
