// What a warp does together: products of small matrices, their loads, and copies to shared memory.
// Inline PTX: tests that compile kernels for the host have a file of their own for this one.
//
// A lane is (group, member) = (lane / 4, lane % 4). Where a matrix lies in registers, as the PTX
// ISA has it for mma.m16n8k16 of 16-bit types (D = A * B + D):
//   A, 16 x 16, four registers of two elements: rows group and group + 8 of columns
//      2 * member and the next, then the same of columns 8 further on;
//   B, 16 x 8, two registers: rows 2 * member and the next of column group, then 8 rows further on;
//   D, 16 x 8, four floats: columns 2 * member and the next of row group, then of row group + 8.
// ldmatrix takes 8 x 8 matrices whose rows are 16 bytes: lanes 8 * i to 8 * i + 7 bring the rows'
// addresses of matrix i, and register i of a lane becomes columns 2 * member and the next of its
// row group; transposed, rows 2 * member and the next of its column group.
#pragma once

#include "conversions.cuh"
#include "types.cuh"

extern __shared__ uint4 shared_memory[];

// A place in shared memory, in bytes: one number, to which instructions add what is known of where.
typedef u32 Place;
__device__ __forceinline__ Place place_of(const void* pointer) {
  return (u32)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void load_matrices(u32 (&to)[4], Place row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_transposed(u32 (&to)[4], Place row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, h16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, b16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory, or as many zeros, for which nothing is read;
// `wait_copies<n>` waits for all but the last n groups of them.
__device__ __forceinline__ void copy16(Place to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// Two numbers in a register, the first one in its lower half.
__device__ __forceinline__ u32 pack(float low, float high, h16) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ u32 pack(float low, float high, b16) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float logarithm_2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ bool any_of_warp(bool mine) { return __any_sync(0xffffffffu, mine); }

// Two numbers of 8 bits as float16, the first one in the lower half. e5m2 is the upper half of
// that; e4m3 has exponents 8 lower, and NaN where e5m2 would have more numbers.
struct e4m3 {
  unsigned char bits;
};
struct e5m2 {
  unsigned char bits;
};
__device__ __forceinline__ u32 widen_two(u32 two, e5m2) {
  return (two & 0xffu) << 8 | (two & 0xff00u) << 16;
}
__device__ __forceinline__ u32 widen_two(u32 two, e4m3) {
  u32 both;
#if __CUDA_ARCH__ >= 890
  asm("{ .reg .b16 pair; cvt.u16.u32 pair, %1; cvt.rn.f16x2.e4m3x2 %0, pair; }"
      : "=r"(both)
      : "r"(two));
#else
  const u32 apart = (two & 0xffu) | (two & 0xff00u) << 8;
  both = (apart & 0x00800080u) << 8 | (apart & 0x007f007fu) << 7;
  asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(both) : "r"(0x5c005c00u));  // by 256
  if ((two & 0x7fu) == 0x7fu) both |= 0x7e00u;
  if ((two & 0x7f00u) == 0x7f00u) both |= 0x7e000000u;
#endif
  return both;
}
