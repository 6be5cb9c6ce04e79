// Sums and products of all elements of a row up to each.
//
// "scan" is launched with one block for each row, or with fewer, which take several in turn;
// "scan_short" with one thread for each row. They may write where they read.

#include "conversions.cuh"
#include "types.cuh"

template <class T> struct Pair { T real, imag; };
typedef Pair<float> c64;
typedef Pair<double> c128;

template <class T> __device__ T load(T value) { return value; }
__device__ float load(h16 value) { return widen(value); }
__device__ float load(b16 value) { return widen(value); }
template <class T, class A> __device__ void store(T& target, A value) { target = (T)value; }
__device__ void store(h16& target, float value) { narrow(target, value); }
__device__ void store(b16& target, float value) { narrow(target, value); }

struct Add {
  template <class A> static __device__ A of(A a, A b) { return a + b; }
  template <class T> static __device__ Pair<T> of(Pair<T> a, Pair<T> b) {
    return {a.real + b.real, a.imag + b.imag};
  }
};
struct Multiply {
  template <class A> static __device__ A of(A a, A b) { return a * b; }
  template <class T> static __device__ Pair<T> of(Pair<T> a, Pair<T> b) {
    return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
  }
};

// What a thread some before this one in its warp has.
template <class A> __device__ A from_before(A value, int step) {
  return (A)__shfl_up_sync(~0u, value, step);
}
template <class T> __device__ Pair<T> from_before(Pair<T> value, int step) {
  return {from_before(value.real, step), from_before(value.imag, step)};
}

// T is an element, A what it is computed in. A thread loads what comes next while the others add.
template <class T, class A, class OP>
__global__ void __launch_bounds__(THREADS) scan(T* target, const T* source, u64 rows, u64 length) {
  constexpr int WARPS = THREADS / 32;
  __shared__ A totals[2][WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int now = 0;
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = source + row * length;
    T* to = target + row * length;
    A next[ITEMS], last = A();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const u64 at = threadIdx.x * ITEMS + k;
      next[k] = at < length ? load(from[at]) : A();
    }
    for (u64 start = 0; start < length; start += THREADS * ITEMS) {
      const u64 first = start + threadIdx.x * ITEMS;
      A value[ITEMS];
#pragma unroll
      for (int k = 0; k < ITEMS; ++k) {
        value[k] = k ? OP::of(value[k - 1], next[k]) : next[k];
        const u64 at = first + THREADS * ITEMS + k;
        next[k] = at < length ? load(from[at]) : A();
      }
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
      bool any = start > 0, some = any;
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
        if (first + k < length) store(to[first + k], some ? OP::of(before, value[k]) : value[k]);
      last = all;
      now = 1 - now;
    }
  }
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
