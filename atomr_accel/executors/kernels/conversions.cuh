// 16-bit floats without the vendor's headers: h16 and b16, widen(value), narrow(target, value).
// Inline PTX: tests that compile kernels for the host have a file of their own for this one.
#pragma once

struct h16 { unsigned short bits; };  // float16
struct b16 { unsigned short bits; };  // bfloat16

__device__ __forceinline__ float widen(h16 value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
__device__ __forceinline__ float widen(b16 value) {
  return __uint_as_float((unsigned)value.bits << 16);
}
__device__ __forceinline__ void narrow(h16& target, float value) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(target.bits) : "f"(value));
}
// The nearest number that a b16 holds: as one half of two, since to convert one alone is slow.
__device__ __forceinline__ float round_b16(float value) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(value), "f"(0.0f));
  return __uint_as_float(both);
}
__device__ __forceinline__ void narrow(b16& target, float value) {
  target.bits = (unsigned short)(__float_as_uint(round_b16(value)) >> 16);
}
