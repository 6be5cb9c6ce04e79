// Where flags are set, in their order: "count" counts in parts, and "compact" writes positions.

#include "chunks.cuh"
#include "parts.cuh"
#include "types.cuh"

// Which of ITEMS flags are set, as bits, and how many.
__device__ u32 set_in(const unsigned char* flags, u64 first, u64 end, u32& found) {
  unsigned char there[ITEMS];
  read_items(there, flags, first, end);
  u32 bits = found = 0;
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const bool set = first + k < end && there[k];
    bits |= (u32)set << k;
    found += set;
  }
  return bits;
}

__global__ void __launch_bounds__(THREADS)
count(i64* counts, const unsigned char* flags, u64 size, u64 each, u64 parts) {
  for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
    const u64 start = part * each, end = start + each < size ? start + each : size;
    u64 mine = 0;
    for (u64 at = start; at < end; at += THREADS * ITEMS) {
      u32 found;
      set_in(flags, at + threadIdx.x * ITEMS, end, found);
      mine += found;
    }
    const u64 sum = sum_of(mine);
    if (!threadIdx.x) counts[part] = (i64)sum;
  }
}

// Behind the counts of all parts goes how many there are.
__global__ void __launch_bounds__(THREADS)
compact(i64* positions, i64* counts, const unsigned char* flags, u64 size, u64 each, u64 parts) {
  for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
    const u64 start = part * each, end = start + each < size ? start + each : size;
    u64 place = before_part(counts, part);
    for (u64 at = start; at < end; at += THREADS * ITEMS) {
      const u64 first = at + threadIdx.x * ITEMS;
      u32 found, total;
      const u32 bits = set_in(flags, first, end, found);
      u64 to = place + before(found, total);
#pragma unroll
      for (int k = 0; k < ITEMS; ++k)
        if ((bits >> k & 1) && to < size) positions[to++] = (i64)(first + k);
      place += total;
    }
    if (part == parts - 1 && !threadIdx.x) counts[parts] = (i64)place;
  }
}
