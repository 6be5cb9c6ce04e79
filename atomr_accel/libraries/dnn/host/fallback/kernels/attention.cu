// Attention of a single query to a single key: the result, and gradients by each of its inputs.
//
// Each kernel is launched with one thread for each element of its result, or with fewer, which
// take several in turn. A thread computes the score of its head anew: a dot product. No mask hides
// the only key but by its length, and no slope changes its score: its distance is 0.

#include "access.cuh"
#include "philox.cuh"
#include "types.cuh"

// Where the elements of batches and heads begin; those of a head lie side by side.
struct Place { const void* data; i64 batch, head; };
struct Output { void* data; i64 batch, head; };
struct Single {
  Place q, k, v, o, grad, stats, bias;
  const float* sink;
  const int *lengths_q, *lengths_k;
  const i64 *seed, *offset;
  i64 batch, heads, kv_heads, size, value_size, threshold;
  double scale, kept, cap;
};
struct Score { bool seen; float value, slope, kept; };
struct Slope { bool seen; float p, kept, delta, scores, products; };

template <class T> __device__ float element(const Place& at, i64 b, i64 h, i64 d) {
  return get<float>(((const T*)at.data)[b * at.batch + h * at.head + d]);
}
template <class T>
__device__ float dot(const Place& x, i64 hx, const Place& y, i64 hy, i64 b, i64 count) {
  float sum = 0;
  for (i64 d = 0; d < count; ++d) sum += element<T>(x, b, hx, d) * element<T>(y, b, hy, d);
  return sum;
}
template <class T> __device__ void store(const Output& at, i64 b, i64 h, i64 d, float value) {
  put(((T*)at.data)[b * at.batch + h * at.head + d], value);
}
__device__ i64 shared_head(const Single& s, i64 h) { return h / (s.heads / s.kv_heads); }

// Nothing is read where there is no query or no key: anything may lie there.
template <class T> __device__ Score score(const Single& s, i64 b, i64 h) {
  Score made = {!s.lengths_q || (s.lengths_q[b] > 0 && s.lengths_k[b] > 0), 0, 0, 1};
  if (!made.seen) return made;
  made.slope = (float)s.scale;
  made.value = dot<T>(s.q, h, s.k, shared_head(s, h), b, s.size) * made.slope;
  if (s.cap != 0) {
    const float bent = tanh(made.value / (float)s.cap);
    made.value = bent * (float)s.cap;
    made.slope *= 1 - bent * bent;
  }
  if (s.bias.data) made.value += element<T>(s.bias, b, h, 0);
  if (s.seed) {
    const u64 word = (u64)*s.offset + b * s.heads + h;
    const uint4 drawn = random_words(word / 4, (u64)*s.seed);
    const u32 words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
    made.kept = words[word % 4] < (u64)s.threshold ? 0 : (float)s.kept;
  }
  return made;
}

template <class T> __global__ void forward(Single s, Output o, Output stats, i64 count) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const i64 d = i % s.value_size, row = i / s.value_size;
    const i64 h = row % s.heads, b = row / s.heads;
    const Score made = score<T>(s, b, h);
    float p = exp(made.value - made.value), logs = made.value;
    if (!made.seen) {
      p = 0;
      logs = s.sink ? s.sink[h] : __uint_as_float(0xff800000u);
    } else if (s.sink) {
      const float top = s.sink[h] > made.value ? s.sink[h] : made.value;
      const float mine = exp(made.value - top), total = mine + exp(s.sink[h] - top);
      p = mine / total;
      logs = log(total) + top;
    }
    const float value = made.seen ? element<T>(s.v, b, shared_head(s, h), d) : 0.0f;
    store<T>(o, b, h, d, p * made.kept * value);
    if (stats.data && d == 0) store<float>(stats, b, h, 0, logs);
  }
}

template <class T> __device__ Slope slope(const Single& s, i64 b, i64 h) {
  const Score made = score<T>(s, b, h);
  Slope found = {made.seen, 0, made.kept, 0, 0, 0};
  if (!made.seen) return found;
  const float stats = element<float>(s.stats, b, h, 0);
  found.p = exp(made.value - (stats - stats == 0 ? stats : 0));
  found.delta = dot<T>(s.o, h, s.grad, h, b, s.value_size);
  const float dp = dot<T>(s.grad, h, s.v, shared_head(s, h), b, s.value_size);
  found.scores = found.p * (dp * made.kept - found.delta);
  found.products = found.scores * made.slope;
  return found;
}

template <class T> __global__ void by_q(Single s, Output dq, i64 count) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const i64 d = i % s.size, row = i / s.size, h = row % s.heads, b = row / s.heads;
    const Slope found = slope<T>(s, b, h);
    const float k = found.seen ? element<T>(s.k, b, shared_head(s, h), d) : 0.0f;
    store<T>(dq, b, h, d, found.products * k);
  }
}

// Those by keys and by values: sums over the query heads that share them.
template <class T> __device__ void by_shared(const Single& s, const Output& out, i64 count,
                                             const Place& other, i64 size, bool values) {
  const i64 step = (i64)gridDim.x * blockDim.x, group = s.heads / s.kv_heads;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const i64 d = i % size, row = i / size, shared = row % s.kv_heads, b = row / s.kv_heads;
    float sum = 0;
    for (i64 h = shared * group; h < (shared + 1) * group; ++h) {
      const Slope found = slope<T>(s, b, h);
      const float factor = values ? found.p * found.kept : found.products;
      if (found.seen) sum += factor * element<T>(other, b, h, d);
    }
    store<T>(out, b, shared, d, sum);
  }
}
template <class T> __global__ void by_k(Single s, Output dk, i64 count) {
  by_shared<T>(s, dk, count, s.q, s.size, false);
}
template <class T> __global__ void by_v(Single s, Output dv, i64 count) {
  by_shared<T>(s, dv, count, s.grad, s.value_size, true);
}

// A bias may be one for all batches, and for all heads; steps are 0 then.
template <class T>
__global__ void by_bias(Single s, Output dbias, i64 batches, i64 heads, i64 count) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    float sum = 0;
    for (i64 b = i / heads; b < s.batch; b += batches)
      for (i64 h = i % heads; h < s.heads; h += heads) sum += slope<T>(s, b, h).scores;
    store<T>(dbias, i / heads, i % heads, 0, sum);
  }
}

template <class T> __global__ void by_sink(Single s, Output dsink, i64 count) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 h = (i64)blockIdx.x * blockDim.x + threadIdx.x; h < count; h += step) {
    float sum = 0;
    for (i64 b = 0; b < s.batch; ++b) {
      const Slope found = slope<T>(s, b, h);
      if (found.seen) sum -= exp(s.sink[h] - element<float>(s.stats, b, h, 0)) * found.delta;
    }
    store<float>(dsink, 0, h, 0, sum);
  }
}
