// The FFT lane's kernels: "move" between layouts and element types, "roll", "frequencies".
//
// Each is launched with one thread for each element of its target, or with fewer, which take
// several in turn. DIMS, the most dimensions, comes from Python, which packs the arguments.

#include "elements.cuh"
#include "types.cuh"

struct Dim { i64 size, target, source, extent; };
struct Moving {
  Dim dims[DIMS];
  double scale;
  i64 middle;
  int ndim, edge, conjugate;
};

// A thread for each element of the target, in its order. I is wide enough to count them.
template <class S, class T, class I>
__global__ void move(T* target, const S* source, u64 count,
                     Moving moving) {
  typedef typename Wide<T>::type A;
  const I step = (I)gridDim.x * blockDim.x;
  for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < (I)count; at += step) {
    I rest = at;
    i64 from = 0, to = 0;
    bool inside = true, edge = false;
    for (int d = moving.ndim - 1; d >= 0; --d) {
      const I size = (I)moving.dims[d].size;
      const I outer = d ? rest / size : 0;
      const i64 i = (i64)(rest - outer * size);
      rest = outer;
      from += i * moving.dims[d].source;
      to += i * moving.dims[d].target;
      inside &= i < moving.dims[d].extent;
      edge |= d == moving.edge && (i == 0 || i == moving.middle);
    }
    Pair<A> value = {(A)0, (A)0};
    if (inside) value = read<A>(source[from]);
    value.x *= (A)moving.scale;
    value.y *= (A)moving.scale;
    if (moving.conjugate) value.y = -value.y;
    if (edge) value.y = (A)0;
    write(target[to], value);
  }
}

struct Turn { i64 size, shift; };
struct Rolling { Turn turns[DIMS]; int ndim; };

template <class T>
__global__ void roll(T* __restrict__ target, const T* __restrict__ source, u64 count,
                     Rolling rolling) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    u64 rest = at;
    i64 from = 0, stride = 1;
    for (int d = rolling.ndim - 1; d >= 0; --d) {
      const u64 size = (u64)rolling.turns[d].size;
      const u64 outer = rest / size;
      u64 i = rest - outer * size + (u64)rolling.turns[d].shift;
      if (i >= size) i -= size;
      rest = outer;
      from += (i64)i * stride;
      stride *= (i64)size;
    }
    target[at] = source[from];
  }
}

__global__ void frequencies(double* target, u64 count, i64 n, double step, int half) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  const i64 positive = (n - 1) / 2 + 1;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) {
    const i64 i = (i64)at;
    target[at] = (double)(half || i < positive ? i : i - n) * step;
  }
}
