// A few queries of each sequence, and a cache: its keys are split among blocks, and in a block among
// warps, each of which has a softmax of its own until the end.
//
// The 16 rows of a block's scores are queries of all heads that share a head of keys. Caches in 8
// bits are widened as they come.
#include "attention.cuh"

struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };

// A float16 with the same value: e5m2 is its upper half, and e4m3 has exponents 8 lower.
__device__ __forceinline__ float widen(e5m2 value) { return widen(h16{(unsigned short)(value.bits << 8)}); }
__device__ __forceinline__ float widen(e4m3 value) {
  const u32 size = value.bits & 0x7fu;
  if (size == 0x7fu) return __uint_as_float(0x7fc00000u);
  const float found = widen(h16{(unsigned short)(size << 7)}) * 256.0f;
  return value.bits & 0x80u ? -found : found;
}

// Eight numbers on their way to shared memory.
template <class T> __device__ __forceinline__ void copy8(T* to, const T* from, bool there) { copy16(to, from, there); }
template <class T, class S> __device__ __forceinline__ void copy8(T* to, const S* from, bool there) {
  static_assert(sizeof(S) == 1, "eight of them are eight bytes");
  const uint2 both = there ? *(const uint2*)from : uint2{0u, 0u};
  u32 wide[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 two = (i < 2 ? both.x : both.y) >> i % 2 * 16;
    wide[i] = pack(widen(S{(unsigned char)two}), widen(S{(unsigned char)(two >> 8)}), T{});
  }
  *(uint4*)to = uint4{wide[0], wide[1], wide[2], wide[3]};
}

// 16 rows for one warp.
template <int D, class T, class S>
__device__ __forceinline__ void load_rows(T* to, const Rows<S>& from, int first, int end, int size) {
  constexpr int PIECES = D / 8;
  for (int i = threadIdx.x % 32; i < 16 * PIECES; i += 32) {
    const int r = i / PIECES, x = i % PIECES * 8;
    bool there = first + r < end && x < size;
    const S* row = there ? from.at(first + r, there) : from.base;
    copy8(to + r * width<D>() + x, there ? row + x : from.base, there);
  }
}

__device__ __forceinline__ float scale_of(const float* scales, int several, int at) {
  return scales ? scales[several ? at : 0] : 1.0f;
}

// T: what is multiplied; Q, K and O: the types of queries, cache and result.
template <class T, class Q, class K, class O, int D, int DV, int STAGES, int FLAGS>
__global__ void __launch_bounds__(128) decode(const Problem p) {
  constexpr int WARPS = 4, TILE = WARPS * 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  const int split = blockIdx.x % p.splits, tile = blockIdx.x / p.splits % p.tiles;
  const int kv_head = blockIdx.x / p.splits / p.tiles % p.kv_heads, b = blockIdx.x / p.splits / p.tiles / p.kv_heads;
  const Sequence s = sequence_of(p, b);
  const int sharing = p.heads / p.kv_heads, rows = s.queries * sharing, first = tile * 16;
  if (first >= rows) return;

  T* q = (T*)shared_memory;
  T* const buffers = q + 16 * width<D>() + warp * STAGES * 16 * (width<D>() + width<DV>());
  const Rows<K> keys = keys_at<K>(p, p.k, p.k_steps, b, kv_head, s.first_k);
  const Rows<K> values = keys_at<K>(p, p.v, p.v_steps, b, kv_head, s.first_k);
  int low, high;
  keys_of(p, s, first / sharing, min(first + 15, rows - 1) / sharing, low, high);
  low = low / TILE * TILE;
  const int tiles = (high - low + TILE - 1) / TILE, each = (tiles + p.splits - 1) / p.splits;
  const int from = low + min(split * each, tiles) * TILE;
  const int to = min(low + min((split + 1) * each, tiles) * TILE, high);

  for (int i = threadIdx.x; i < 16 * (D / 8); i += 128) {
    const int r = i / (D / 8), x = i % (D / 8) * 8, row = first + r;
    const bool there = row < rows && x < p.size;
    const Q* place = (const Q*)p.q;
    if (there)
      place += b * p.q_steps.batch + (kv_head * sharing + row % sharing) * p.q_steps.head + (s.first_q + row / sharing) * p.q_steps.row + x;
    copy8(q + r * width<D>() + x, place, there);
  }
  end_group();

  const int at_scale = b * p.kv_heads + kv_head;
  const float scale = p.scale * scale_of(p.scale_q, p.q_scales, at_scale) * scale_of(p.scale_k, p.k_scales, at_scale);
  int row_query[2], row_head[2];
  float slope[2], top[2], sum[2], result[DV / 8][4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = min(first + group + i * 8, rows - 1);
    row_query[i] = row / sharing;
    row_head[i] = kv_head * sharing + row % sharing;
    slope[i] = FLAGS & SLOPES ? slope_of(p, b, row_head[i]) : 0.0f;
    const bool sink = p.sink && split == 0 && warp == 0;
    top[i] = sink ? p.sink[row_head[i]] * LOG2_E : -INFINITE;
    sum[i] = sink && member == 0 ? 1.0f : 0.0f;
  }
  Scores<FLAGS, T> scores(p, b, kv_head * sharing);
  scores.scale = scale;

  const auto fetch = [&](int column, int stage) {
    T* const k = buffers + stage * 16 * (width<D>() + width<DV>());
    load_rows<D>(k, keys, column + warp * 16, to, p.size);
    load_rows<DV>(k + 16 * width<D>(), values, column + warp * 16, to, p.value_size);
  };
  if (STAGES > 1 && from < to) fetch(from, 0);
  end_group();
  if (STAGES > 1) wait_copies<1>();
  else wait_copies<0>();
  __syncthreads();  // queries are there

  int stage = 0;
  for (int column = from; column < to; column += TILE) {
    if (STAGES > 1) {
      if (column + TILE < to) fetch(column + TILE, 1 - stage);
      end_group();
      wait_copies<1>();
    } else {
      fetch(column, 0);
      end_group();
      wait_copies<0>();
    }
    __syncwarp();
    const T* k = buffers + stage * 16 * (width<D>() + width<DV>());
    float score[2][4] = {};
    multiply_rows<2, D>(score, q, k);
    float best[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = column + warp * 16 + n * 8 + member * 2 + i % 2;
        float bend;
        scores.slope = slope[i / 2];
        float found = scores(p, s, score[n][i], row_query[i / 2], c, bend);
        if (c >= to || !sees(p, s, row_query[i / 2], c)) found = -INFINITE;
        score[n][i] = found;
        best[i / 2] = fmaxf(best[i / 2], found);
      }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      best[i] = largest_of_four(best[i]);
      const float base = best[i] == -INFINITE ? 0.0f : best[i];
      const float shrink = power_of_2(top[i] - base);
      top[i] = best[i];
      sum[i] *= shrink;
#pragma unroll
      for (int n = 0; n < DV / 8; ++n) {
        result[n][2 * i] *= shrink;
        result[n][2 * i + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          score[n][2 * i + j] = power_of_2(score[n][2 * i + j] - base);
          sum[i] += score[n][2 * i + j];
        }
    }
    multiply_into<2, DV>(result, score, k + 16 * width<D>());
    __syncwarp();  // the buffers are free again
    if (STAGES > 1) stage = 1 - stage;
  }
  wait_copies<0>();
  __syncthreads();

  // The warps' results become one.
  float* const sums = (float*)shared_memory;  // top and sum, of 4 warps and 16 rows
  float* const results = sums + 128;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] = sum_of_four(sum[i]);
    if (member == 0) {
      sums[warp * 16 + group + i * 8] = top[i];
      sums[64 + warp * 16 + group + i * 8] = sum[i];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = group + i * 8;
    float best = -INFINITE;
    for (int w = 0; w < WARPS; ++w) best = fmaxf(best, sums[w * 16 + r]);
    const float factor = top[i] == -INFINITE ? 0.0f : power_of_2(top[i] - best);
#pragma unroll
    for (int n = 0; n < DV / 8; ++n) {
      float* place = results + (warp * 16 + r) * DV + n * 8 + member * 2;
      place[0] = result[n][2 * i] * factor;
      place[1] = result[n][2 * i + 1] * factor;
    }
  }
  __syncthreads();
  const float value_scale = scale_of(p.scale_v, p.v_scales, at_scale);
  for (int i = threadIdx.x; i < 16 * DV; i += 128) {
    const int r = i / DV, x = i % DV, row = first + r;
    if (row >= rows || x >= p.value_size) continue;
    float best = -INFINITE, total = 0.0f, found = 0.0f;
    for (int w = 0; w < WARPS; ++w) best = fmaxf(best, sums[w * 16 + r]);
    for (int w = 0; w < WARPS; ++w) {
      if (sums[w * 16 + r] == -INFINITE) continue;
      total += sums[64 + w * 16 + r] * power_of_2(sums[w * 16 + r] - best);
      found += results[(w * 16 + r) * DV + x];
    }
    found = total > 0.0f ? found / total * value_scale : 0.0f;
    const float lse = total > 0.0f ? (best + logarithm_2(total)) * LN_2 : -INFINITE;
    const int query = row / sharing, head = kv_head * sharing + row % sharing;
    if (p.splits > 1) {
      const i64 part = (((i64)split * p.batch + b) * p.heads + head) * p.queries + query;
      p.part_o[part * p.value_size + x] = found;
      if (x == 0) p.part_lse[part] = lse;
    } else {
      const i64 there = s.first_q + query;
      put(((O*)p.o)[b * p.o_steps.batch + head * p.o_steps.head + there * p.o_steps.row + x], found);
      if (p.lse && x == 0) p.lse[b * p.lse_steps.batch + head * p.lse_steps.head + there * p.lse_steps.row] = lse;
    }
  }
}

// The results of all splits become one: a warp has a query of a head.
template <class O> __global__ void __launch_bounds__(128) combine(const Problem p) {
  const i64 row = (i64)blockIdx.x * 4 + threadIdx.x / 32, all = (i64)p.batch * p.heads * p.queries;
  if (row >= all) return;
  const int query = row % p.queries, head = row / p.queries % p.heads, b = row / p.queries / p.heads;
  const Sequence s = sequence_of(p, b);
  if (query >= s.queries) return;
  float best = -INFINITE, total = 0.0f;
  for (int i = 0; i < p.splits; ++i) best = fmaxf(best, p.part_lse[i * all + row]);
  const float base = best == -INFINITE ? 0.0f : best;
  for (int i = 0; i < p.splits; ++i) total += power_of_2((p.part_lse[i * all + row] - base) * LOG2_E);
  const i64 there = s.first_q + query;
  O* o = (O*)p.o + b * p.o_steps.batch + head * p.o_steps.head + there * p.o_steps.row;
  for (int x = threadIdx.x % 32; x < p.value_size; x += 32) {
    float found = 0.0f;
    for (int i = 0; i < p.splits; ++i)
      found += p.part_o[(i * all + row) * p.value_size + x] * power_of_2((p.part_lse[i * all + row] - base) * LOG2_E);
    put(o[x], total > 0.0f ? found / total : 0.0f);
  }
  if (p.lse && threadIdx.x % 32 == 0)
    p.lse[b * p.lse_steps.batch + head * p.lse_steps.head + there * p.lse_steps.row] =
        total > 0.0f ? base + logarithm_2(total) * LN_2 : -INFINITE;
}
