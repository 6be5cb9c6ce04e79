// The array lane's copies between layouts: "gather", and "tiles" where the axes along which
// elements follow each other differ; "packed" where elements are small and lie in whole words,
// "turned" where they lie in 16 bytes each; "strands" where one of these axes is short.
//
// All are launched with blocks of THREADS threads, as many as there is work for or fewer, which
// take more in turn. Axes are sorted by their steps in the target, the smallest last. A kernel is
// compiled for up to D axes; those that are not there have one element and are first.

#include "types.cuh"

template <int BYTES> struct Item;
template <> struct Item<1> { typedef unsigned char type; };
template <> struct Item<2> { typedef unsigned short type; };
template <> struct Item<4> { typedef u32 type; };
template <> struct Item<8> { typedef u64 type; };
struct alignas(16) Wide { u64 low, high; };
template <> struct Item<16> { typedef Wide type; };

// Steps are in bytes. Numbers below 2^31 are divided by extent with a product and a shift.
struct Axis {
  i64 target, source;
  u64 extent;
  u32 factor, shift;
};
template <int D> struct Axes { Axis axis[D]; };

__device__ u32 divided(u32 n, const Axis& axis) {
  return ((u32)((u64)n * axis.factor >> 32) + n) >> axis.shift;
}
__device__ u64 divided(u64 n, const Axis& axis) { return n / axis.extent; }

// Where an element is, counted in the target's order.
template <int D, class I>
__device__ void locate(I at, const Axes<D>& axes, i64& to, i64& from) {
  to = from = 0;
#pragma unroll(D > 4 ? 1 : D)
  for (int d = D - 1; d >= 0; --d) {
    I i = at;
    if (d) {
      at = divided(at, axes.axis[d]);
      i -= at * (I)axes.axis[d].extent;
    }
    to += (i64)i * axes.axis[d].target;
    from += (i64)i * axes.axis[d].source;
  }
}

// A thread has several elements under way at a time. I is wide enough to count all and those that
// a step over the end takes.
template <int BYTES, class I, int D>
__global__ void __launch_bounds__(THREADS)
gather(char* target, const char* source, u64 count, Axes<D> axes) {
  typedef typename Item<BYTES>::type T;
  const I step = (I)gridDim.x * blockDim.x * ITEMS;
  I first = (I)blockIdx.x * blockDim.x * ITEMS + threadIdx.x;
  for (; first < (I)count; first += step) {
    T value[ITEMS];
    i64 to[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const I at = first + k * blockDim.x;
      i64 from;
      if (at < (I)count) {
        locate<D>(at, axes, to[k], from);
        value[k] = *(const T*)(source + from);
      }
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
      if (first + k * blockDim.x < (I)count) *(T*)(target + to[k]) = value[k];
  }
}

// Squares of N by N elements go through shared memory. Columns follow each other in the target,
// rows in the source; axes are the others, counted in squares' batches.
template <int BYTES, int N, int D>
__global__ void __launch_bounds__(THREADS)
tiles(char* target, const char* source, u64 batches, Axis row, Axis column, Axes<D> axes) {
  typedef typename Item<BYTES>::type T;
  constexpr int EACH = THREADS / N;
  __shared__ T tile[N][N + (BYTES < 4 ? 4 / BYTES : 1)];
  const u32 down = (u32)((row.extent + N - 1) / N), across = (u32)((column.extent + N - 1) / N);
  const u32 count = (u32)batches * down * across;
  const int x = threadIdx.x % N, y = threadIdx.x / N;
  for (u32 at = blockIdx.x; at < count; at += gridDim.x) {
    const u32 rest = at / across, batch = rest / down;
    const i64 c = (i64)(at - rest * across) * N, r = (i64)(rest - batch * down) * N;
    i64 to, from;
    locate<D>(batch, axes, to, from);
    const char* of = source + from + (r + x) * row.source + c * column.source;
    T value[N / EACH];
#pragma unroll
    for (int k = 0; k < N / EACH; ++k) {
      const int i = y + k * EACH;
      if (r + x < (i64)row.extent && c + i < (i64)column.extent)
        value[k] = *(const T*)(of + i * column.source);
    }
#pragma unroll
    for (int k = 0; k < N / EACH; ++k) tile[y + k * EACH][x] = value[k];
    __syncthreads();
    char* there = target + to + r * row.target + (c + x) * column.target;
#pragma unroll
    for (int k = 0; k < N / EACH; ++k) {
      const int i = y + k * EACH;
      if (r + i < (i64)row.extent && c + x < (i64)column.extent)
        *(T*)(there + i * row.target) = tile[x][i];
    }
    __syncthreads();
  }
}

// Words of small elements, one below the other, turned: of P elements each, made[i] has the i-th of
// each word.
template <int P> __device__ void turn(const u32 (&from)[P], u32 (&made)[P]);
template <> __device__ void turn<1>(const u32 (&from)[1], u32 (&made)[1]) { made[0] = from[0]; }
template <> __device__ void turn<2>(const u32 (&from)[2], u32 (&made)[2]) {
  made[0] = __byte_perm(from[0], from[1], 0x5410);
  made[1] = __byte_perm(from[0], from[1], 0x7632);
}
template <> __device__ void turn<4>(const u32 (&from)[4], u32 (&made)[4]) {
  const u32 a = __byte_perm(from[0], from[1], 0x5140), b = __byte_perm(from[2], from[3], 0x5140);
  const u32 c = __byte_perm(from[0], from[1], 0x7362), d = __byte_perm(from[2], from[3], 0x7362);
  made[0] = __byte_perm(a, b, 0x5410), made[1] = __byte_perm(a, b, 0x7632);
  made[2] = __byte_perm(c, d, 0x5410), made[3] = __byte_perm(c, d, 0x7632);
}

// As tiles, with words of several elements: a thread turns a small square of them in registers.
// Where a word is in its row of shared memory depends on the row, so that threads that write a
// column, and those that read a row, use different banks.
template <int BYTES, int N, int D>
__global__ void __launch_bounds__(THREADS)
packed(char* target, const char* source, u64 batches, Axis row, Axis column, Axes<D> axes) {
  constexpr int P = 4 / BYTES, WORDS = N / P, EACH = THREADS / WORDS, ROUNDS = WORDS / EACH;
  __shared__ u32 tile[N][WORDS];
  const u32 down = (u32)((row.extent + N - 1) / N), across = (u32)((column.extent + N - 1) / N);
  const u32 count = (u32)batches * down * across;
  const int x = threadIdx.x % WORDS, y = threadIdx.x / WORDS;
  for (u32 at = blockIdx.x; at < count; at += gridDim.x) {
    const u32 rest = at / across, batch = rest / down;
    const i64 c = (i64)(at - rest * across) * N, r = (i64)(rest - batch * down) * N;
    i64 to, from;
    locate<D>(batch, axes, to, from);
    const char* of = source + from + (r + x * P) * row.source + c * column.source;
    u32 value[ROUNDS][P] = {};
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
      const int i = (y + k * EACH) * P;
      if (r + x * P < (i64)row.extent && c + i < (i64)column.extent) {
#pragma unroll
        for (int p = 0; p < P; ++p) value[k][p] = *(const u32*)(of + (i + p) * column.source);
      }
    }
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
      u32 made[P];
      turn<P>(value[k], made);
#pragma unroll
      for (int p = 0; p < P; ++p) tile[x * P + p][(y + k * EACH) ^ x] = made[p];
    }
    __syncthreads();
    char* there = target + to + r * row.target + (c + x * P) * column.target;
#pragma unroll
    for (int i = y; i < N; i += EACH)
      if (r + i < (i64)row.extent && c + x * P < (i64)column.extent)
        *(u32*)(there + i * row.target) = tile[i][x ^ i / P];
    __syncthreads();
  }
}

// As packed, with four words at a time on both sides. Of the source 128 bytes of each line are in
// a tile, of 32 K words of lines; a thread has K times four words of as many lines as a word has
// elements.
template <int BYTES, int K, int D>
__global__ void __launch_bounds__(THREADS)
turned(char* target, const char* source, u64 batches, Axis row, Axis column, Axes<D> axes) {
  constexpr int P = 4 / BYTES, V = 4 * P, ROWS = 8 * V, LINES = 32 * P * K, WORDS = 32 * K;
  __shared__ uint4 tile[ROWS * WORDS / 4];
  u32* words = (u32*)tile;
  const u32 down = (u32)((row.extent + ROWS - 1) / ROWS);
  const u32 across = (u32)((column.extent + LINES - 1) / LINES);
  const u32 count = (u32)batches * down * across;
  const int x = threadIdx.x % 8, y = threadIdx.x / 8;
  for (u32 at = blockIdx.x; at < count; at += gridDim.x) {
    const u32 rest = at / across, batch = rest / down;
    const u32 c = (at - rest * across) * LINES, r = (rest - batch * down) * ROWS;
    i64 to, from;
    locate<D>(batch, axes, to, from);
    const char* of = source + from + (i64)(r + x * V) * BYTES + (i64)(c + y * P) * column.source;
    uint4 value[K][P];
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (r + x * V < row.extent && c + (y + 32 * k) * P < column.extent) {
#pragma unroll
        for (int p = 0; p < P; ++p)
          value[k][p] = *(const uint4*)(of + (i64)(32 * k * P + p) * column.source);
      }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      u32* there = words + x * V * WORDS + ((y + 32 * k) ^ 4 * x);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        u32 some[P], made[P];
#pragma unroll
        for (int p = 0; p < P; ++p)
          some[p] = w == 0 ? value[k][p].x : w == 1 ? value[k][p].y
                  : w == 2 ? value[k][p].z : value[k][p].w;
        turn<P>(some, made);
#pragma unroll
        for (int p = 0; p < P; ++p) there[(w * P + p) * WORDS] = made[p];
      }
    }
    __syncthreads();
    char* there = target + to + (i64)r * row.target + (i64)c * BYTES;
#pragma unroll
    for (int n = 0; n < ROWS * WORDS / 4 / THREADS; ++n) {
      const int of_all = threadIdx.x + n * THREADS, q = of_all % (8 * K), i = of_all / (8 * K);
      if (r + i < row.extent && c + q * V < column.extent)
        *(uint4*)(there + i * row.target + q * 16) = tile[i * (WORDS / 4) + (q ^ i / V % 8)];
    }
    __syncthreads();
  }
}

// Few lines side by side, element by element, and one behind the other: channels of pixels and
// planes. E of them follow each other, for a number of pixels, in the source (APART) or in the
// target; column steps from one plane to the next on the other side. A thread takes as many pixels
// as WIDE bytes have elements. axes begin with those of the batches; the pixels are last.
template <int BYTES, int E, int WIDE, bool APART, int D>
__global__ void __launch_bounds__(THREADS)
strands(char* target, const char* source, u64 count, u64 plane, Axes<D> axes) {
  constexpr int WORDS = WIDE / 4, N = WIDE / BYTES, P = BYTES < 4 ? 4 / BYTES : 1;
  constexpr u32 MASK = BYTES < 4 ? (1u << 8 * BYTES % 32) - 1 : ~0u;
  const u32 step = gridDim.x * blockDim.x;
  for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < (u32)count; at += step) {
    i64 to, from;
    locate<D>(at, axes, to, from);
    u32 given[E * WORDS], made[E * WORDS] = {};
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const char* of = source + from + (APART ? e * WIDE : e * (i64)plane);
      if (WIDE == 16) {
        const uint4 some = *(const uint4*)of;
        given[e * WORDS] = some.x, given[e * WORDS + 1 % WORDS] = some.y;
        given[e * WORDS + 2 % WORDS] = some.z, given[e * WORDS + 3 % WORDS] = some.w;
      } else {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) given[e * WORDS + w] = ((const u32*)of)[w];
      }
    }
#pragma unroll
    for (int e = 0; e < E; ++e)
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int mixed = n * E + e, sorted = e * N + n;
        const int i = APART ? mixed : sorted, j = APART ? sorted : mixed;
        if (BYTES < 4) {
          made[j / P] |= (given[i / P] >> 8 * BYTES * (i % P) & MASK) << 8 * BYTES * (j % P);
        } else {
#pragma unroll
          for (int q = 0; q < BYTES / 4; ++q)
            made[j * (BYTES / 4) + q] = given[i * (BYTES / 4) + q];
        }
      }
    if (!APART && WIDE == 16) {
      // What a warp has is written one after the other, where all of it is of one row.
      const u32 first = at - threadIdx.x % 32, row = (u32)axes.axis[D - 1].extent;
      const u32 place = first - divided(first, axes.axis[D - 1]) * row;
      if (first + 31 < (u32)count && place + 31 < row) {
        __shared__ uint4 mixed[APART ? 1 : THREADS * E];
        const u32 lane = threadIdx.x % 32;
        uint4* mine = mixed + threadIdx.x / 32 * (32 * E);
#pragma unroll
        for (int e = 0; e < E; ++e)
          mine[lane * E + e] = {made[e * WORDS], made[e * WORDS + 1 % WORDS],
                                made[e * WORDS + 2 % WORDS], made[e * WORDS + 3 % WORDS]};
        __syncwarp();
        char* there = target + to - (i64)lane * (E * WIDE);
#pragma unroll
        for (int e = 0; e < E; ++e)
          *(uint4*)(there + (e * 32 + lane) * WIDE) = mine[e * 32 + lane];
        __syncwarp();
        continue;
      }
    }
#pragma unroll
    for (int e = 0; e < E; ++e) {
      char* there = target + to + (APART ? e * (i64)plane : e * WIDE);
      if (WIDE == 16) {
        *(uint4*)there = {made[e * WORDS], made[e * WORDS + 1 % WORDS], made[e * WORDS + 2 % WORDS],
                          made[e * WORDS + 3 % WORDS]};
      } else {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) ((u32*)there)[w] = made[e * WORDS + w];
      }
    }
  }
}
