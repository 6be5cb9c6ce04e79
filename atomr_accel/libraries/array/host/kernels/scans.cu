// Sums and products of all elements of a row up to each.
//
// "scan" is launched with one block for each row, or with fewer, which take several in turn;
// "scan_short" with one thread for each row, "scan_tiles" for a single long row. They may write
// where they read.

#include "chunks.cuh"
#include "scan_tiles.cuh"
#include "types.cuh"

template <class T, class A>
__device__ void load_items(A (&items)[ITEMS], const T* from, u64 first, u64 length) {
  T there[ITEMS];
  read_items(there, from, first, length);
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) items[k] = first + k < length ? load(there[k]) : A();
}
template <class T, class A>
__device__ void store_items(T* to, const A (&items)[ITEMS], u64 first, u64 length) {
  T there[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) store(there[k], items[k]);
  write_items(to, there, first, length);
}

// All threads of a block scan a row, behind "last" if there is "any" before it. A thread loads what
// comes next while the others add.
template <class T, class A, class OP>
__device__ void scan_row(T* to, const T* from, u64 length, A last, bool any_before) {
  constexpr int WARPS = THREADS / 32;
  __shared__ A totals[2][WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int now = 0;
  A next[ITEMS];
  load_items(next, from, threadIdx.x * ITEMS, length);
  for (u64 start = 0; start < length; start += THREADS * ITEMS) {
    const u64 first = start + threadIdx.x * ITEMS;
    A value[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) value[k] = k ? OP::of(value[k - 1], next[k]) : next[k];
    load_items(next, from, first + THREADS * ITEMS, length);
    // Behind the end there is nothing that counts, since nothing comes after it.
    A sum = value[ITEMS - 1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const A other = from_before(sum, step);
      if (lane >= step) sum = OP::of(other, sum);
    }
    const A in_warp = from_before(sum, 1);
    if (lane == 31) totals[now][warp] = sum;
    __syncthreads();
    bool any = any_before || start > 0, some = any;
    A all = last, before = last;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      if (w == warp) before = all, some = any;
      all = any ? OP::of(all, totals[now][w]) : totals[now][w];
      any = true;
    }
    if (lane) before = some ? OP::of(before, in_warp) : in_warp, some = true;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
      if (some) value[k] = OP::of(before, value[k]);
    store_items(to, value, first, length);
    last = all;
    now = 1 - now;
  }
  __syncthreads();
}

// T is an element, A what it is computed in.
template <class T, class A, class OP>
__global__ void __launch_bounds__(THREADS) scan(T* target, const T* source, u64 rows, u64 length) {
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x)
    scan_row<T, A, OP>(target + row * length, source + row * length, length, A(), false);
}

template <class T, class A, class OP>
__global__ void __launch_bounds__(THREADS)
scan_short(T* target, const T* source, u64 rows, u64 length) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += step) {
    A made = load(source[row * length]);
    store(target[row * length], made);
    for (u64 at = row * length + 1; at < (row + 1) * length; ++at) {
      made = OP::of(made, (A)load(source[at]));
      store(target[at], made);
    }
  }
}
