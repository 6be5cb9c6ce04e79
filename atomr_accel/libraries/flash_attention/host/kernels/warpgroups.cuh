// What a warpgroup of compute capability 9.0 does: products whose factors lie in shared memory, and
// barriers there that count arrivals. Compiled for sm_90a alone.
// Inline PTX: tests that compile kernels for the host have a file of their own for this one.
//
// A tile lies in panels of 64 columns, whose rows are lines of 128 bytes one after the other. In
// line r the 16 bytes at place c are at place c ^ (r % 8), so that neither lines nor columns meet a
// bank twice. Panels begin at multiples of 1024 bytes. Results lie in registers as those of warps
// do: warp w of the four has rows 16 * w to 16 * w + 15, as warps.cuh has them.
#pragma once

#include "warps.cuh"

#define GROUP 128  // threads of a warpgroup
#define LINE 128   // bytes of a panel's row

// Where panels may begin from `at` on.
__device__ __forceinline__ Place aligned(Place at) { return (at + 1023) / 1024 * 1024; }
// A number that is the same for all threads of a warp, so that the compiler knows.
__device__ __forceinline__ int same_in_warp(int number) {
  return __shfl_sync(0xffffffffu, number, 0);
}
// A warpgroup gives up registers, or takes those that others gave up: `n` for each thread.
template <int n>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}

// How products read a tile from `at` on. Where lines go along the sum (queries, keys), `far` has no
// meaning. Where they go across it (values), it is from a panel to the next one, in bytes.
__device__ __forceinline__ u64 describe(Place at, u32 far) {
  return (u64)1 << 62 | (u64)(8 * LINE >> 4) << 32 | (u64)(far >> 4) << 16 | (at & 0x3ffff) >> 4;
}

#define EIGHT(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define FIRST_32                                                            \
  EIGHT(0, 1, 2, 3, 4, 5, 6, 7) "," EIGHT(8, 9, 10, 11, 12, 13, 14, 15) "," \
  EIGHT(16, 17, 18, 19, 20, 21, 22, 23) "," EIGHT(24, 25, 26, 27, 28, 29, 30, 31)
#define FIRST_64                                                                    \
  FIRST_32 "," EIGHT(32, 33, 34, 35, 36, 37, 38, 39) "," EIGHT(40, 41, 42, 43, 44, 45, 46, 47) "," \
  EIGHT(48, 49, 50, 51, 52, 53, 54, 55) "," EIGHT(56, 57, 58, 59, 60, 61, 62, 63)
#define SUMS_4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SUMS_16(d, n) SUMS_4(d, n), SUMS_4(d, n + 1), SUMS_4(d, n + 2), SUMS_4(d, n + 3)
#define SUMS_32(d) SUMS_16(d, 0), SUMS_16(d, 4)
#define SUMS_64(d) SUMS_32(d), SUMS_16(d, 8), SUMS_16(d, 12)

// d = a @ b.T + (more ? d : 0), of 16 columns of a and b: both as lines along the sum. And
// d += a @ b, of 16 rows of b, with a in registers. Both are done after `wait_products`.
#define PRODUCTS(T, NAME, N, SUMS, LIST, i0, i1, i2, i3, i4)                                     \
  __device__ __forceinline__ void multiply_lines(float (&d)[N / 8][4], u64 a, u64 b, int more,   \
                                                 T) {                                            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " i2 ", 0;"                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" LIST "}, " \
                 i0 ", " i1 ", p, 1, 1, 0, 0; }"                                                 \
                 : SUMS(d)                                                                       \
                 : "l"(a), "l"(b), "r"(more));                                                   \
  }                                                                                              \
  __device__ __forceinline__ void multiply_across(float (&d)[N / 8][4], const u32 (&a)[4],       \
                                                  u64 b, T) {                                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" LIST "}, " \
                 "{" i0 ", " i1 ", " i2 ", " i3 "}, " i4 ", 1, 1, 1, 1;"                         \
                 : SUMS(d)                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                          \
  }
PRODUCTS(h16, "f16", 64, SUMS_32, FIRST_32, "%32", "%33", "%34", "%35", "%36")
PRODUCTS(b16, "bf16", 64, SUMS_32, FIRST_32, "%32", "%33", "%34", "%35", "%36")
PRODUCTS(h16, "f16", 128, SUMS_64, FIRST_64, "%64", "%65", "%66", "%67", "%68")
PRODUCTS(b16, "bf16", 128, SUMS_64, FIRST_64, "%64", "%65", "%66", "%67", "%68")

__device__ __forceinline__ void begin_products() {  // registers are what they should be
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int n>
__device__ __forceinline__ void wait_products() {  // for all but the last n
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
// The compiler does not know that products write registers later than it sees them.
template <int N>
__device__ __forceinline__ void settle(float (&d)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[n][i])::"memory");
}
// What copies wrote to shared memory is there for products.
__device__ __forceinline__ void show_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Barriers in shared memory. A phase ends when as many arrived as it was made for; one waits for
// the end of a phase by its parity: 0, 1, 0, ... The one before the first is over, and counts as 1.
__device__ __forceinline__ void make_barrier(Place barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(Place barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ bool passed(Place barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}
__device__ __forceinline__ void wait_barrier(Place barrier, u32 parity) {
  while (!passed(barrier, parity)) {
  }
}
// Turns among warpgroups: `wait_turn` returns when `give_turn` was called with the same number.
__device__ __forceinline__ void wait_turn(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "n"(2 * GROUP) : "memory");
}
__device__ __forceinline__ void give_turn(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number + 1), "n"(2 * GROUP) : "memory");
}
