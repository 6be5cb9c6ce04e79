// Sums and products of all elements of a row up to each: what scans share, and those of long rows.
#pragma once

#include "conversions.cuh"
#include "instructions.cuh"
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

// What the last thread of the warp has.
template <class A> __device__ A broadcast(A value) { return (A)__shfl_sync(~0u, value, 31); }
template <class T> __device__ Pair<T> broadcast(Pair<T> value) {
  return {broadcast(value.real), broadcast(value.imag)};
}

// What the thread has whose number in the warp differs in these bits.
template <class A> __device__ A exchanged(A value, int bits) {
  return (A)__shfl_xor_sync(~0u, value, bits);
}
template <class T> __device__ Pair<T> exchanged(Pair<T> value, int bits) {
  return {exchanged(value.real, bits), exchanged(value.imag, bits)};
}

// Values that blocks tell each other, in words with a mark that is 0 until then.
template <class A> struct Told {
  enum { WORDS = (sizeof(A) + 7) / 8 };
  union Both { A value; u64 words[WORDS]; };
  u64 pairs[WORDS][2];

  __device__ void tell(A value) {
    Both both;
    both.words[0] = 0;
    both.value = value;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) store_pair(pairs[w], both.words[w], 1);
  }
  __device__ A wait() const {
    Both both;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      u64 mark = 0;
      while (!mark) load_pair(pairs[w], both.words[w], mark);
    }
    return both.value;
  }
};

// Two counters, then what groups end with, then sums of tiles; zeros again after each launch.
// Launches that may run at the same time must be of different modules, whose memory this is.
template <class A> __device__ uint4 scan_state[SCAN_STATE];
// What a launch ends with, for one that continues its row, by turns.
template <class A> __device__ uint4 scanned_so_far[2];

// A row in tiles, of ROWS words of each thread. A block takes the next tile, tells its sum to the
// others, and waits for the sums of the tiles of its group before it and for what the group before
// ends with: they began earlier, so all of them come. Sums are made in the same order each time.
// A group has as many tiles as a block has threads. "continued" counts the launches for the same
// row before this one, all of whole tiles.
template <class T, class A, class OP>
__global__ void __launch_bounds__(THREADS)
scan_tiles(T* target, const T* source, u64 continued, u64 length) {
  constexpr int EACH = 16 / sizeof(T), ROWS = EACH > 4 ? 32 / EACH : 8, WARPS = THREADS / 32;
  constexpr u64 SEGMENT = 32 * EACH * ROWS, TILE = SEGMENT * WARPS;
  union Word { uint4 all; T each[EACH]; __device__ Word() {} };
  __shared__ A sums[WARPS], heads[WARPS];
  __shared__ u64 taken;
  uint4* state = scan_state<A>;
  u32* counters = (u32*)state;
  const u64 tiles = (length + TILE - 1) / TILE, groups = (tiles + THREADS - 1) / THREADS;
  Told<A>* ends = (Told<A>*)(state + 1);
  Told<A>* totals = ends + groups;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool in_words = ((u64)target | (u64)source) % 16 == 0;
  for (;;) {
    if (threadIdx.x == 0) taken = atomicAdd(counters, 1u);
    __syncthreads();
    const u64 tile = taken;
    if (tile >= tiles) break;
    const u64 start = tile * TILE + warp * SEGMENT + lane * EACH;
    const bool whole = in_words && (tile + 1) * TILE <= length;
    A value[ROWS][EACH];
    if (whole) {
      Word words[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) words[r].all = *(const uint4*)(source + start + r * 32 * EACH);
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < EACH; ++i) value[r][i] = load(words[r].each[i]);
    } else {
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
          const u64 at = start + r * 32 * EACH + i;
          value[r][i] = at < length ? load(source[at]) : A();
        }
    }
    A in_row[ROWS], all;  // of threads before in a row, and of rows
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int i = 1; i < EACH; ++i) value[r][i] = OP::of(value[r][i - 1], value[r][i]);
      A sum = value[r][EACH - 1];
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const A other = from_before(sum, step);
        if (lane >= step) sum = OP::of(other, sum);
      }
      // A row begins behind the one before it, of which the last thread knows the sum.
      in_row[r] = from_before(sum, 1);
      if (r) {
        const A former = broadcast(all);
        if (lane) in_row[r] = OP::of(former, in_row[r]); else in_row[r] = former;
        sum = OP::of(former, sum);
      }
      all = sum;
    }
    if (lane == 31) sums[warp] = all;
    __syncthreads();
    A total = sums[0], before = total;
#pragma unroll
    for (int w = 1; w < WARPS; ++w) {
      if (w == warp) before = total;
      total = OP::of(total, sums[w]);
    }
    if (threadIdx.x == 0 && tile + 1 < tiles) totals[tile].tell(total);
    const u64 group = tile / THREADS;
    const u32 place = tile % THREADS, many = place + (group > 0 || continued);
    A head = A();
    if (threadIdx.x < place)
      head = totals[tile - place + threadIdx.x].wait();
    else if (threadIdx.x < many)
      head = group ? ends[group - 1].wait() : *(const A*)(scanned_so_far<A> + continued % 2);
#pragma unroll
    for (int bits = 1; bits < 32; bits *= 2) {
      const A other = exchanged(head, bits);
      if ((threadIdx.x ^ bits) < many) head = OP::of(head, other);  // of the first thread all
    }
    if (lane == 0) heads[warp] = head;
    __syncthreads();
    bool any = many > 0;
    A ahead = heads[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w)
      if (w * 32 < many) ahead = OP::of(ahead, heads[w]);
    if (threadIdx.x == 0 && (place == THREADS - 1 || tile + 1 == tiles)) {
      const A end = any ? OP::of(ahead, total) : total;
      if (tile + 1 < tiles)
        ends[group].tell(end);
      else
        *(A*)(scanned_so_far<A> + (continued + 1) % 2) = end;
    }
    if (warp) ahead = any ? OP::of(ahead, before) : before, any = true;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const bool some = r || lane, two = any && some;
      const A first = two ? OP::of(ahead, in_row[r]) : some ? in_row[r] : ahead;
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (any || some) value[r][i] = OP::of(first, value[r][i]);
    }
    if (whole) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        Word word;
#pragma unroll
        for (int i = 0; i < EACH; ++i) store(word.each[i], value[r][i]);
        *(uint4*)(target + start + r * 32 * EACH) = word.all;
      }
    } else {
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
          const u64 at = start + r * 32 * EACH + i;
          if (at < length) store(target[at], value[r][i]);
        }
    }
  }
  __shared__ bool last;
  __threadfence();
  if (threadIdx.x == 0) last = atomicInc(counters + 1, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  if (threadIdx.x == 0) counters[0] = 0;
  const u64 size = (groups + tiles) * sizeof(Told<A>) / 16;
  for (u64 at = threadIdx.x; at < size; at += THREADS) state[1 + at] = uint4{0, 0, 0, 0};
}
