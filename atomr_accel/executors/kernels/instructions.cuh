// Instructions that the compiler does not find by itself. The fast functions are good to a few
// units of 1e-6, which a sample does not show, and ten times as fast.
// Inline PTX: tests that compile kernels for the host have a file of their own for this one.
#pragma once

__device__ __forceinline__ unsigned multiply_wide(unsigned a, unsigned b, unsigned& high) {
  unsigned low;
  asm("{ .reg .u64 wide; mul.wide.u32 wide, %2, %3; mov.b64 {%0, %1}, wide; }"
      : "=r"(low), "=r"(high) : "r"(a), "r"(b));
  return low;
}
__device__ __forceinline__ float fast_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float fast_sqrt(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ void fast_sincos(float x, float* s, float* c) { __sincosf(x, s, c); }

// Two words at once, from and to where other blocks see them.
__device__ __forceinline__ void store_pair(
    unsigned long long* to, unsigned long long one, unsigned long long other) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};"
               :: "l"(to), "l"(one), "l"(other) : "memory");
}
__device__ __forceinline__ void load_pair(
    const unsigned long long* from, unsigned long long& one, unsigned long long& other) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(one), "=l"(other) : "l"(from) : "memory");
}
