// The different elements of a sorted row: "firsts" counts in parts those that differ from the one
// before them, "distinct" puts them in a row, with what else is asked for, and "lengths" tells how
// often each is there.

#include "chunks.cuh"
#include "keys.cuh"
#include "parts.cuh"
#include "types.cuh"

template <class T> struct Pair { T x, y; };

// Numbers of KIND 4 are complex. No numbers are equal on request.
template <class W, class K, int KIND> struct Differs {
  static __device__ bool from(W one, W other, u64 equal) {
    const K key = key_of<W, K, KIND>(one, 0);
    const bool none = KIND >= 2 && !equal && key == (K)(W)~(W)0;
    return none || key != key_of<W, K, KIND>(other, 0);
  }
};
template <class W, class K> struct Differs<W, K, 4> {
  static __device__ bool from(W one, W other, u64 equal) {
    if (equal && (other.x != other.x || other.y != other.y)) return false;  // they come last
    return one.x != other.x || one.y != other.y;
  }
};

// Which of ITEMS elements are the first of their kind, as bits, and how many.
template <class W, class K, int KIND>
__device__ u32 first_ones(W (&items)[ITEMS], const W* values, u64 first, u64 end, u64 equal,
                          u32& found) {
  u32 bits = found = 0;
  if (first >= end) return bits;
  read_items(items, values, first, end);
  W last = first ? values[first - 1] : items[0];
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    if (first + k < end) {
      const bool differs = first + k == 0 || Differs<W, K, KIND>::from(items[k], last, equal);
      bits |= (u32)differs << k;
      found += differs;
      last = items[k];
    }
  }
  return bits;
}

template <class W, class K, int KIND>
__global__ void __launch_bounds__(THREADS)
firsts(i64* counts, const W* values, u64 size, u64 each, u64 parts, u64 equal) {
  for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
    const u64 start = part * each, end = start + each < size ? start + each : size;
    u64 mine = 0;
    for (u64 at = start; at < end; at += THREADS * ITEMS) {
      W items[ITEMS];
      u32 found;
      first_ones<W, K, KIND>(items, values, at + threadIdx.x * ITEMS, end, equal, found);
      mine += found;
    }
    const u64 sum = sum_of(mine);
    if (!threadIdx.x) counts[part] = (i64)sum;
  }
}

// made: the elements. places: which of all each was before the row was sorted, by order. inverse:
// which of them each element is. begins: where each begins in the row. All but the first may be
// null. Behind the counts of all parts goes how many there are.
template <class W, class K, int KIND>
__global__ void __launch_bounds__(THREADS)
distinct(W* made, i64* places, i64* inverse, i64* begins, i64* counts, const W* values,
         const i64* order, u64 size, u64 each, u64 parts, u64 equal) {
  for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
    const u64 start = part * each, end = start + each < size ? start + each : size;
    u64 place = before_part(counts, part);
    for (u64 at = start; at < end; at += THREADS * ITEMS) {
      const u64 first = at + threadIdx.x * ITEMS;
      W items[ITEMS];
      u32 found, total;
      const u32 bits = first_ones<W, K, KIND>(items, values, first, end, equal, found);
      u64 to = place + before(found, total);
#pragma unroll
      for (int k = 0; k < ITEMS; ++k) {
        const u64 from = first + k;
        if (from >= end) continue;
        if (bits >> k & 1) {
          made[to] = items[k];
          if (places) places[to] = order[from];
          if (begins) begins[to] = (i64)from;
          ++to;
        }
        if (inverse) inverse[order[from]] = (i64)to - 1;
      }
      place += total;
    }
    if (part == parts - 1 && !threadIdx.x) counts[parts] = (i64)place;
  }
}

__global__ void __launch_bounds__(THREADS)
lengths(i64* made, const i64* begins, const i64* total, u64 size) {
  const u64 step = (u64)gridDim.x * blockDim.x, count = (u64)*total;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step)
    made[at] = (at + 1 < count ? begins[at + 1] : (i64)size) - begins[at];
}
