// Reductions: reduce<Mode, A, Y, T>, for any layout and any axes.
//
// It reads elements of type T, joins them in the arithmetic type A, and writes a Y. A mode is a
// struct below, named as in graphs: "NORM1" is Norm1.
//
// Launched with a block of THREADS threads for each result, or with fewer blocks, which take
// several in turn. THREADS and DIMS, the most dimensions, come from Python, which packs the Dims.

#include "access.cuh"
#include "types.cuh"

__device__ double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }

// What it starts with, what it makes of a value, how it joins two of those, and what it makes of
// the sum of "count" values. NaN stays.
#define MODE(Name, START, VALUE, JOINED, FINISHED)                                       \
  struct Name {                                                                          \
    template <class A> __device__ static A start() { return (A)(START); }                \
    template <class A> __device__ static A of(A value) { return VALUE; }                 \
    template <class A> __device__ static A join(A sum, A next) { return JOINED; }        \
    template <class A> __device__ static A finish(A sum, i64 count) { return FINISHED; } \
  };

MODE(Add, 0, value, sum + next, sum)
MODE(Avg, 0, value, sum + next, sum / (A)count)
MODE(Mul, 1, value, sum * next, sum)
MODE(Max, -infinity(), value, next > sum || next != next ? next : sum, sum)
MODE(Min, infinity(), value, next < sum || next != next ? next : sum, sum)
MODE(Amax, 0, fabs(value), next > sum || next != next ? next : sum, sum)
MODE(Norm1, 0, fabs(value), sum + next, sum)
MODE(Norm2, 0, value * value, sum + next, sqrt(sum))
MODE(Squares, 0, value * value, sum + next, sum)

struct Dims { i64 count, ndim; i64 shape[DIMS]; i64 from[DIMS]; i64 to[DIMS]; };

__device__ void move(const Dims& dims, i64 i, i64& from, i64& to) {
  for (i64 d = dims.ndim - 1; d >= 0; --d) {
    const i64 before = i / dims.shape[d];
    const i64 index = i - before * dims.shape[d];
    i = before;
    from += index * dims.from[d];
    to += index * dims.to[d];
  }
}

template <class Mode, class A, class Y, class T>
__global__ void reduce(Y* y, const T* x, Dims kept, Dims summed) {
  __shared__ A parts[THREADS];
  for (i64 block = blockIdx.x; block < kept.count; block += gridDim.x) {
    i64 from = 0, to = 0, nowhere = 0;
    move(kept, block, from, to);
    A sum = Mode::template start<A>();
    for (i64 i = threadIdx.x; i < summed.count; i += blockDim.x) {
      i64 at = from;
      move(summed, i, at, nowhere);
      sum = Mode::join(sum, Mode::of(get<A>(x[at])));
    }
    __syncthreads();
    parts[threadIdx.x] = sum;
    for (int half = blockDim.x / 2; half; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half)
        parts[threadIdx.x] = Mode::join(parts[threadIdx.x], parts[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) put(y[to], Mode::finish(parts[0], summed.count));
  }
}
