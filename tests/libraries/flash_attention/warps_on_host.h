// What warps.cuh has, for kernels that run on the host: each thread is a fiber, and those of a warp
// hand each other what they bring. Layouts are the PTX ISA's, written down once more.
static uint4 shared_memory[1 << 14];
template <class T> static T min(T a, T b) { return b < a ? b : a; }
template <class T> static T max(T a, T b) { return a < b ? b : a; }

typedef char* Place;
static Place place_of(const void* pointer) { return (Place)pointer; }

struct Brought { const void* row; unsigned a[4], b[2]; };
static Brought brought[2][1024];
static unsigned phase[1024];
// Gives what all lanes of the warp have brought, in the order of lanes.
static const Brought* meet(const Brought& mine) {
  const unsigned thread = threadIdx.x, now = phase[thread]++ % 2;
  brought[now][thread] = mine;
  __syncthreads();
  return brought[now] + thread / 32 * 32;
}
static void load_matrices(unsigned (&to)[4], Place row) {
  const Brought* all = meet({row});
  const unsigned lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) std::memcpy(&to[i], (const char*)all[8 * i + lane / 4].row + lane % 4 * 4, 4);
}
static void load_transposed(unsigned (&to)[4], Place row) {
  const Brought* all = meet({row});
  const unsigned lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    unsigned short two[2];
    for (int j = 0; j < 2; ++j) two[j] = ((const unsigned short*)all[8 * i + lane % 4 * 2 + j].row)[lane / 4];
    std::memcpy(&to[i], two, 4);
  }
}
template <class T> static float half_of(unsigned both, int which) {
  return widen(T{(unsigned short)(both >> 16 * which)});
}
template <class T> static void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, T) {
  const Brought* all = meet({nullptr, {a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = group + (i >= 2 ? 8 : 0), column = member * 2 + i % 2;
    float sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const float left = half_of<T>(all[row % 8 * 4 + k % 8 / 2].a[(row >= 8) + 2 * (k >= 8)], k % 2);
      sum += left * half_of<T>(all[column * 4 + k % 8 / 2].b[k >= 8], k % 2);
    }
    d[i] = sum;
  }
}
static void copy16(Place to, const void* from, bool there) {
  if (there) std::memcpy(to, from, 16); else std::memset(to, 0, 16);
}
static void end_group() {}
template <int n> static void wait_copies() {}
template <class T> static unsigned pack(float low, float high, T) {
  T one, other;
  narrow(one, low);
  narrow(other, high);
  return one.bits | (unsigned)other.bits << 16;
}
static float power_of_2(float x) { return std::exp2(x); }
static float logarithm_2(float x) { return std::log2(x); }
static float inverse(float x) { return 1 / x; }
static bool any_of_warp(bool mine) {
  const Brought* all = meet({nullptr, {mine}});
  bool found = false;
  for (int lane = 0; lane < 32; ++lane) found |= all[lane].a[0];
  return found;
}
struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };
static unsigned widen_two(unsigned two, e5m2) { return (two & 0xff) << 8 | (two & 0xff00) << 16; }
static unsigned widen_two(unsigned two, e4m3) {
  unsigned both = 0;
  for (int i = 0; i < 2; ++i) {
    const int bits = two >> 8 * i & 0xff, exponent = bits >> 3 & 15, digits = bits & 7;
    float size = exponent ? std::ldexp((float)(digits | 8), exponent - 10) : std::ldexp((float)digits, -9);
    if ((bits & 0x7f) == 0x7f) size = NAN;
    h16 wide;
    narrow(wide, bits & 0x80 ? -size : size);
    both |= (unsigned)wide.bits << 16 * i;
  }
  return both;
}
