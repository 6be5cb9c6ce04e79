// ITEMS elements of a thread that follow each other: in words as wide as can be, where they lie so.
#pragma once

#include "types.cuh"

template <class T> struct Chunks {
  static constexpr int BYTES = sizeof(T) * ITEMS < 16 ? sizeof(T) * ITEMS : 16;
  static constexpr int EACH = BYTES / sizeof(T) ? BYTES / sizeof(T) : 1, COUNT = ITEMS / EACH;
  struct alignas(BYTES) Chunk { T items[EACH]; };
  static __device__ bool whole(const T* from, u64 first, u64 end) {
    return first + ITEMS <= end && (u64)(from + first) % BYTES == 0;
  }
};

// Those from "first" on, as many as there are before "end".
template <class T>
__device__ void read_items(T (&items)[ITEMS], const T* from, u64 first, u64 end) {
  typedef Chunks<T> C;
  if (C::whole(from, first, end)) {
    typename C::Chunk chunks[C::COUNT];
#pragma unroll
    for (int c = 0; c < C::COUNT; ++c) chunks[c] = ((const typename C::Chunk*)(from + first))[c];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) items[k] = chunks[k / C::EACH].items[k % C::EACH];
    return;
  }
#pragma unroll
  for (int k = 0; k < ITEMS; ++k)
    if (first + k < end) items[k] = from[first + k];
}
template <class T>
__device__ void write_items(T* to, const T (&items)[ITEMS], u64 first, u64 end) {
  typedef Chunks<T> C;
  if (C::whole(to, first, end)) {
    typename C::Chunk chunks[C::COUNT];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) chunks[k / C::EACH].items[k % C::EACH] = items[k];
#pragma unroll
    for (int c = 0; c < C::COUNT; ++c) ((typename C::Chunk*)(to + first))[c] = chunks[c];
    return;
  }
#pragma unroll
  for (int k = 0; k < ITEMS; ++k)
    if (first + k < end) to[first + k] = items[k];
}
