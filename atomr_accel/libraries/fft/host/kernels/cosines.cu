// Cosine and sine transforms along an axis, around a Fourier transform: "fold" makes its rows of
// the numbers along the axis, and "spread" puts there what comes of these. Rows follow each other
// in memory. Where the axis is not the last one, fold_tiles and spread_tiles go through shared
// memory, so that both sides are read and written along lines.
//
// Each is launched with blocks of THREADS threads, one for each element of a row or SIDE by SIDE of
// them for a block, or with fewer, which take several in turn. THREADS and SIDE come from Python,
// which packs the arguments.

#include "elements.cuh"
#include "types.cuh"

// inner: elements from one number along the axis to the next. extent: how many there are of them in
// the source, of which the transform takes points, with zeros behind. width: elements of a row.
// taken: how many of them mean something.
struct Series {
  i64 inner, extent, points, width, taken;
  double scale;
  int sine, orthogonal;
};

// Cosine and sine of pi k / n.
__device__ void turn(i64 k, i64 n, double& c, double& s) {
  sincospi((double)k / (double)n, &s, &c);
}
__device__ void turn(i64 k, i64 n, float& c, float& s) {
  // What is lost where the angle becomes single precision is put back by a step along the tangent.
  const double angle = (double)k / (double)n;
  const float near = (float)angle, rest = (float)(angle - (double)near) * 3.14159265f;
  float sine, cosine;
  sincospif(near, &sine, &cosine);
  s = sine + cosine * rest;
  c = cosine - sine * rest;
}

// The numbers along the axis.
template <class A, class S> struct Line {
  const S* source;
  i64 step, extent, last;
  bool reversed;
  __device__ A operator()(i64 j) const {
    if (reversed) j = last - j;
    return j < extent ? real<A>(source[j * step]) : (A)0;
  }
};

#define ROOT 1.41421356237309504880

// What a type makes of the numbers for place t of a row, and of element k of what the transform
// gives: one or two values, and their places along the axis, -1 for none.
template <int TYPE, class A> struct Form;

// An even or odd continuation.
template <class A> struct Form<1, A> {
  typedef A In;
  typedef Pair<A> Out;
  template <class L> static __device__ In fold(const L& x, i64 t, const Series& s) {
    const i64 n = s.points;
    if (s.sine) return t == 0 || t == n + 1 ? (A)0 : t <= n ? x(t - 1) : -x(2 * n + 1 - t);
    const i64 j = t < n ? t : 2 * n - 2 - t;
    return s.orthogonal && (j == 0 || j == n - 1) ? x(j) * (A)ROOT : x(j);
  }
  static __device__ void places(i64 k, const Series& s, i64 (&at)[2]) {
    at[0] = s.sine ? (k <= s.points ? k - 1 : -1) : k;
    at[1] = -1;
  }
  static __device__ void values(const Out& z, i64 k, const Series& s, A (&made)[2]) {
    const bool end = s.orthogonal && (k == 0 || k == s.points - 1);
    made[0] = s.sine ? z.y * (A)-s.scale : z.x * (A)(end ? s.scale / ROOT : s.scale);
    made[1] = (A)0;
  }
};

// J. Makhoul's order: even places, and then odd ones backwards.
__device__ i64 ordered(i64 t, i64 n) { return 2 * t < n ? 2 * t : 2 * n - 1 - 2 * t; }

template <class A> struct Form<2, A> {
  typedef A In;
  typedef Pair<A> Out;
  template <class L> static __device__ In fold(const L& x, i64 t, const Series& s) {
    const A value = x(ordered(t, s.points));
    return s.sine && 2 * t >= s.points ? -value : value;
  }
  static __device__ void places(i64 k, const Series& s, i64 (&at)[2]) {
    const i64 n = s.points;
    at[0] = s.sine ? n - 1 - k : k;
    at[1] = k == 0 || 2 * k >= n ? -1 : s.sine ? k - 1 : n - k;
  }
  static __device__ void values(const Out& z, i64 k, const Series& s, A (&made)[2]) {
    A c, d;
    turn(k, 2 * s.points, c, d);
    const A scale = (A)(2 * s.scale);
    made[0] = (z.x * c + z.y * d) * (k == 0 && s.orthogonal ? (A)(ROOT * s.scale) : scale);
    made[1] = (z.x * d - z.y * c) * scale;
  }
};

template <class A> struct Form<3, A> {
  typedef Pair<A> In;
  typedef A Out;
  template <class L> static __device__ In fold(const L& x, i64 k, const Series& s) {
    if (k == 0) return {s.orthogonal ? x(0) * (A)ROOT : x(0), (A)0};
    A c, d;
    turn(k, 2 * s.points, c, d);
    const A up = x(k), down = x(s.points - k);
    return {up * c + down * d, 2 * k == s.points ? (A)0 : up * d - down * c};
  }
  static __device__ void places(i64 t, const Series& s, i64 (&at)[2]) {
    at[0] = ordered(t, s.points);
    at[1] = -1;
  }
  static __device__ void values(const Out& z, i64 t, const Series& s, A (&made)[2]) {
    made[0] = z * (A)(s.sine && 2 * t >= s.points ? -s.scale : s.scale);
    made[1] = (A)0;
  }
};

// Of an even number of points: half as many complex numbers.
template <class A> struct Form<4, A> {
  typedef Pair<A> In;
  typedef Pair<A> Out;
  template <class L> static __device__ In fold(const L& x, i64 t, const Series& s) {
    A c, d;
    turn(4 * t + 1, 4 * s.points, c, d);
    const A up = x(2 * t), down = x(s.points - 1 - 2 * t);
    return {up * c + down * d, down * c - up * d};
  }
  static __device__ void places(i64 k, const Series& s, i64 (&at)[2]) {
    at[0] = 2 * k;
    at[1] = s.points - 1 - 2 * k;
  }
  static __device__ void values(const Out& z, i64 k, const Series& s, A (&made)[2]) {
    A c, d;
    turn(k, s.points, c, d);
    const A scale = (A)(2 * s.scale);
    made[0] = (z.x * c + z.y * d) * scale;
    made[1] = (z.x * d - z.y * c) * (s.sine ? -scale : scale);
  }
};

// Of an odd number of points: twice as many complex numbers.
template <class A> struct Form<5, A> {
  typedef Pair<A> In;
  typedef Pair<A> Out;
  template <class L> static __device__ In fold(const L& x, i64 t, const Series& s) {
    if (t >= s.points) return {(A)0, (A)0};
    A c, d;
    turn(t, 2 * s.points, c, d);
    return {x(t) * c, -x(t) * d};
  }
  static __device__ void places(i64 k, const Series&, i64 (&at)[2]) {
    at[0] = k;
    at[1] = -1;
  }
  static __device__ void values(const Out& z, i64 k, const Series& s, A (&made)[2]) {
    A c, d;
    turn(2 * k + 1, 4 * s.points, c, d);
    made[0] = (z.x * c + z.y * d) * (A)(s.sine && k % 2 ? -2 * s.scale : 2 * s.scale);
    made[1] = (A)0;
  }
};

template <int TYPE, class A, class S>
__device__ Line<A, S> line(const S* source, i64 outer, i64 inner, const Series& s) {
  const bool reversed = TYPE > 2 && s.sine;
  return {source + outer * s.extent * s.inner + inner, s.inner, s.extent, s.points - 1, reversed};
}

// I is wide enough to count all elements and those that a step over the end takes.
template <int TYPE, class S, class A, class I>
__global__ void __launch_bounds__(THREADS)
fold(typename Form<TYPE, A>::In* target, const S* source, u64 count, Series s) {
  const I step = (I)gridDim.x * blockDim.x;
  for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < (I)count; at += step) {
    const I row = at / (I)s.width, outer = row / (I)s.inner;
    const Line<A, S> x = line<TYPE, A>(source, (i64)outer, (i64)(row - outer * (I)s.inner), s);
    target[at] = Form<TYPE, A>::fold(x, (i64)(at - row * (I)s.width), s);
  }
}

template <int TYPE, class A, class I>
__global__ void __launch_bounds__(THREADS)
spread(A* target, const typename Form<TYPE, A>::Out* source, u64 count, Series s) {
  const I step = (I)gridDim.x * blockDim.x;
  for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < (I)count; at += step) {
    const I row = at / (I)s.taken, outer = row / (I)s.inner;
    const i64 k = (i64)(at - row * (I)s.taken);
    A* there = target + (i64)outer * s.points * s.inner + (i64)(row - outer * (I)s.inner);
    i64 to[2];
    A made[2];
    Form<TYPE, A>::places(k, s, to);
    Form<TYPE, A>::values(source[(i64)row * s.width + k], k, s, made);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (to[i] >= 0) there[to[i] * s.inner] = made[i];
  }
}

// Where a tile is: the first of its rows, and of its elements of each.
struct Tile { i64 outer, inner, begin; };
__device__ Tile tile_at(u64 at, i64 inner, i64 row) {
  const u64 across = (u64)(inner + SIDE - 1) / SIDE, down = (u64)(row + SIDE - 1) / SIDE;
  const u64 rest = at / across, outer = rest / down;
  return {(i64)outer, (i64)(at - rest * across) * SIDE, (i64)(rest - outer * down) * SIDE};
}

template <int TYPE, class S, class A>
__global__ void __launch_bounds__(THREADS)
fold_tiles(typename Form<TYPE, A>::In* target, const S* source, u64 count, Series s) {
  constexpr int EACH = THREADS / SIDE;
  __shared__ typename Form<TYPE, A>::In tile[SIDE][SIDE + 1];
  const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
  for (u64 at = blockIdx.x; at < count; at += gridDim.x) {
    const Tile of = tile_at(at, s.inner, s.width);
    if (of.inner + x < s.inner) {
      const Line<A, S> numbers = line<TYPE, A>(source, of.outer, of.inner + x, s);
#pragma unroll
      for (int k = y; k < SIDE; k += EACH)
        if (of.begin + k < s.width) tile[k][x] = Form<TYPE, A>::fold(numbers, of.begin + k, s);
    }
    __syncthreads();
#pragma unroll
    for (int k = y; k < SIDE; k += EACH)
      if (of.inner + k < s.inner && of.begin + x < s.width)
        target[(of.outer * s.inner + of.inner + k) * s.width + of.begin + x] = tile[x][k];
    __syncthreads();
  }
}

template <int TYPE, class A>
__global__ void __launch_bounds__(THREADS)
spread_tiles(A* target, const typename Form<TYPE, A>::Out* source, u64 count, Series s) {
  constexpr int EACH = THREADS / SIDE;
  __shared__ A tile[2][SIDE][SIDE + 1];
  const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
  for (u64 at = blockIdx.x; at < count; at += gridDim.x) {
    const Tile of = tile_at(at, s.inner, s.taken);
#pragma unroll
    for (int k = y; k < SIDE; k += EACH)
      if (of.inner + k < s.inner && of.begin + x < s.taken) {
        const i64 row = of.outer * s.inner + of.inner + k;
        A made[2];
        Form<TYPE, A>::values(source[row * s.width + of.begin + x], of.begin + x, s, made);
        tile[0][x][k] = made[0];
        tile[1][x][k] = made[1];
      }
    __syncthreads();
    A* there = target + of.outer * s.points * s.inner + of.inner + x;
#pragma unroll
    for (int k = y; k < SIDE; k += EACH)
      if (of.inner + x < s.inner && of.begin + k < s.taken) {
        i64 to[2];
        Form<TYPE, A>::places(of.begin + k, s, to);
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (to[i] >= 0) there[to[i] * s.inner] = tile[i][k][x];
      }
    __syncthreads();
  }
}
