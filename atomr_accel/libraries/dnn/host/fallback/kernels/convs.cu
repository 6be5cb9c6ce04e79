// Convolutions ("forward") and their gradients by "images" and "filters", directly.
//
// Each is launched with one thread for each element of its result, which sums what it is made
// of, or with fewer, which take several in turn.

#include "access.cuh"
#include "types.cuh"

// Images have N, C and three dimensions of space; filters K, C / groups and three of taps.
struct Steps { i64 outer, channel, space[3]; };
struct Conv {
  Steps image, filter, result;
  i64 n, channels, filters, per_group, groups;
  i64 size[3], taps[3], positions[3], before[3], stride[3], dilation[3];
};

__device__ i64 at(const Steps& steps, i64 outer, i64 channel, const i64* space) {
  return outer * steps.outer + channel * steps.channel + space[0] * steps.space[0] +
         space[1] * steps.space[1] + space[2] * steps.space[2];
}

// An index along three dimensions, the last one fastest; what is left of i.
__device__ i64 split(i64 i, const i64* sizes, i64* index) {
  for (int d = 2; d >= 0; --d) {
    index[d] = i % sizes[d];
    i /= sizes[d];
  }
  return i;
}

// Where in an image a tap meets a position; whether that is inside.
__device__ bool meet(const Conv& conv, const i64* position, const i64* tap, i64* place) {
  bool inside = true;
  for (int d = 0; d < 3; ++d) {
    place[d] = position[d] * conv.stride[d] + tap[d] * conv.dilation[d] - conv.before[d];
    inside &= place[d] >= 0 && place[d] < conv.size[d];
  }
  return inside;
}

template <class A, class T>
__global__ void forward(T* y, const T* x, const T* w, Conv conv, i64 count) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  const i64 taps = conv.taps[0] * conv.taps[1] * conv.taps[2];
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    i64 position[3], tap[3], place[3];
    const i64 rest = split(i, conv.positions, position);
    const i64 k = rest % conv.filters, n = rest / conv.filters;
    const i64 first = k / (conv.filters / conv.groups) * conv.per_group;
    A sum = 0;
    for (i64 t = 0; t < taps; ++t) {
      split(t, conv.taps, tap);
      if (!meet(conv, position, tap, place)) continue;
      for (i64 c = 0; c < conv.per_group; ++c)
        sum += get<A>(x[at(conv.image, n, first + c, place)]) *
               get<A>(w[at(conv.filter, k, c, tap)]);
    }
    put(y[at(conv.result, n, k, position)], sum);
  }
}

template <class A, class T>
__global__ void images(T* dx, const T* dy, const T* w, Conv conv, i64 count) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  const i64 taps = conv.taps[0] * conv.taps[1] * conv.taps[2];
  const i64 each = conv.filters / conv.groups;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    i64 place[3], tap[3], position[3];
    const i64 rest = split(i, conv.size, place);
    const i64 c = rest % conv.channels, n = rest / conv.channels;
    const i64 first = c / conv.per_group * each;
    A sum = 0;
    for (i64 t = 0; t < taps; ++t) {
      split(t, conv.taps, tap);
      bool met = true;
      for (int d = 0; d < 3; ++d) {
        const i64 from = place[d] + conv.before[d] - tap[d] * conv.dilation[d];
        position[d] = from / conv.stride[d];
        met &= from >= 0 && from % conv.stride[d] == 0 && position[d] < conv.positions[d];
      }
      if (!met) continue;
      for (i64 k = first; k < first + each; ++k)
        sum += get<A>(dy[at(conv.result, n, k, position)]) *
               get<A>(w[at(conv.filter, k, c % conv.per_group, tap)]);
    }
    put(dx[at(conv.image, n, c, place)], sum);
  }
}

template <class A, class T>
__global__ void filters(T* dw, const T* x, const T* dy, Conv conv, i64 count) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  const i64 positions = conv.positions[0] * conv.positions[1] * conv.positions[2];
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    i64 tap[3], position[3], place[3];
    const i64 rest = split(i, conv.taps, tap);
    const i64 c = rest % conv.per_group, k = rest / conv.per_group;
    const i64 first = k / (conv.filters / conv.groups) * conv.per_group;
    A sum = 0;
    for (i64 p = 0; p < positions; ++p) {
      split(p, conv.positions, position);
      if (!meet(conv, position, tap, place)) continue;
      for (i64 n = 0; n < conv.n; ++n)
        sum += get<A>(x[at(conv.image, n, first + c, place)]) *
               get<A>(dy[at(conv.result, n, k, position)]);
    }
    put(dw[at(conv.filter, k, c, tap)], sum);
  }
}
