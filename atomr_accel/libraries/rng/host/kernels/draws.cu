// The RNG lane's kernels: distributions over random words, Sobol points, choices.
//
// A distribution is a struct that turns words into values. The same struct serves words made
// on the spot by Philox ("fill") and words that cuRAND has made ("apply"), and its "point"
// serves quasi-random words ("sobol"), where a value may depend on one word only.
//
// Every kernel is launched with one thread for each item (a block of four words for "fill" and
// "apply", a value or a row's piece for the others), or with fewer, which take several in turn.

#include "conversions.cuh"
#include "philox.cuh"
#include "types.cuh"

// --- Philox's sequence -----------------------------------------------------------------

// Words 4b to 4b + 3 of the sequence, in the order of cuRAND's PHILOX4_32_10: blocks go
// round 65536 subsequences.
__device__ __forceinline__ uint4 block_of_words(u64 b, u64 key) {
  return philox(uint4{(u32)(b >> 16), (u32)(b >> 48), (u32)b & 0xFFFFu, 0u}, key);
}

// The last counter word keeps other uses of the same key apart from the sequence.
enum { SEQUENCE, SIDE, AGAIN, PERMUTATION };

__device__ __forceinline__ uint4 other_words(u64 index, u32 attempt, u32 use, u64 key) {
  return philox(uint4{(u32)index, (u32)(index >> 32), attempt, use}, key);
}

struct Params {
  double a, b;
  u64 low, span, biased, extent;
  const double* table;
};

// Four words of a block, and where to find more if they are not enough.
struct Words {
  uint4 w;
  u64 index, key;
  __device__ u64 again(u32 lane, u32 attempt) const {
    const uint4 more = other_words(index, attempt * 4 + lane, AGAIN, key);
    return (u64)more.y << 32 | more.x;
  }
};

// --- words as numbers ------------------------------------------------------------------

template <class T> struct Arithmetic { typedef float type; };
template <> struct Arithmetic<double> { typedef double type; };

__device__ __forceinline__ u64 join(u32 low, u32 high) { return (u64)high << 32 | low; }

// In [0, 1), with as many bits as the type holds, so that none rounds up to 1.
template <class T> struct Bits;
template <> struct Bits<b16> { enum { value = 8 }; };
template <> struct Bits<h16> { enum { value = 11 }; };
template <> struct Bits<float> { enum { value = 24 }; };
template <> struct Bits<double> { enum { value = 53 }; };
template <class T> __device__ __forceinline__ float unit(u32 w) {
  return (float)(w >> (32 - Bits<T>::value)) * (1.0f / (1u << Bits<T>::value));
}
__device__ __forceinline__ double unit(u64 w) { return (double)(w >> 11) * 0x1p-53; }

// In (0, 1], for logarithms.
__device__ __forceinline__ float positive(u32 w) { return (float)w * 0x1p-32f + 0x1p-33f; }
__device__ __forceinline__ double positive(u64 w) {
  return (double)(w >> 11) * 0x1p-53 + 0x1p-54;
}

// A quasi-random word as the middle of what it stands for, which is never 0 or 1.
__device__ __forceinline__ double middle(u32 w) { return ((double)w + 0.5) * 0x1p-32; }
__device__ __forceinline__ double middle(u64 w) { return ((double)(w >> 12) + 0.5) * 0x1p-52; }
template <class T> __device__ double start(u32 w) {
  const int drop = Bits<T>::value < 32 ? 32 - Bits<T>::value : 0;
  return (double)(w >> drop << drop) * 0x1p-32;
}
template <class T> __device__ double start(u64 w) {
  return (double)(w >> (64 - Bits<T>::value)) * (1.0 / (double)(1ull << Bits<T>::value));
}

__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float power(float x, float y) { return powf(x, y); }
__device__ __forceinline__ double power(double x, double y) { return pow(x, y); }

__device__ __forceinline__ void give(float& target, double value) { target = (float)value; }
__device__ __forceinline__ void give(double& target, double value) { target = value; }
__device__ __forceinline__ void give(h16& target, double value) { narrow(target, (float)value); }
__device__ __forceinline__ void give(b16& target, double value) { narrow(target, (float)value); }
__device__ __forceinline__ void give(float& target, float value) { target = value; }
__device__ __forceinline__ void give(h16& target, float value) { narrow(target, value); }
__device__ __forceinline__ void give(b16& target, float value) { narrow(target, value); }

// --- distributions: four words give V values -------------------------------------------

template <class T> struct Lanes { enum { V = 4 }; };
template <> struct Lanes<double> { enum { V = 2 }; };

// For distributions that make each value of one word: D::one.
template <class D, class T> struct PerWord {
  typedef T Type;
  typedef typename Arithmetic<T>::type R;
  enum { V = 4 };
  __device__ static void make(const Words& words, const Params& p, T* r) {
    D::one(words, words.w.x, 0, p, r[0]);
    D::one(words, words.w.y, 1, p, r[1]);
    D::one(words, words.w.z, 2, p, r[2]);
    D::one(words, words.w.w, 3, p, r[3]);
  }
};
template <class D> struct PerWord<D, double> {
  typedef double Type;
  typedef double R;
  enum { V = 2 };
  __device__ static void make(const Words& words, const Params& p, double* r) {
    D::one(words, join(words.w.x, words.w.y), 0, p, r[0]);
    D::one(words, join(words.w.z, words.w.w), 1, p, r[1]);
  }
};

template <class T> __device__ __forceinline__ float unit_of(u32 w) { return unit<T>(w); }
template <class T> __device__ __forceinline__ double unit_of(u64 w) { return unit(w); }

template <class T> struct Uniform : PerWord<Uniform<T>, T> {
  typedef typename Arithmetic<T>::type R;
  template <class W>
  __device__ static void one(const Words&, W w, u32, const Params& p, T& r) {
    give(r, (R)p.a + (R)p.b * unit_of<T>(w));
  }
  template <class W> __device__ static void point(W w, const Params& p, T& r) {
    give(r, p.a + p.b * start<T>(w));
  }
};

// Box and Muller's pairs.
__device__ __forceinline__ void normal_pair(u32 u, u32 v, float& x, float& y) {
  // -2 ln u; the fast logarithm may be a trace above zero near 1.
  const float radius = fast_sqrt(fmaxf(-1.38629436f * fast_log2(positive(u)), 0.0f));
  fast_sincos((float)(int)v * (3.14159265f * 0x1p-31f), &x, &y);
  x *= radius;
  y *= radius;
}
__device__ __forceinline__ void normal_pair(u64 u, u64 v, double& x, double& y) {
  const double radius = sqrt(-2.0 * log(positive(u)));
  sincospi(2.0 * unit(v), &x, &y);
  x *= radius;
  y *= radius;
}
__device__ __forceinline__ void normals(const Words& words, float* z) {
  normal_pair(words.w.x, words.w.y, z[0], z[1]);
  normal_pair(words.w.z, words.w.w, z[2], z[3]);
}
__device__ __forceinline__ void normals(const Words& words, double* z) {
  normal_pair(join(words.w.x, words.w.y), join(words.w.z, words.w.w), z[0], z[1]);
}

template <class T> struct Normal : Lanes<T> {
  typedef T Type;
  typedef typename Arithmetic<T>::type R;
  __device__ static void make(const Words& words, const Params& p, T* r) {
    R z[Lanes<T>::V];
    normals(words, z);
#pragma unroll
    for (int i = 0; i < Lanes<T>::V; ++i) give(r[i], (R)p.a + (R)p.b * z[i]);
  }
  template <class W> __device__ static void point(W w, const Params& p, T& r) {
    give(r, p.a + p.b * normcdfinv(middle(w)));
  }
};

template <class T> struct LogNormal : Lanes<T> {
  typedef T Type;
  typedef typename Arithmetic<T>::type R;
  __device__ static void make(const Words& words, const Params& p, T* r) {
    R z[Lanes<T>::V];
    normals(words, z);
#pragma unroll
    for (int i = 0; i < Lanes<T>::V; ++i) give(r[i], exponential((R)p.a + (R)p.b * z[i]));
  }
  template <class W> __device__ static void point(W w, const Params& p, T& r) {
    give(r, exp(p.a + p.b * normcdfinv(middle(w))));
  }
};

template <class T> struct Exponential : PerWord<Exponential<T>, T> {
  typedef typename Arithmetic<T>::type R;
  template <class W>
  __device__ static void one(const Words&, W w, u32, const Params& p, T& r) {
    give(r, (R)p.a * -logarithm(positive(w)));
  }
  template <class W> __device__ static void point(W w, const Params& p, T& r) {
    give(r, p.a * -log1p(-middle(w)));
  }
};

__device__ __forceinline__ double tangent(double turns) {
  double s, c;
  sincospi(turns, &s, &c);
  return s / c;
}
template <class T> struct Cauchy : PerWord<Cauchy<T>, T> {
  template <class W>
  __device__ static void one(const Words&, W w, u32, const Params& p, T& r) {
    point(w, p, r);
  }
  template <class W> __device__ static void point(W w, const Params& p, T& r) {
    give(r, p.a + p.b * tangent(middle(w) - 0.5));
  }
};

// Lemire's way to integers below a span, exact: what would be biased is drawn again.
template <class T> struct Integers32 : PerWord<Integers32<T>, T> {
  __device__ static void one(const Words& words, u32 w, u32 lane, const Params& p, T& r) {
    const u32 span = (u32)p.span;  // 0 stands for all of them
    u64 product = span ? (u64)w * span : (u64)w << 32;
    for (u32 attempt = 0; (u32)product < (u32)p.biased; ++attempt)
      product = (u64)(u32)words.again(lane, attempt) * span;
    r = (T)(p.low + (product >> 32));
  }
  __device__ static void point(u32 w, const Params& p, T& r) {
    r = (T)(p.low + ((u32)p.span ? (u64)w * (u32)p.span >> 32 : w));
  }
  __device__ static void point(u64 w, const Params& p, T& r) { point((u32)(w >> 32), p, r); }
};
template <class T> struct Integers64 {
  typedef T Type;
  enum { V = 2 };
  __device__ static T one(const Words& words, u64 w, u32 lane, const Params& p) {
    if (!p.span) return (T)(p.low + w);
    for (u32 attempt = 0; w * p.span < p.biased; ++attempt) w = words.again(lane, attempt);
    return (T)(p.low + __umul64hi(w, p.span));
  }
  __device__ static void make(const Words& words, const Params& p, T* r) {
    r[0] = one(words, join(words.w.x, words.w.y), 0, p);
    r[1] = one(words, join(words.w.z, words.w.w), 1, p);
  }
  __device__ static void point(u64 w, const Params& p, T& r) {
    r = (T)(p.low + (p.span ? __umul64hi(w, p.span) : w));
  }
  __device__ static void point(u32 w, const Params& p, T& r) { point((u64)w << 32, p, r); }
};

// The inverse of a distribution function that is a table: the first entry above u.
template <class T> struct Search {
  typedef T Type;
  enum { V = 2 };
  __device__ static T find(double u, const Params& p) {
    u64 low = 0, high = p.extent - 1;
    while (low < high) {
      const u64 at = low + (high - low) / 2;
      if (u < p.table[at]) high = at; else low = at + 1;
    }
    return (T)(p.low + low);
  }
  __device__ static void make(const Words& words, const Params& p, T* r) {
    r[0] = find(unit(join(words.w.x, words.w.y)), p);
    r[1] = find(unit(join(words.w.z, words.w.w)), p);
  }
  template <class W> __device__ static void point(W w, const Params& p, T& r) {
    r = find(start<double>(w), p);
  }
};

// The first success, where trials fail with a probability whose logarithm is a.
template <class T> struct Geometric {
  typedef T Type;
  enum { V = 2 };
  __device__ static T first(double logarithm, const Params& p) {
    return (T)(u64)fmax(1.0, ceil(logarithm / p.a));
  }
  __device__ static void make(const Words& words, const Params& p, T* r) {
    r[0] = first(log(positive(join(words.w.x, words.w.y))), p);
    r[1] = first(log(positive(join(words.w.z, words.w.w))), p);
  }
  template <class W> __device__ static void point(W w, const Params& p, T& r) {
    r = first(log1p(-middle(w)), p);
  }
};

template <class T, int V> struct alignas(sizeof(T) * V) Pack { T v[V]; };

// A thread for each block of four words, which ``words`` gives.
template <class D, class F>
__device__ __forceinline__ void make_all(typename D::Type* out, u64 count, const Params& p,
                                         const F& words) {
  typedef Pack<typename D::Type, D::V> P;
  const u64 step = (u64)gridDim.x * blockDim.x;
  // A view may begin where no pack can be; its values are stored one by one.
  const u64 whole = (u64)out % sizeof(P) ? 0 : count / D::V, blocks = (count + D::V - 1) / D::V;
  u64 b = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  P pack;
  for (; b < whole; b += step) {
    D::make(words(b), p, pack.v);
    ((P*)out)[b] = pack;
  }
  for (; b < blocks; b += step) {
    D::make(words(b), p, pack.v);
#pragma unroll
    for (int i = 0; i < D::V; ++i)
      if (b * D::V + i < count) out[b * D::V + i] = pack.v[i];
  }
}

template <class D>
__global__ void fill(typename D::Type* out, u64 count, u64 key, u64 first, Params p) {
  make_all<D>(out, count, p, [=](u64 b) {
    return Words{block_of_words(first + b, key), first + b, key};
  });
}

// The same over words that are there; they may lie where the values go.
template <class D>
__global__ void apply(typename D::Type* out, const uint4* there, u64 count, u64 key, u64 first,
                      Params p) {
  make_all<D>(out, count, p, [=](u64 b) { return Words{there[b], first + b, key}; });
}

// --- distributions that draw until they accept ----------------------------------------

// Words of one value's own, as many as it takes.
struct Chain {
  u64 index, key;
  u32 attempt;
  uint4 w;
  int left;
  __device__ Chain(u64 index, u64 key) : index(index), key(key), attempt(0), left(0) {}
  __device__ u32 word() {
    if (!left) {
      w = other_words(index, attempt++, SIDE, key);
      left = 4;
    }
    const u32 value = left == 4 ? w.x : left == 3 ? w.y : left == 2 ? w.z : w.w;
    --left;
    return value;
  }
  __device__ u64 pair() {
    const u32 low = word();
    return join(low, word());
  }
  __device__ void positive_one(float& u) { u = positive(word()); }
  __device__ void positive_one(double& u) { u = positive(pair()); }
  __device__ double unit_one() { return unit(pair()); }
  __device__ void normal(float& x) {
    float y;
    const u32 u = word();
    normal_pair(u, word(), x, y);
  }
  __device__ void normal(double& x) {
    double y;
    const u64 u = pair();
    normal_pair(u, pair(), x, y);
  }
};

// The logarithm of a gamma variate, by Marsaglia and Tsang (2000), which stays finite for
// shapes so small that the variate itself is too small for its type.
template <class R> __device__ R log_gamma_variate(R shape, Chain& chain) {
  R boost = 0;
  if (shape < (R)1) {
    R u;
    chain.positive_one(u);
    boost = logarithm(u) / shape;
    shape += (R)1;
  }
  const R d = shape - (R)1 / (R)3, c = (R)1 / root((R)9 * d);
  for (;;) {
    R x, u;
    chain.normal(x);
    R v = (R)1 + c * x;
    if (v <= (R)0) continue;
    v = v * v * v;
    chain.positive_one(u);
    if (logarithm(u) < (R)0.5 * x * x + d * ((R)1 - v + logarithm(v)))
      return boost + logarithm(d * v);
  }
}

template <class T> struct Gamma {
  typedef T Type;
  typedef typename Arithmetic<T>::type R;
  __device__ static void make(Chain& chain, u64, const Params& p, T& r) {
    give(r, (R)p.a > 0 ? (R)p.b * exponential(log_gamma_variate((R)p.a, chain)) : (R)0);
  }
};

// Of two gamma variates that may both be tiny, hence in double and by their logarithms.
template <class T> struct Beta {
  typedef T Type;
  __device__ static void make(Chain& chain, u64, const Params& p, T& r) {
    const double x = log_gamma_variate(p.a, chain), y = log_gamma_variate(p.b, chain);
    give(r, 1.0 / (1.0 + exp(y - x)));
  }
};

// Multiplication of uniforms for few events, Hoermann's PTRS (1993) for many.
template <class T> struct Poisson {
  typedef T Type;
  __device__ static void make(Chain& chain, u64, const Params& p, T& r) {
    const double mean = p.a;
    if (mean < 10) {
      const double least = exp(-mean);
      double product = chain.unit_one();
      i64 events = 0;
      while (product > least) {
        ++events;
        product *= chain.unit_one();
      }
      r = (T)events;
      return;
    }
    const double log_mean = log(mean), b = 0.931 + 2.53 * sqrt(mean);
    const double a = -0.059 + 0.02483 * b, inverse = 1.1239 + 1.1328 / (b - 3.4);
    const double sure = 0.9277 - 3.6224 / (b - 2);
    for (;;) {
      const double u = chain.unit_one() - 0.5, v = chain.unit_one(), us = 0.5 - fabs(u);
      const double k = floor((2 * a / us + b) * u + mean + 0.43);
      if (us >= 0.07 && v <= sure) {
        r = (T)(i64)k;
        return;
      }
      if (k < 0 || (us < 0.013 && v > us)) continue;
      if (log(v * inverse / (a / (us * us) + b)) <= k * log_mean - mean - lgamma(k + 1)) {
        r = (T)(i64)k;
        return;
      }
    }
  }
};

// Events whose mean is a gamma variate of shape a and scale b.
template <class T> struct NegativeBinomial {
  typedef T Type;
  __device__ static void make(Chain& chain, u64 at, const Params& p, T& r) {
    Params events = p;
    events.a = p.b * exp(log_gamma_variate(p.a, chain));
    Poisson<T>::make(chain, at, events, r);
  }
};

// The time at which an item of a weight comes up; the first ones make a weighted sample.
struct Race {
  typedef double Type;
  __device__ static void make(Chain& chain, u64 i, const Params& p, double& r) {
    const double weight = p.table ? p.table[i] : 1.0;
    double u;
    chain.positive_one(u);
    r = weight > 0 ? -log(u) / weight : 1.0 / 0.0;
  }
};

template <class D>
__global__ void draw_each(typename D::Type* out, u64 count, u64 key, u64 first, Params p) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    Chain chain(first + i, key);
    D::make(chain, i, p, out[i]);
  }
}

// --- choices --------------------------------------------------------------------------

// Item i goes to the place that its time has among all, if that is one of the first.
__global__ void first_of(i64* out, const double* times, u64 items, u64 wanted) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < items; i += step) {
    const double mine = times[i];
    u64 place = 0;
    for (u64 j = 0; j < items; ++j) place += times[j] < mine || (times[j] == mine && j < i);
    if (place < wanted) out[place] = (i64)i;
  }
}

// A random permutation, one place at a time: a Feistel network on the least even number of
// bits that holds all items, walked until it lands on one.
__global__ void permute(i64* out, u64 items, u64 wanted, u64 key, u64 call) {
  int half = 1;
  while (half < 31 && items - 1 >> 2 * half) ++half;
  const u32 mask = half == 32 ? ~0u : (1u << half) - 1;
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < wanted; i += step) {
    u64 at = i;
    do {
      u32 left = (u32)(at >> half), right = (u32)at & mask;
      for (u32 round = 0; round < 10; ++round) {
        const u32 use = round << 2 | PERMUTATION;
        const u32 word = philox(uint4{right, (u32)call, (u32)(call >> 32), use}, key).x;
        const u32 next = (left ^ word) & mask;
        left = right;
        right = next;
      }
      at = (u64)left << half | right;
    } while (at >= items);
    out[i] = (i64)at;
  }
}

struct alignas(16) Wide { u64 x, y; };

template <class T>
__global__ void take(T* out, const T* rows, const i64* index, u64 count, u64 width) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step)
    out[at] = rows[(u64)index[at / width] * width + at % width];
}

// --- Sobol points, from the vendor's direction vectors ---------------------------------

template <class D, class W>
__global__ void sobol(typename D::Type* out, const W* vectors, const W* scramble, u64 count,
                      u64 first, u64 dims, Params p) {
  const int bits = sizeof(W) * 8;
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const u64 point = at / dims, dim = at - point * dims, n = first + point;
    W word = scramble ? scramble[dim] : (W)0;
    u64 gray = n ^ n >> 1;
    for (const W* vector = vectors + dim * bits; gray; gray >>= 1, ++vector)
      if (gray & 1) word ^= *vector;
    D::point(word, p, out[at]);
  }
}
