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

// T is an element, A what it is computed in.
template <class T, class A, class OP>
__global__ void __launch_bounds__(THREADS) scan(T* target, const T* source, u64 rows, u64 length) {
  __shared__ A sums[2][THREADS];
  __shared__ A last;
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const u64 start = row * length;
    for (u64 at = 0; at < length; at += THREADS * ITEMS) {
      const u64 first = at + threadIdx.x * ITEMS;
      const u64 left = first < length ? length - first : 0;
      const int mine = left < ITEMS ? (int)left : ITEMS;
      A value[ITEMS];
      for (int k = 0; k < mine; ++k) {
        const A now = load(source[start + first + k]);
        value[k] = k ? OP::of(value[k - 1], now) : now;
      }
      // Where threads have nothing, those before them have the end.
      int now = 0;
      if (mine) sums[0][threadIdx.x] = value[mine - 1];
      const u64 there = (length - at + ITEMS - 1) / ITEMS;
      const int busy = there < THREADS ? (int)there : THREADS;
      __syncthreads();
      for (int step = 1; step < busy; step *= 2) {
        if (threadIdx.x < busy) {
          const A other = sums[now][threadIdx.x];
          sums[1 - now][threadIdx.x] =
              threadIdx.x >= step ? OP::of(sums[now][threadIdx.x - step], other) : other;
        }
        now = 1 - now;
        __syncthreads();
      }
      for (int k = 0; k < mine; ++k) {
        A made = value[k];
        if (threadIdx.x) made = OP::of(sums[now][threadIdx.x - 1], made);
        if (at) made = OP::of(last, made);
        store(target[start + first + k], made);
      }
      __syncthreads();
      if (!threadIdx.x) last = at ? OP::of(last, sums[now][busy - 1]) : sums[now][busy - 1];
      __syncthreads();
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
