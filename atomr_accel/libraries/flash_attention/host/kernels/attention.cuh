// What forward and backward kernels share: where sequences are, what becomes of scores, tiles.
#pragma once

#include "access.cuh"
#include "philox.cuh"
#include "warps.cuh"

#define CAP 1     // softcap
#define SLOPES 2  // penalties by distance
#define BIAS 4
#define DROPOUT 8
#define PAGES 16

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define INFINITE __uint_as_float(0x7f800000u)

// Elements from one to the next. Of keys and values in pages "batch" is the step of pages, of
// sequences one after the other it is 0.
struct Steps {
  i64 batch, head, row;
};

// All arguments of all kernels: `Problem` in _problem.py has the same fields in the same order.
struct Problem {
  const void *q, *k, *v;
  void* o;
  float* lse;
  const int *begin_q, *begin_k;  // where sequences begin, and the end; null where all are alike
  const int *count_q, *count_k;  // how long each is; null where all are, or `begin` tells
  const int* table;              // pages of each sequence, or null
  const float *slopes, *sink;
  const void* bias;
  const float *scale_q, *scale_k, *scale_v;  // what fp8 numbers are multiplied by, or null
  const void* grad;
  void *dq, *dk, *dv, *dbias;
  float *dsink, *delta;
  float *part_o, *part_lse;  // of each split
  Steps q_steps, k_steps, v_steps, o_steps, grad_steps, lse_steps, bias_steps;
  i64 slopes_batch;
  u64 seed, offset;
  int batch, heads, kv_heads, queries, keys, size, value_size;
  int page, columns, pages;
  int added;          // keys of each sequence beyond `count_k`
  int before, after;  // how many keys beside its own a query sees; -1 for all
  int bottom_right;
  int tiles, splits;
  int bias_batch, bias_heads, bias_rows;
  int q_scales, k_scales, v_scales;  // 1: a scale for each sequence and head of keys; 0: one
  float scale, cap, kept;  // kept: what probabilities that are not dropped are multiplied by
  u32 threshold;           // random words below it drop theirs
};

// A sequence of a batch: lengths, and what is in front of it.
struct Sequence {
  int queries, keys;     // of it
  i64 first_q, first_k;  // rows in front of it
  int shift;             // query i belongs to key i + shift
};

__device__ __forceinline__ int between(int low, int value, int high) {
  return value < low ? low : value > high ? high : value;
}

__device__ __forceinline__ Sequence sequence_of(const Problem& p, int b) {
  Sequence s;
  s.first_q = p.begin_q ? p.begin_q[b] : 0;
  s.first_k = p.begin_k && !p.table ? p.begin_k[b] : 0;
  s.queries = p.count_q ? p.count_q[b] : p.begin_q ? p.begin_q[b + 1] - p.begin_q[b] : p.queries;
  s.keys = p.count_k   ? p.count_k[b] + p.added
           : p.begin_k ? p.begin_k[b + 1] - p.begin_k[b]
                       : p.keys;
  s.queries = between(0, s.queries, p.queries);
  s.keys = between(0, s.keys, p.keys);
  s.shift = p.bottom_right ? s.keys - s.queries : 0;
  return s;
}

// The keys that queries `first` to `last` see, from `low` to below `high`; none where those are
// equal.
__device__ __forceinline__ void keys_of(const Problem& p, const Sequence& s, int first, int last,
                                        int& low, int& high) {
  low = p.before < 0 ? 0 : between(0, first + s.shift - p.before, s.keys);
  high = p.after < 0
             ? s.keys
             : between(low, (int)min((i64)s.keys, (i64)last + s.shift + p.after + 1), s.keys);
}

// Rows of a head.
template <class T, bool PAGED>
struct Rows {
  const T* base;
  i64 step, page_step;
  const int* table;
  int page, columns, pages;
  __device__ __forceinline__ const T* at(int row, bool& there) const {
    if constexpr (!PAGED) return base + row * step;
    const int column = row / page;
    const int found = there && column < columns ? table[column] : -1;
    there = found >= 0 && found < pages;
    return base + (there ? found * page_step + (row - column * page) * step : 0);
  }
};
template <class T>
__device__ __forceinline__ Rows<T, false> rows_of(const void* base, const Steps& steps, int b,
                                                  int head, i64 first) {
  return {(const T*)base + b * steps.batch + head * steps.head + first * steps.row, steps.row};
}
template <class T, bool PAGED>
__device__ __forceinline__ Rows<T, PAGED> keys_at(const Problem& p, const void* base,
                                                  const Steps& steps, int b, int head, i64 first) {
  if constexpr (PAGED)
    return {(const T*)base + head * steps.head,
            steps.row,
            steps.batch,
            p.table + (i64)b * p.columns,
            p.page,
            p.columns,
            p.pages};
  else return {(const T*)base + b * steps.batch + head * steps.head + first * steps.row, steps.row};
}

// A tile in shared memory: rows of D numbers, 16 bytes apart, so that ldmatrix meets no bank twice.
template <int D>
__device__ constexpr int width() {
  return D + 8;
}
template <int D>
__device__ constexpr int bytes(int rows) {
  return rows * width<D>() * 2;
}

// Rows from `first` on; zeros from `end` on, and in columns from `size` on. THREADS threads share
// the work, of which this is number `thread`.
template <int ROWS, int D, int THREADS, class T, bool PAGED>
__device__ __forceinline__ void load_tile(Place to, const Rows<T, PAGED>& from, int first, int end,
                                          int size, int thread) {
  constexpr int PIECES = D / 8;
  if constexpr (THREADS % PIECES == 0) {  // a thread has the same columns of all of its rows
    constexpr int STEP = THREADS / PIECES;
    const int r = thread / PIECES, x = thread % PIECES * 8;
    to += bytes<D>(r) + x * 2;
    const T* place = from.base + (PAGED ? 0 : (first + r) * from.step) + x;
    const int left = x < size ? end - first - r : 0;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
      if (ROWS % STEP && i + r >= ROWS) break;
      bool there = i < left;
      if constexpr (PAGED) place = from.at(first + r + i, there) + x;
      copy16(to + bytes<D>(i), place, there);
      if constexpr (!PAGED) place += STEP * from.step;
    }
  } else {
    for (int i = thread; i < ROWS * PIECES; i += THREADS) {
      const int r = i / PIECES, x = i % PIECES * 8;
      bool there = first + r < end && x < size;
      const T* place = from.at(first + r, there) + x;
      copy16(to + bytes<D>(r) + x * 2, place, there);
    }
  }
}

// Where a lane begins to read tiles: as A or transposed, and as B.
template <int D>
__device__ __forceinline__ Place along_rows(Place tile) {
  const int lane = threadIdx.x % 32;
  return tile + bytes<D>(lane % 16) + lane / 16 * 16;
}
template <int D>
__device__ __forceinline__ Place along_columns(Place tile) {
  const int lane = threadIdx.x % 32;
  return tile + bytes<D>(lane % 8 + lane / 16 * 8) + lane / 8 % 2 * 16;
}
// Fragments of A: 16 rows, columns from 16 * k on.
__device__ __forceinline__ void load_a(u32 (&a)[4], Place along, int k) {
  load_matrices(a, along + k * 32);
}
// Fragments of B for rows n and n + 8 of its transpose: b[0], b[1] and b[2], b[3].
template <int D>
__device__ __forceinline__ void load_b(u32 (&b)[4], Place along, int n, int k) {
  load_matrices(b, along + bytes<D>(n * 16) + k * 32);
}
// The same of B itself: its rows are those of the tile.
template <int D>
__device__ __forceinline__ void load_bt(u32 (&b)[4], Place along, int n, int k) {
  load_transposed(b, along + bytes<D>(k * 16) + n * 32);
}

// d += a @ b.T of tiles whose rows are D long: 16 rows of a, 8 * N of b.
template <int N, int D, class T>
__device__ __forceinline__ void multiply_rows(float (&d)[N][4], Place a, Place b, T type) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    u32 left[4];
    load_a(left, a, k);
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      u32 right[4];
      load_b<D>(right, b, n, k);
      multiply(d[2 * n], left, right[0], right[1], type);
      multiply(d[2 * n + 1], left, right[2], right[3], type);
    }
  }
}
// d += p @ b: p is 16 x (8 * K) in registers as a result of `multiply`, b a tile of 8 * K rows.
template <int K, int D, class T>
__device__ __forceinline__ void multiply_into(float (&d)[D / 8][4], const float (&p)[K][4], Place b,
                                              T type) {
#pragma unroll
  for (int k = 0; k < K / 2; ++k) {
    const u32 left[4] = {pack(p[2 * k][0], p[2 * k][1], type), pack(p[2 * k][2], p[2 * k][3], type),
                         pack(p[2 * k + 1][0], p[2 * k + 1][1], type),
                         pack(p[2 * k + 1][2], p[2 * k + 1][3], type)};
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      u32 right[4];
      load_bt<D>(right, b, n, k);
      multiply(d[2 * n], left, right[0], right[1], type);
      multiply(d[2 * n + 1], left, right[2], right[3], type);
    }
  }
}

// ALiBi's slope of a head: one that is given, or that of the paper (Press et al., 2021).
__device__ __forceinline__ float slope_of(const Problem& p, int b, int head) {
  if (p.slopes) return p.slopes[b * p.slopes_batch + head];
  int power = 1;
  while (power * 2 <= p.heads) power *= 2;
  return power_of_2(head < power ? -8.0f * (head + 1) / power
                                 : -4.0f * (2 * (head - power) + 1) / power);
}

// What becomes of a product of a query and a key of one head: a score, in powers of 2.
template <int FLAGS, class T>
struct Scores {
  const T* bias;
  u64 first_word;
  float scale, cap, slope;  // for products, for tanh, and by distance

  __device__ __forceinline__ Scores(const Problem& p, int b, int head, float factor = 1.0f) {
    scale = p.scale * factor * LOG2_E;
    if (FLAGS & CAP) {
      scale *= 2.0f / p.cap;
      cap = p.cap * LOG2_E;
    }
    if (FLAGS & SLOPES) slope = slope_of(p, b, head) * LOG2_E;
    if (FLAGS & BIAS) bias = (const T*)p.bias + b * p.bias_steps.batch + head * p.bias_steps.head;
    if (FLAGS & DROPOUT)
      first_word = p.offset + (u64)((i64)b * p.heads + head) * p.queries * p.keys;
  }

  // `distance` is from the query's own key; `bend` becomes the derivative of the score by the
  // product, but for the scale.
  __device__ __forceinline__ float operator()(const Problem& p, const Sequence& s, float product,
                                              int row, int column, float distance,
                                              float& bend) const {
    float score = product * scale;
    bend = 1.0f;
    if (FLAGS & CAP) {
      const float bent = 1.0f - 2.0f * inverse(1.0f + power_of_2(score));  // tanh
      score = bent * cap;
      bend = 1.0f - bent * bent;
    }
    if (FLAGS & SLOPES) score -= slope * fabsf(distance);
    if (FLAGS & BIAS)
      if (row < s.queries && column < s.keys)
        score += widen(bias[row * p.bias_steps.row + column]) * LOG2_E;
    return score;
  }

  // Makes those probabilities 0 of a query that are dropped: of keys `column` and the next one in
  // one tile of 8 keys, and in the tile beside it.
  __device__ __forceinline__ void drop(const Problem& p, int row, int column, float& one,
                                       float& next, float& beside, float& beside_next) const {
    if (((first_word | p.keys) & 3) == 0) {
      // Four words are those of this lane and of its neighbour: one makes them of this tile, the
      // other of the one beside it, and each hands over what the other needs.
      const bool odd = threadIdx.x % 2;
      const u64 word = first_word + (u64)row * p.keys + (column & ~3) + (odd ? 8 : 0);
      const uint4 four = random_words(word >> 2, p.seed);
      const u32 x = __shfl_xor_sync(0xffffffffu, odd ? four.x : four.z, 1);
      const u32 y = __shfl_xor_sync(0xffffffffu, odd ? four.y : four.w, 1);
      if ((odd ? x : four.x) < p.threshold) one = 0.0f;
      if ((odd ? y : four.y) < p.threshold) next = 0.0f;
      if ((odd ? four.z : x) < p.threshold) beside = 0.0f;
      if ((odd ? four.w : y) < p.threshold) beside_next = 0.0f;
      return;
    }
    if (!keep(p, row, column)) one = 0.0f;
    if (!keep(p, row, column + 1)) next = 0.0f;
    if (!keep(p, row, column + 8)) beside = 0.0f;
    if (!keep(p, row, column + 9)) beside_next = 0.0f;
  }
  __device__ __forceinline__ bool keep(const Problem& p, int row, int column) const {
    const u64 word = first_word + (u64)row * p.keys + column;
    return pick(random_words(word >> 2, p.seed), word) >= p.threshold;
  }
  static __device__ __forceinline__ u32 pick(const uint4& four, u64 word) {
    const u32 at = word & 3;
    return at == 0 ? four.x : at == 1 ? four.y : at == 2 ? four.z : four.w;
  }
};

__device__ __forceinline__ bool sees(const Problem& p, const Sequence& s, int row, int column) {
  const int distance = column - row - s.shift;
  return row < s.queries && column < s.keys && (p.after < 0 || distance <= p.after) &&
         (p.before < 0 || -distance <= p.before);
}
// Whether all queries of a tile see all of its keys.
__device__ __forceinline__ bool see_all(const Problem& p, const Sequence& s, int row, int rows,
                                        int column, int columns) {
  return row + rows <= s.queries && column + columns <= s.keys &&
         (p.after < 0 || column + columns - 1 - row - s.shift <= p.after) &&
         (p.before < 0 || row + rows - 1 + s.shift - column <= p.before);
}

// What to measure scores by: nothing where no key was seen so far.
__device__ __forceinline__ float finite(float top) { return top == -INFINITE ? 0.0f : top; }
__device__ __forceinline__ float largest_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
// Two neighbours in a row of a result, whose columns are multiples of 2.
template <class T>
__device__ __forceinline__ void put_two(T* place, float one, float other) {
  *(u32*)place = pack(one, other, T{});
}
__device__ __forceinline__ void put_two(float* place, float one, float other) {
  place[0] = one;
  place[1] = other;
}
