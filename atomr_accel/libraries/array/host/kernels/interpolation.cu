// What is between points, on straight lines. Each operation rounds its result, as NumPy's do.
//
// It is launched with one thread for each element, or with fewer, which take several in turn.

#include "types.cuh"

template <int PARTS> struct Number { double part[PARTS]; };

// Numbers have PARTS: one, or two if they are complex.
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
    u64 found = 0;  // the last point that is not after x
    for (u64 rest = points; rest > 1; rest -= rest / 2)
      if (x >= places[found + rest / 2]) found += rest / 2;
    const double x0 = places[found];
    Number<PARTS> made = values[found];
    if (x != x && points > 1) {
      made = {x};
    } else if (found + 1 < points && x != x0) {
      const double x1 = places[found + 1], wide = x1 - x0;
      const Number<PARTS> next = values[found + 1];
#pragma unroll
      for (int k = 0; k < PARTS; ++k) {
        const double y0 = made.part[k], y1 = next.part[k], high = y1 - y0;
        const double slope = PARTS == 1 ? high / wide : __dmul_rn(high, 1 / wide);
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
