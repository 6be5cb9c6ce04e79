// Searches in a sorted row: whether elements are in it, and what is between points, on straight
// lines.
//
// They are launched with one thread for each element, or with fewer, which take several in turn.

#include "conversions.cuh"
#include "types.cuh"

typedef unsigned char flag;
template <class T> __device__ T wide(T value) { return value; }
__device__ float wide(h16 value) { return widen(value); }
__device__ float wide(b16 value) { return widen(value); }

// The last element that is not more than x, or the first. NaN are at the end of a row.
template <class T, class W> __device__ u64 last_up_to(const T* row, u64 size, W x) {
  u64 found = 0;
  for (u64 rest = size; rest > 1; rest -= rest / 2)
    if (x >= wide(row[found + rest / 2])) found += rest / 2;
  return found;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
among(flag* target, const T* given, const T* row, u64 count, u64 size, u64 invert) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const auto x = wide(given[at]);
    target[at] = (wide(row[last_up_to(row, size, x)]) == x) != (invert != 0);
  }
}

template <int PARTS> struct Number { double part[PARTS]; };

// Numbers have PARTS: one, or two if they are complex. Operations round as those of NumPy.
template <class T, int PARTS>
__global__ void __launch_bounds__(THREADS)
interpolated(Number<PARTS>* target, const T* given, const double* places,
             const Number<PARTS>* values, const Number<PARTS>* left, const Number<PARTS>* right,
             u64 count, u64 points) {
  const double first = places[0], last = places[points - 1];
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const double x = (double)given[at];
    if (x < first || x > last) {
      target[at] = x < first ? *left : *right;
      continue;
    }
    const u64 found = last_up_to(places, points, x);
    const double x0 = places[found];
    Number<PARTS> made = values[found];
    if (x != x && points > 1) {
      made = {x};
    } else if (found + 1 < points && x != x0) {
      const double x1 = places[found + 1], width = x1 - x0;
      const Number<PARTS> next = values[found + 1];
#pragma unroll
      for (int k = 0; k < PARTS; ++k) {
        const double y0 = made.part[k], y1 = next.part[k], high = y1 - y0;
        const double slope = PARTS == 1 ? high / width : __dmul_rn(high, 1 / width);
        double y = __dadd_rn(__dmul_rn(slope, x - x0), y0);
        if (y != y) {
          y = __dadd_rn(__dmul_rn(slope, x - x1), y1);
          if (y != y && y0 == y1) y = y0;
        }
        made.part[k] = y;
      }
    }
    target[at] = made;
  }
}
