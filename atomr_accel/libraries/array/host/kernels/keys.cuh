// Numbers as keys, whole numbers of the same order.
#pragma once

#include "types.cuh"

// KIND: 0 unsigned numbers, 1 signed ones, 2 floats of IEEE 754, 3 bfloat16.
template <class W, class K, int KIND> __device__ K key_of(W bits, u64 descending) {
  constexpr W SIGN = (W)((W)1 << (8 * sizeof(W) - 1)), ALL = (W)~(W)0;
  W made = bits;
  if (KIND == 1) made ^= SIGN;
  if (KIND >= 2) {
    constexpr W INFINITE = (W)(KIND == 3            ? 0x7f80
                               : sizeof(W) == 2     ? 0x7c00
                               : sizeof(W) == 4     ? 0x7f800000u
                                                    : 0x7ff0000000000000ull);
    const W size = bits & (W)~SIGN;
    if (size > INFINITE)
      made = ALL;  // no number
    else if (!size)
      made = SIGN;  // both zeros
    else
      made = bits & SIGN ? (W)~bits : (W)(bits | SIGN);
  }
  return descending ? (K)(W)~made : (K)made;
}
