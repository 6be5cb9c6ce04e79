// Sums and products of all elements of a row up to each.
//
// "scan" is launched with one block for each row, or with fewer, which take several in turn;
// "scan_short" with one thread for each row. A single long row is in parts, of "each" elements, one
// for a block: "total_parts" reduces them, and "scan_parts" scans each behind those before it. They
// may write where they read.

#include "chunks.cuh"
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

// Of what the first threads of a block have, all together.
template <class A, class OP> __device__ A reduced(A value, u32 threads) {
  __shared__ A values[THREADS];
  values[threadIdx.x] = value;
  __syncthreads();
  for (u32 step = THREADS / 2; step; step /= 2) {
    if (threadIdx.x < step && threadIdx.x + step < threads)
      values[threadIdx.x] = OP::of(values[threadIdx.x], values[threadIdx.x + step]);
    __syncthreads();
  }
  const A found = values[0];
  __syncthreads();
  return found;
}
__device__ u32 at_most_all(u64 threads) { return threads < THREADS ? (u32)threads : THREADS; }

template <class T, class A, class OP>
__global__ void __launch_bounds__(THREADS)
total_parts(A* totals, const T* source, u64 length, u64 each, u64 parts) {
  for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
    const u64 start = part * each, end = start + each < length ? start + each : length;
    A sum = A();
    for (u64 at = start; at < end; at += THREADS * ITEMS) {
      const u64 first = at + threadIdx.x * ITEMS;
      A items[ITEMS];
      load_items(items, source, first, end);
#pragma unroll
      for (int k = 0; k < ITEMS; ++k)
        if (first + k < end) sum = at == start && !k ? items[k] : OP::of(sum, items[k]);
    }
    sum = reduced<A, OP>(sum, at_most_all((end - start + ITEMS - 1) / ITEMS));
    if (!threadIdx.x) totals[part] = sum;
  }
}

template <class T, class A, class OP>
__global__ void __launch_bounds__(THREADS)
scan_parts(T* target, const T* source, const A* totals, u64 length, u64 each, u64 parts) {
  for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
    const u64 start = part * each, end = start + each < length ? start + each : length;
    A before = A();
    for (u64 at = threadIdx.x; at < part; at += THREADS)
      before = at == threadIdx.x ? totals[at] : OP::of(before, totals[at]);
    before = reduced<A, OP>(before, at_most_all(part));
    scan_row<T, A, OP>(target + start, source + start, end - start, before, part > 0);
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
