// Philox 4x32-10 (Salmon et al., 2011): four random words from a counter of four and a key of two.
#pragma once

#include "instructions.cuh"
#include "types.cuh"

__device__ __forceinline__ uint4 philox(uint4 c, u64 key) {
  u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u32 high, other;
    const u32 low = multiply_wide(0xD2511F53u, c.x, high);
    const u32 rest = multiply_wide(0xCD9E8D57u, c.z, other);
    c = uint4{other ^ c.y ^ k0, rest, high ^ c.w ^ k1, low};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Words 4b to 4b + 3 of a key where counters are the numbers of blocks: those of the DNN lane.
__device__ __forceinline__ uint4 random_words(u64 b, u64 key) {
  return philox(uint4{(u32)b, (u32)(b >> 32), 0u, 0u}, key);
}
