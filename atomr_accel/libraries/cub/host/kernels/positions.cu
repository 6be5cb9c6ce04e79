// What comes before and after CUB's algorithms: positions in the place of values, numbers in the
// place of floats, results in another dtype. Each thread takes several elements in turn.
// Positions of extreme elements and scans of rows need nothing of CUB.
#include "access.cuh"
#include "extremes.cuh"
#include "scan_tiles.cuh"
#include "types.cuh"

#define EACH                                                               \
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;    \
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x;  \
  for (long long at = first + threadIdx.x; at < count; at += step)

using u8 = unsigned char;
using u16 = unsigned short;
using i8 = signed char;
using i16 = short;
using i32 = int;
struct alignas(8) u128 {
  u64 parts[2];
};

// 0, 1, 2, ...: what a sort of positions moves.
__global__ void positions(long long* out, long long count) {
  EACH out[at] = at;
}

// What no sort has written yet.
__global__ void nowhere(long long* out, long long count) {
  EACH out[at] = -1;
}

// Values in the order of positions that were sorted in their place, where there are any.
template <class T>
__global__ void gather(T* out, const T* values, const long long* places, long long count) {
  EACH {
    const long long place = places[at];
    if (place >= 0) out[at] = values[place];
  }
}

// The bits of floats as numbers in their order: NaN are beyond all others, on the side of their
// sign; -0 comes before 0.
template <class U> __device__ U map(U bits) {
  const U sign = static_cast<U>(1) << (8 * sizeof(U) - 1);
  return bits & sign ? ~bits : bits | sign;
}
template <class U> __global__ void mapped(U* out, const U* given, long long count) {
  EACH out[at] = map(given[at]);
}

// The same, but both zeros are one.
template <class U> __global__ void ordered(U* out, const U* given, long long count) {
  const U sign = static_cast<U>(1) << (8 * sizeof(U) - 1);
  EACH {
    const U bits = given[at];
    out[at] = map(bits == sign ? static_cast<U>(0) : bits);
  }
}

// The way back from what was mapped.
template <class U> __global__ void floats(U* out, const U* given, long long count) {
  const U sign = static_cast<U>(1) << (8 * sizeof(U) - 1);
  EACH {
    const U bits = given[at];
    out[at] = bits & sign ? bits ^ sign : ~bits;
  }
}

// What was computed in another dtype than it is wanted in.
template <class T, class A> __global__ void cast(T* out, const A* given, long long count) {
  EACH put(out[at], given[at]);
}
