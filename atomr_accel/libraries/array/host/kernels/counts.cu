// How often each number is there, and how many numbers are in each of some intervals. Blocks count
// in memory of their own: what is counted is little where many elements are the same. A thread has
// AHEAD elements under way at a time.

#include "conversions.cuh"
#include "types.cuh"

// NUMBER tells what an element counts for; what is not below size is left out. A block has room for
// SHARED counts of its own.
template <class NUMBER>
__device__ void count_each(u32* mine, u64* counts, u64 items, u64 size, NUMBER number) {
  const u64 step = (u64)gridDim.x * blockDim.x, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const bool shares = size <= SHARED;
  // As many counts as there is room for, so that fewer threads want the same.
  const u32 few = shares ? (u32)size : SHARED;
  const u32 copies = SHARED / few < COPIES ? SHARED / few : COPIES, copy = threadIdx.x % copies;
  if (shares) {
    for (u32 at = threadIdx.x; at < few * copies; at += blockDim.x) mine[at] = 0;
    __syncthreads();
  }
  for (u64 at = first; at < items; at += step * AHEAD) {
    u64 found[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) found[k] = at + k * step < items ? number(at + k * step) : size;
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (found[k] >= size) continue;
      if (shares)
        atomicAdd(mine + (u32)found[k] * copies + copy, 1u);
      else
        atomicAdd(counts + found[k], (u64)1);
    }
  }
  if (!shares) return;
  __syncthreads();
  for (u32 at = threadIdx.x; at < few; at += blockDim.x) {
    u64 sum = 0;
    for (u32 k = 0; k < copies; ++k) sum += mine[at * copies + k];
    if (sum) atomicAdd(counts + at, sum);
  }
}

// What all blocks have counted of few numbers, and how many have; zeros again after each launch.
// Launches that may run at the same time must be of different modules, whose memory this is.
static __device__ u64 of_blocks[SHARED];
static __device__ u32 blocks_done;

// The last block to come here writes the sums.
__device__ void write_counts(u64* counts, u32 size) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(&blocks_done, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (u32 at = threadIdx.x; at < size; at += blockDim.x)
    counts[at] = atomicExch(of_blocks + at, (u64)0);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
counted(u64* counts, const T* given, u64 items, u64 size) {
  __shared__ u32 mine[SHARED];
  // What is negative is beyond all.
  count_each(mine, counts, items, size, [=](u64 at) { return (u64)(i64)given[at]; });
}

typedef unsigned char flag;
template <class T> __device__ T wide(T value) { return value; }
__device__ float wide(h16 value) { return widen(value); }
__device__ float wide(b16 value) { return widen(value); }

template <class T> struct Narrow { enum { yes = 0 }; };
template <> struct Narrow<float> { enum { yes = 1 }; };
template <> struct Narrow<h16> { enum { yes = 1 }; };
template <> struct Narrow<b16> { enum { yes = 1 }; };

// size intervals between two ends, which are in memory or come along. Where an edge is, its own
// dtype decides, E; each operation rounds its result, as NumPy's do. More counts than SHARED are
// added to those that are there.
template <class T, class E>
__global__ void __launch_bounds__(THREADS)
binned(u64* counts, E* edges, const T* given, const double* ends, u64 items, u64 size, double low,
       double high) {
  __shared__ u32 mine[SHARED];
  u64* sums = size <= SHARED ? of_blocks : counts;
  if (ends) low = ends[0], high = ends[1];
  const double apart = high - low, each = apart / (double)size, share = (double)size / apart;
  // Of a range so small that there are more intervals per unit than a double holds, distances are
  // divided by it first.
  const bool steep = !(share < 0x1p1022);
  const auto edge = [=](u64 at) {
    if (at == size) return (E)high;
    const double from_low =
        steep ? __dmul_rn((double)at / (double)size, apart) : __dmul_rn((double)at, each);
    return (E)__dadd_rn(from_low, low);
  };
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at <= size; at += step)
    edges[at] = edge(at);
  const double most = -low < high ? high : -low;
  if (Narrow<T>::yes && sizeof(E) == 4 && size < FEW_EDGES && each > most * 0x1p-18 &&
      each > 0x1p-120 && apart < 0x1p120) {
    // Edges are so far from each other that a product of floats is one interval off at most, and
    // that rarely: next to an edge. What is between the ends is so in their dtype, too. No float
    // of this overflows or is subnormal.
    __shared__ float line[FEW_EDGES];
    for (u32 at = threadIdx.x; at <= (u32)size; at += blockDim.x) line[at] = (float)edge(at);
    __syncthreads();
    const float from = __double2float_ru(low), to = __double2float_rd(high);
    const float begin = (float)low, slope = (float)share;
    count_each(mine, sums, items, size, [=](u64 at) {
      const float value = (float)wide(given[at]);
      if (!(value >= from && value <= to)) return size;
      const float guess = (value - begin) * slope;
      int found = (int)guess;
      const float rest = guess - (float)found;
      found = found < (int)size ? found : (int)size - 1;
      if (rest < 0x1p-4f || rest > 1 - 0x1p-4f) {
        if (value < line[found])
          --found;
        else if (found != (int)size - 1 && value >= line[found + 1])
          ++found;
      }
      return (u64)(i64)found;
    });
  } else {
    count_each(mine, sums, items, size, [=](u64 at) {
      const double value = (double)wide(given[at]);
      if (!(value >= low && value <= high)) return size;
      const double apart_from = value - low;
      u64 found = (u64)(steep ? __dmul_rn(apart_from / apart, (double)size)
                              : __dmul_rn(apart_from, share));
      if (found >= size) found = size - 1;
      if (value < (double)edge(found)) return found - 1;  // of none before the first
      return found + (u64)(found != size - 1 && value >= (double)edge(found + 1));
    });
  }
  if (size <= SHARED) write_counts(counts, (u32)size);
}
