// The first elements of rows in their order; of equal ones those that come first.
//
// Elements become keys: unsigned numbers in the order that is wanted. "sorted_rows" sorts short
// rows in shared memory, several at a time. Of long rows the last key that belongs to the first
// "count" is found by some of its bits at a time: "top_pass" counts how often each value of these
// bits is there, among the elements that have the bits known so far, and whichever block is the
// last to do so for a row decides. Where more elements have the last key than there is room for,
// their places are taken apart in the same way. "top_collect" takes what is up to there; the last
// block of a row sorts it.
//
// All are launched with as many blocks as there is work for or fewer, which take more in turn.

#include "keys.cuh"
#include "types.cuh"

// Where an element is in shared memory: neighbours of a thread's are in banks of their own.
__device__ __forceinline__ u32 spread(u32 at) { return at + at / 32; }
constexpr u32 ROOM = MOST + MOST / 32;

// Some steps of a bitonic sort: elements whose numbers differ in STEPS bits, from "shift" on, are
// compared in registers. Where bit "size" of a number is set, the larger ones come first.
template <class K, int STEPS>
__device__ void compare(K* keys, u32* places, u32 shift, u32 size, u32 total) {
  constexpr int N = 1 << STEPS;
  for (u32 group = threadIdx.x; group < total >> STEPS; group += THREADS) {
    const u32 first = (group >> shift << (shift + STEPS)) | (group & ((1u << shift) - 1));
    const bool up = !(first & size);
    K key[N];
    u32 place[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const u32 at = spread(first + (n << shift));
      key[n] = keys[at], place[n] = places[at];
    }
#pragma unroll
    for (int bit = N / 2; bit; bit /= 2)
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (n & bit) continue;
        const int m = n | bit;
        const bool after = key[m] < key[n] || (key[m] == key[n] && place[m] < place[n]);
        if (after == up) {
          const K other = key[n];
          key[n] = key[m], key[m] = other;
          const u32 there = place[n];
          place[n] = place[m], place[m] = there;
        }
      }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const u32 at = spread(first + (n << shift));
      keys[at] = key[n], places[at] = place[n];
    }
  }
  __syncthreads();
}

// Sort groups of 2^bits keys, each with its place, of "total" in all; no two are the same.
template <class K> __device__ void sort_groups(K* keys, u32* places, u32 bits, u32 total) {
  for (u32 done = 1; done <= bits; ++done) {
    const u32 size = done == bits ? 0 : 1u << done;  // the last time all go one way
    u32 left = done;
    for (; left >= 3; left -= 3) compare<K, 3>(keys, places, left - 3, size, total);
    if (left == 2) compare<K, 2>(keys, places, 0, size, total);
    if (left == 1) compare<K, 1>(keys, places, 0, size, total);
  }
}

template <class W, class K, int KIND>
__global__ void __launch_bounds__(THREADS)
sorted_rows(W* values, i64* places, const W* source, u64 rows, u64 length, u64 count, u64 bits,
            u64 descending) {
  __shared__ K keys[ROOM];
  __shared__ u32 found[ROOM];
  const u32 side = 1u << (u32)bits, together = MOST >> (u32)bits;
  for (u64 first = (u64)blockIdx.x * together; first < rows; first += (u64)gridDim.x * together) {
    const u32 some = rows - first < together ? (u32)(rows - first) : together;
    for (u32 at = threadIdx.x; at < some * side; at += THREADS) {
      const u32 place = at & (side - 1);
      const bool there = place < length;
      const W* row = source + (first + (at >> (u32)bits)) * length;
      keys[spread(at)] = there ? key_of<W, K, KIND>(row[place], descending) : (K)~(K)0;
      found[spread(at)] = there ? place : ~0u;
    }
    __syncthreads();
    sort_groups<K>(keys, found, (u32)bits, some * side);
    for (u32 at = threadIdx.x; at < some * side; at += THREADS) {
      const u32 number = at & (side - 1);
      if (number >= count) continue;
      const u64 row = first + (at >> (u32)bits), to = row * count + number;
      const u32 place = found[spread(at)];
      if (values) values[to] = source[row * length + place];
      if (places) places[to] = (i64)place;
    }
    __syncthreads();
  }
}

// What is known of the last element of a row that belongs to the first ones: the upper bits of its
// key, without the last "key_bits", and of its place, likewise; and how many of the elements with
// these bits belong to them. Once that is all of them, no more bits need to be known.
struct State {
  u64 key;
  u32 place, key_bits, place_bits, wanted, done, ticket, filled, unused[7];
};

constexpr int AHEAD = 8;  // elements that a thread has under way at a time

// Whether this block is the last of a row.
__device__ bool is_last(State& state, u32 parts) {
  __shared__ u32 last;
  __threadfence();
  __syncthreads();
  if (!threadIdx.x) last = atomicAdd(&state.ticket, 1u) == parts - 1;
  __syncthreads();
  const bool found = last;
  __threadfence();
  return found;
}

// Find the bin with the last element, and leave all bins empty.
__device__ void decide(State& state, volatile u32* counts, u32* room, u32 wanted, u32 shift,
                       u32 width, u32 stage) {
  const u32 bins = 1u << width, each = bins > THREADS ? bins / THREADS : 1;
  const u32 first = threadIdx.x * each, end = first + each < bins ? first + each : bins;
  u32 own = 0;
  for (u32 bin = first; bin < end; ++bin) own += counts[bin];
  u32 now = 0;
  room[threadIdx.x] = own;
  __syncthreads();
  for (u32 step = 1; step < THREADS; step *= 2) {
    const u32 other = threadIdx.x >= step ? room[now * THREADS + threadIdx.x - step] : 0;
    room[(1 - now) * THREADS + threadIdx.x] = room[now * THREADS + threadIdx.x] + other;
    now = 1 - now;
    __syncthreads();
  }
  u32 before = room[now * THREADS + threadIdx.x] - own;
  if (before < wanted && wanted <= before + own) {
    u32 bin = first;
    for (; before + counts[bin] < wanted; ++bin) before += counts[bin];
    state.wanted = wanted - before;
    state.done = wanted - before == counts[bin];
    if (stage < 2) {
      state.key = (stage ? state.key << width : 0) | bin;
      state.key_bits = shift;
      state.place_bits = 32;
    } else {
      state.place = (stage == 3 ? state.place << width : 0) | bin;
      state.place_bits = shift;
    }
    state.ticket = 0;
  }
  for (u32 bin = first; bin < end; ++bin) counts[bin] = 0;
}

// Stages: 0 the first bits of keys, 1 other ones, 2 the first bits of places, 3 other ones.
template <class W, class K, int KIND>
__global__ void __launch_bounds__(THREADS)
top_pass(State* states, u32* counts, const W* source, u64 rows, u64 length, u64 count, u64 parts,
         u64 shift, u64 width, u64 stage, u64 descending) {
  __shared__ u32 mine[WORDS];
  const u32 bins = 1u << (u32)width, most = WORDS >> (u32)width;
  const u32 copies = most < 32 ? most : 32, copy = threadIdx.x % copies;
  const u64 each = (length + parts - 1) / parts;
  for (u64 job = blockIdx.x; job < rows * parts; job += gridDim.x) {
    const u64 number = job / parts, start = (job - number * parts) * each;
    const u64 end = start + each < length ? start + each : length;
    const W* row = source + number * length;
    State& state = states[number];
    if (stage && state.done) continue;
    const K key_there = stage ? (K)state.key : 0;
    const u32 place_there = stage == 3 ? state.place : 0;
    const u32 wanted = stage ? state.wanted : (u32)count;
    for (u32 at = threadIdx.x; at < bins * copies; at += THREADS) mine[at] = 0;
    __syncthreads();
    for (u64 first = start + threadIdx.x; first < end; first += THREADS * AHEAD) {
      W bits[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k)
        if (first + k * THREADS < end) bits[k] = row[first + k * THREADS];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const u64 place = first + k * THREADS;
        if (place >= end) break;
        const K key = key_of<W, K, KIND>(bits[k], descending);
        u64 value = key;
        bool counts_too = true;
        if (stage == 1) counts_too = (u64)key >> (shift + width) == key_there;
        if (stage >= 2) counts_too = key == key_there, value = place;
        if (stage == 3) counts_too = counts_too && place >> (shift + width) == place_there;
        if (counts_too)
          atomicAdd(mine + (u32)(value >> shift & (bins - 1)) * copies + copy, 1u);
      }
    }
    __syncthreads();
    u32* all = counts + number * BINS;
    for (u32 bin = threadIdx.x; bin < bins; bin += THREADS) {
      u32 sum = 0;  // in turns that keep threads on memory banks of their own
      for (u32 k = 0; k < copies; ++k) sum += mine[bin * copies + (k + threadIdx.x) % copies];
      if (sum) atomicAdd(all + bin, sum);
    }
    if (is_last(state, (u32)parts))
      decide(state, all, mine, wanted, (u32)shift, (u32)width, (u32)stage);
    __syncthreads();
  }
}

template <class W, class K, int KIND>
__global__ void __launch_bounds__(THREADS)
top_collect(W* values, i64* places, const W* source, State* states, u64* keys, u32* found,
            u64 rows, u64 length, u64 count, u64 parts, u64 bits, u64 descending) {
  __shared__ K some[ROOM];
  __shared__ u32 where[ROOM];
  const u32 side = 1u << (u32)bits;
  const u64 each = (length + parts - 1) / parts;
  for (u64 job = blockIdx.x; job < rows * parts; job += gridDim.x) {
    const u64 number = job / parts, start = (job - number * parts) * each;
    const u64 end = start + each < length ? start + each : length;
    const W* row = source + number * length;
    State& state = states[number];
    const u64 last = state.key;
    const u32 key_bits = state.key_bits, place_bits = state.place_bits, last_place = state.place;
    volatile u64* kept = keys + number * count;
    volatile u32* at = found + number * count;
    for (u64 first = start + threadIdx.x; first < end; first += THREADS * AHEAD) {
      W value[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k)
        if (first + k * THREADS < end) value[k] = row[first + k * THREADS];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const u64 place = first + k * THREADS;
        if (place >= end) break;
        const u64 key = key_of<W, K, KIND>(value[k], descending), upper = key >> key_bits;
        if (upper > last || (upper == last && place >> place_bits > last_place)) continue;
        const u32 slot = atomicAdd(&state.filled, 1u);
        if (slot < count) kept[slot] = key, at[slot] = (u32)place;
      }
    }
    if (is_last(state, (u32)parts)) {
      for (u32 slot = threadIdx.x; slot < side; slot += THREADS) {
        some[spread(slot)] = slot < count ? (K)kept[slot] : (K)~(K)0;
        where[spread(slot)] = slot < count ? at[slot] : ~0u;
      }
      __syncthreads();
      sort_groups<K>(some, where, (u32)bits, side);
      for (u32 slot = threadIdx.x; slot < count; slot += THREADS) {
        const u64 to = number * count + slot;
        const u32 place = where[spread(slot)];
        if (values) values[to] = row[place];
        if (places) places[to] = (i64)place;
      }
    }
    __syncthreads();
  }
}
