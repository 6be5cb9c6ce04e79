// Elements that indices choose: "gather", "scatter", "add" and "in_order"; bytes of the program's
// ("upload"); and the first index that is out of bounds ("outside").
//
// They are launched with one thread for each element, or with fewer, which take several in turn.
// Steps are in bytes. The axes of the indices come first, and axes that are not there have one
// element and are first of all. An index counts in K arrays at once.

#include "conversions.cuh"
#include "types.cuh"

enum Outside { WRAP, CLIP, DROP };

template <int BYTES> struct Item;
template <> struct Item<1> { typedef unsigned char type; };
template <> struct Item<2> { typedef unsigned short type; };
template <> struct Item<4> { typedef u32 type; };
template <> struct Item<8> { typedef u64 type; };
struct alignas(16) Wide { u64 low, high; };
template <> struct Item<16> { typedef Wide type; };

struct Indexed { const char* index; i64 extent, stride; };
template <int K> struct Axis {
  i64 plain, chosen, index[K];
  u64 extent;
  u32 factor, shift;
};
template <int K, int D> struct Places {
  Indexed indexed[K];
  Axis<K> axis[D];
  i64 outside;
};

template <int K> __device__ u32 divided(u32 n, const Axis<K>& axis) {
  return ((u32)((u64)n * axis.factor >> 32) + n) >> axis.shift;
}
template <int K> __device__ u64 divided(u64 n, const Axis<K>& axis) { return n / axis.extent; }

template <class N> struct Signed { static const bool value = true; };
template <> struct Signed<unsigned char> { static const bool value = false; };
template <> struct Signed<unsigned short> { static const bool value = false; };
template <> struct Signed<u32> { static const bool value = false; };
template <> struct Signed<u64> { static const bool value = false; };

template <class N> __device__ bool is_negative(N given) {
  return Signed<N>::value && (i64)given < 0;
}

// An index in bounds; false where there is none.
template <class N> __device__ bool inside(N given, i64 extent, i64 outside, i64& found) {
  const bool negative = is_negative(given);
  if (!negative && (u64)given < (u64)extent) {
    found = (i64)given;
    return true;
  }
  if (outside == DROP) return false;
  if (outside == CLIP) {
    found = negative ? 0 : extent - 1;
  } else if (negative) {
    const i64 rest = (i64)given % extent;
    found = rest ? rest + extent : 0;
  } else {
    found = (i64)((u64)given % (u64)extent);
  }
  return true;
}

// Where an element is, and where it goes; false where an index is dropped.
template <class N, class I, int K, int D>
__device__ bool locate(I at, const Places<K, D>& places, i64& plain, i64& chosen) {
  i64 offset[K];
#pragma unroll
  for (int k = 0; k < K; ++k) offset[k] = 0;
  plain = chosen = 0;
#pragma unroll
  for (int d = D - 1; d >= 0; --d) {
    I i = at;
    if (d) {
      at = divided(at, places.axis[d]);
      i -= at * (I)places.axis[d].extent;
    }
    plain += (i64)i * places.axis[d].plain;
    chosen += (i64)i * places.axis[d].chosen;
#pragma unroll
    for (int k = 0; k < K; ++k) offset[k] += (i64)i * places.axis[d].index[k];
  }
  bool good = true;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const Indexed& indexed = places.indexed[k];
    i64 found = 0;
    good &= inside(*(const N*)(indexed.index + offset[k]), indexed.extent, places.outside, found);
    chosen += found * indexed.stride;
  }
  return good;
}

template <int BYTES, class N, class I, int K, int D>
__global__ void __launch_bounds__(THREADS)
gather(char* target, const char* source, u64 count, Places<K, D> places) {
  typedef typename Item<BYTES>::type T;
  const I step = (I)gridDim.x * blockDim.x;
  for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < (I)count; at += step) {
    i64 plain, chosen;
    if (locate<N, I, K, D>(at, places, plain, chosen))
      *(T*)(target + plain) = *(const T*)(source + chosen);
  }
}

template <int BYTES, class N, class I, int K, int D>
__global__ void __launch_bounds__(THREADS)
scatter(char* target, const char* source, u64 count, Places<K, D> places) {
  typedef typename Item<BYTES>::type T;
  const I step = (I)gridDim.x * blockDim.x;
  for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < (I)count; at += step) {
    i64 plain, chosen;
    if (locate<N, I, K, D>(at, places, plain, chosen))
      *(T*)(target + chosen) = *(const T*)(source + plain);
  }
}

// Sums. Integers go round.
struct flag { unsigned char bits; };
template <class T> struct Pair { T real, imag; };
typedef Pair<float> c64;
typedef Pair<double> c128;

template <class T> __device__ T sum(T a, T b) { return (T)(a + b); }
__device__ h16 sum(h16 a, h16 b) { h16 r; narrow(r, widen(a) + widen(b)); return r; }
__device__ b16 sum(b16 a, b16 b) { b16 r; narrow(r, widen(a) + widen(b)); return r; }
__device__ flag sum(flag a, flag b) { return {(unsigned char)(a.bits | b.bits ? 1 : 0)}; }
template <class T> __device__ Pair<T> sum(Pair<T> a, Pair<T> b) {
  return {a.real + b.real, a.imag + b.imag};
}

// What has no instruction of its own is compared and swapped, in the word of 32 bits around it.
template <class T> __device__ void add_to(T* place, T value) {
  static_assert(sizeof(T) <= 2, "");
  const u64 address = (u64)place;
  u32* word = (u32*)(address & ~(u64)3);
  const u32 shift = (u32)(address & 3) * 8, mask = (sizeof(T) == 1 ? 0xffu : 0xffffu) << shift;
  u32 seen = *word;
  while (true) {
    typename Item<sizeof(T)>::type bits = (typename Item<sizeof(T)>::type)(seen >> shift);
    T now;
    *(typename Item<sizeof(T)>::type*)&now = bits;
    now = sum(now, value);
    bits = *(typename Item<sizeof(T)>::type*)&now;
    const u32 found = atomicCAS(word, seen, (seen & ~mask) | (u32)bits << shift);
    if (found == seen) return;
    seen = found;
  }
}
__device__ void add_to(int* place, int value) { atomicAdd(place, value); }
__device__ void add_to(u32* place, u32 value) { atomicAdd(place, value); }
__device__ void add_to(u64* place, u64 value) { atomicAdd(place, value); }
__device__ void add_to(i64* place, i64 value) { atomicAdd((u64*)place, (u64)value); }
__device__ void add_to(float* place, float value) { atomicAdd(place, value); }
__device__ void add_to(double* place, double value) { atomicAdd(place, value); }
template <class T> __device__ void add_to(Pair<T>* place, Pair<T> value) {
  atomicAdd(&place->real, value.real);
  atomicAdd(&place->imag, value.imag);
}

template <class T, class N, class I, int K, int D>
__global__ void __launch_bounds__(THREADS)
add(char* target, const char* source, u64 count, Places<K, D> places) {
  const I step = (I)gridDim.x * blockDim.x;
  for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < (I)count; at += step) {
    i64 plain, chosen;
    if (locate<N, I, K, D>(at, places, plain, chosen))
      add_to((T*)(target + chosen), *(const T*)(source + plain));
  }
}

// What several elements for one place come to does not depend on time: a thread takes all that
// may go there, in the order of the indices. "inner" elements follow for each index.
template <class T, bool ADDS, class N, class I, int K, int D>
__global__ void __launch_bounds__(THREADS)
in_order(char* target, const char* source, u64 count, u64 inner, Places<K, D> places) {
  const I step = (I)gridDim.x * blockDim.x;
  for (I first = (I)blockIdx.x * blockDim.x + threadIdx.x; first < (I)inner; first += step)
    for (u64 at = first; at < count; at += inner) {
      i64 plain, chosen;
      if (!locate<N, I, K, D>((I)at, places, plain, chosen)) continue;
      T* place = (T*)(target + chosen);
      const T value = *(const T*)(source + plain);
      *place = ADDS ? sum(*place, value) : value;
    }
}
__device__ Wide sum(Wide, Wide b) { return b; }

struct Bytes { unsigned char byte[UPLOADED]; };

__global__ void __launch_bounds__(THREADS) upload(unsigned char* target, u64 count, Bytes bytes) {
  const u32 step = gridDim.x * blockDim.x;
  for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < (u32)count; at += step)
    target[at] = bytes.byte[at];
}

// The least position of an index that is out of bounds; "found" holds more than all of them.
template <class N>
__global__ void __launch_bounds__(THREADS)
outside(u64* found, const N* given, u64 count, i64 extent) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const N index = given[at];
    const bool bad = is_negative(index) ? (i64)index < -extent : (u64)index >= (u64)extent;
    if (bad) atomicMin(found, at);
  }
}
