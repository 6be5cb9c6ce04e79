// What warpgroups.cuh has, for kernels that run on the host. Products are done at once; where
// numbers lie in panels and registers is the PTX ISA's, written down once more.
#define GROUP 128
#define LINE 128

static Place aligned(Place at) { return (Place)(((unsigned long long)at + 1023) / 1024 * 1024); }
static int same_in_warp(int number) { return number; }
template <int n> static void keep_registers() {}
template <int n> static void take_registers() {}

// In units of 16 bytes: where it is in shared memory, and how far its panels are apart.
static unsigned long long describe(Place at, unsigned far) {
  return (unsigned long long)(far >> 4) << 32 | (unsigned)(at - (Place)shared_memory) >> 4;
}
template <class T> static float number_at(unsigned long long lines, int line, int byte) {
  const unsigned long long at =
      (unsigned long long)((Place)shared_memory + (lines & 0xffffffff) * 16 + line * LINE + byte);
  return widen(*(const T*)(at ^ (at >> 7 & 7) << 4));  // the swizzle is of addresses
}
template <int N, class T>
static void multiply_lines(float (&d)[N][4], unsigned long long a, unsigned long long b, int more, T) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
  for (int half = 0; half < 2; ++half) {
    float left[16];
    for (int k = 0; k < 16; ++k) left[k] = number_at<T>(a, first + half * 8, k * 2);
    for (int n = 0; n < N; ++n)
      for (int j = 0; j < 2; ++j) {
        float sum = more ? d[n][half * 2 + j] : 0.0f;
        for (int k = 0; k < 16; ++k)
          sum += left[k] * number_at<T>(b, n * 8 + lane % 4 * 2 + j, k * 2);
        d[n][half * 2 + j] = sum;
      }
  }
}
template <int N, class T>
static void multiply_across(float (&d)[N][4], const unsigned (&a)[4], unsigned long long b, T) {
  const Brought* all = meet({nullptr, {a[0], a[1], a[2], a[3]}});
  const int lane = threadIdx.x % 32, member = lane % 4;
  for (int half = 0; half < 2; ++half) {
    float left[16];
    for (int k = 0; k < 16; ++k)
      left[k] = half_of<T>(all[lane / 4 * 4 + k % 8 / 2].a[half + 2 * (k >= 8)], k % 2);
    for (int n = 0; n < N; ++n)
      for (int j = 0; j < 2; ++j) {
        const int column = n * 8 + member * 2 + j;
        const unsigned long long panel = b + (b >> 32) * (column / 64);
        float sum = d[n][half * 2 + j];
        for (int k = 0; k < 16; ++k) sum += left[k] * number_at<T>(panel, k, column % 64 * 2);
        d[n][half * 2 + j] = sum;
      }
  }
}
static void begin_products() {}
static void end_products() {}
template <int n> static void wait_products() {}
template <int N> static void settle(float (&)[N][4]) {}
static void show_copies() {}

struct Barrier { unsigned short expected, arrived; unsigned phase; };
static void make_barrier(Place barrier, unsigned arrivals) {
  *(Barrier*)barrier = {(unsigned short)arrivals, 0, 0};
}
static void arrive(Place barrier) {
  Barrier& at = *(Barrier*)barrier;
  if (++at.arrived == at.expected) at.arrived = 0, ++at.phase;
}
static bool passed(Place barrier, unsigned parity) {
  return ((Barrier*)barrier)->phase % 2 != parity;
}
static void wait_barrier(Place barrier, unsigned parity) {
  while (!passed(barrier, parity)) __syncthreads();  // others go on
}
static Barrier turns[16];
static void give_turn(int number) {
  turns[number].expected = 2 * GROUP;
  arrive((Place)&turns[number]);
}
static void wait_turn(int number) {
  const unsigned phase = turns[number].phase;
  give_turn(number);
  do __syncthreads();
  while (turns[number].phase == phase);
}
