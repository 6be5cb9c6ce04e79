// The array lane's copies between layouts: "gather", and "tiles" where the axes along which
// elements follow each other differ.
//
// Both are launched with blocks of THREADS threads, as many as there is work for or fewer, which
// take more in turn. Axes are sorted by their steps in the target, the smallest last. A kernel is
// compiled for up to D axes; those that are not there have one element and are first.

#include "types.cuh"

template <int BYTES> struct Item;
template <> struct Item<1> { typedef unsigned char type; };
template <> struct Item<2> { typedef unsigned short type; };
template <> struct Item<4> { typedef u32 type; };
template <> struct Item<8> { typedef u64 type; };
struct alignas(16) Wide { u64 low, high; };
template <> struct Item<16> { typedef Wide type; };

// Steps are in bytes. Numbers below 2^31 are divided by extent with a product and a shift.
struct Axis {
  i64 target, source;
  u64 extent;
  u32 factor, shift;
};
template <int D> struct Axes { Axis axis[D]; };

__device__ u32 divided(u32 n, const Axis& axis) {
  return ((u32)((u64)n * axis.factor >> 32) + n) >> axis.shift;
}
__device__ u64 divided(u64 n, const Axis& axis) { return n / axis.extent; }

// Where an element is, counted in the target's order.
template <int D, class I>
__device__ void locate(I at, const Axes<D>& axes, i64& to, i64& from) {
  to = from = 0;
#pragma unroll(D > 4 ? 1 : D)
  for (int d = D - 1; d >= 0; --d) {
    I i = at;
    if (d) {
      at = divided(at, axes.axis[d]);
      i -= at * (I)axes.axis[d].extent;
    }
    to += (i64)i * axes.axis[d].target;
    from += (i64)i * axes.axis[d].source;
  }
}

// A thread has several elements under way at a time. I is wide enough to count all and those that
// a step over the end takes.
template <int BYTES, class I, int D>
__global__ void __launch_bounds__(THREADS)
gather(char* target, const char* source, u64 count, Axes<D> axes) {
  typedef typename Item<BYTES>::type T;
  const I step = (I)gridDim.x * blockDim.x * ITEMS;
  I first = (I)blockIdx.x * blockDim.x * ITEMS + threadIdx.x;
  for (; first < (I)count; first += step) {
    T value[ITEMS];
    i64 to[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const I at = first + k * blockDim.x;
      i64 from;
      if (at < (I)count) {
        locate<D>(at, axes, to[k], from);
        value[k] = *(const T*)(source + from);
      }
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
      if (first + k * blockDim.x < (I)count) *(T*)(target + to[k]) = value[k];
  }
}

// Squares of N by N elements go through shared memory. Columns follow each other in the target,
// rows in the source; axes are the others, counted in squares' batches.
template <int BYTES, int N, int D>
__global__ void __launch_bounds__(THREADS)
tiles(char* target, const char* source, u64 batches, Axis row, Axis column, Axes<D> axes) {
  typedef typename Item<BYTES>::type T;
  constexpr int EACH = THREADS / N;
  __shared__ T tile[N][N + (BYTES < 4 ? 4 / BYTES : 1)];
  const u32 down = (u32)((row.extent + N - 1) / N), across = (u32)((column.extent + N - 1) / N);
  const u32 count = (u32)batches * down * across;
  const int x = threadIdx.x % N, y = threadIdx.x / N;
  for (u32 at = blockIdx.x; at < count; at += gridDim.x) {
    const u32 rest = at / across, batch = rest / down;
    const i64 c = (i64)(at - rest * across) * N, r = (i64)(rest - batch * down) * N;
    i64 to, from;
    locate<D>(batch, axes, to, from);
    const char* of = source + from + (r + x) * row.source + c * column.source;
    T value[N / EACH];
#pragma unroll
    for (int k = 0; k < N / EACH; ++k) {
      const int i = y + k * EACH;
      if (r + x < (i64)row.extent && c + i < (i64)column.extent)
        value[k] = *(const T*)(of + i * column.source);
    }
#pragma unroll
    for (int k = 0; k < N / EACH; ++k) tile[y + k * EACH][x] = value[k];
    __syncthreads();
    char* there = target + to + r * row.target + (c + x) * column.target;
#pragma unroll
    for (int k = 0; k < N / EACH; ++k) {
      const int i = y + k * EACH;
      if (r + i < (i64)row.extent && c + x < (i64)column.extent)
        *(T*)(there + i * row.target) = tile[x][i];
    }
    __syncthreads();
  }
}
