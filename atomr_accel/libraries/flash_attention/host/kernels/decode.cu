// A few queries of each sequence, and a cache: its keys are split among blocks, and in a block
// among warps, each of which has a softmax of its own until the end.
//
// The 16 rows of a block's scores are queries of all heads that share a head of keys. Caches in 8
// bits are widened as they come.
#include "attention.cuh"

__device__ constexpr bool is_half(h16) { return true; }
__device__ constexpr bool is_half(b16) { return false; }

// Sixteen numbers of 8 bits, from where they have come to, as numbers of 16.
template <class T, class K>
__device__ __forceinline__ void widen_16(T* to, const void* from) {
  const uint4 narrow = *(const uint4*)from;
  const u32 words[4] = {narrow.x, narrow.y, narrow.z, narrow.w};
  u32 wide[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    wide[i] = widen_two(words[i / 2] >> i % 2 * 16 & 0xffffu, K{});
    if (!is_half(T{}))
      wide[i] = pack(widen(h16{(unsigned short)wide[i]}),
                     widen(h16{(unsigned short)(wide[i] >> 16)}), T{});
  }
  ((uint4*)to)[0] = uint4{wide[0], wide[1], wide[2], wide[3]};
  ((uint4*)to)[1] = uint4{wide[4], wide[5], wide[6], wide[7]};
}

// 16 rows of bytes for one warp, and those of a tile.
template <int D, class K, bool PAGED>
__device__ __forceinline__ void load_bytes(Place to, const Rows<K, PAGED>& from, int first, int end,
                                           int size) {
  constexpr int PIECES = D / 16;
  for (int i = threadIdx.x % 32; i < 16 * PIECES; i += 32) {
    const int r = i / PIECES, x = i % PIECES * 16;
    bool there = first + r < end && x < size;
    const K* row = from.at(first + r, there);
    copy16(to + i * 16, row + x, there);
  }
}
template <int D, class K, class T>
__device__ __forceinline__ void widen_tile(T* to, const unsigned char* from) {
  constexpr int PIECES = D / 16;
  for (int i = threadIdx.x % 32; i < 16 * PIECES; i += 32)
    widen_16<T, K>(to + i / PIECES * width<D>() + i % PIECES * 16, from + i * 16);
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
  const int kv_head = blockIdx.x / p.splits / p.tiles % p.kv_heads,
            b = blockIdx.x / p.splits / p.tiles / p.kv_heads;
  const Sequence s = sequence_of(p, b);
  const int sharing = p.heads / p.kv_heads, rows = s.queries * sharing, first = tile * 16;
  if (first >= rows) return;

  // Of each warp: keys and values as they come, and where those of 8 bits are widened, in turn.
  constexpr bool NARROW = sizeof(K) == 1;
  constexpr int WIDE = D > DV ? width<D>() : width<DV>();
  constexpr int STAGE = 16 * (NARROW ? D + DV : 2 * (width<D>() + width<DV>()));
  T* const q = (T*)shared_memory;
  unsigned char* const mine =
      (unsigned char*)(q + 16 * width<D>()) + warp * (STAGES * STAGE + NARROW * 32 * WIDE);
  T* const wide = (T*)(mine + STAGES * STAGE);
  const Place come = place_of(mine);
  constexpr bool PAGED = (FLAGS & PAGES) != 0;
  const auto keys = keys_at<K, PAGED>(p, p.k, p.k_steps, b, kv_head, s.first_k);
  const auto values = keys_at<K, PAGED>(p, p.v, p.v_steps, b, kv_head, s.first_k);
  int low, high;
  keys_of(p, s, first / sharing, min(first + 15, rows - 1) / sharing, low, high);
  low = low / TILE * TILE;
  const int tiles = (high - low + TILE - 1) / TILE, each = (tiles + p.splits - 1) / p.splits;
  const int from = low + min(split * each, tiles) * TILE;
  const int to = min(low + min((split + 1) * each, tiles) * TILE, high);

  constexpr int EACH = sizeof(Q) == 1 ? 16 : 8;
  for (int i = threadIdx.x; i < 16 * (D / EACH); i += 128) {
    const int r = i / (D / EACH), x = i % (D / EACH) * EACH, row = first + r;
    const bool there = row < rows && x < p.size;
    const Q* place = (const Q*)p.q;
    if (there)
      place += b * p.q_steps.batch + (kv_head * sharing + row % sharing) * p.q_steps.head +
               (s.first_q + row / sharing) * p.q_steps.row + x;
    T* const target = q + r * width<D>() + x;
    if constexpr (sizeof(Q) == 1) {
      uint4 zeros = {0u, 0u, 0u, 0u};
      widen_16<T, Q>(target, there ? (const void*)place : &zeros);
    } else {
      copy16(place_of(target), place, there);
    }
  }
  end_group();

  const bool edges = p.before >= 0 || p.after >= 0;  // of masks; else those of the sequence alone
  const int at_scale = b * p.kv_heads + kv_head;
  const float factor =
      scale_of(p.scale_q, p.q_scales, at_scale) * scale_of(p.scale_k, p.k_scales, at_scale);
  int row_query[2], row_head[2];
  float slope[2], top[2], sum[2], result[DV / 8][4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = min(first + group + i * 8, rows - 1);
    row_query[i] = row / sharing;
    row_head[i] = kv_head * sharing + row % sharing;
    slope[i] = FLAGS & SLOPES ? slope_of(p, b, row_head[i]) * LOG2_E : 0.0f;
    const bool sink = p.sink && split == 0 && warp == 0;
    top[i] = sink ? p.sink[row_head[i]] * LOG2_E : -INFINITE;
    sum[i] = sink && member == 0 ? 1.0f : 0.0f;
  }
  Scores<FLAGS, T> scores(p, b, kv_head * sharing, factor);

  const auto fetch = [&](int column, int stage) {
    const Place to_k = come + stage * STAGE;
    if constexpr (NARROW) {
      load_bytes<D>(to_k, keys, column + warp * 16, to, p.size);
      load_bytes<DV>(to_k + 16 * D, values, column + warp * 16, to, p.value_size);
    } else {
      load_tile<16, D, 32>(to_k, keys, column + warp * 16, to, p.size, lane);
      load_tile<16, DV, 32>(to_k + bytes<D>(16), values, column + warp * 16, to, p.value_size,
                            lane);
    }
  };
  if (STAGES > 1 && from < to) fetch(from, 0);
  end_group();
  wait_copies<STAGES - 1>();
  __syncthreads();  // queries are there

  for (int column = from, stage = 0; column < to; column += TILE, stage ^= STAGES - 1) {
    if (STAGES == 1) fetch(column, 0);
    else if (column + TILE < to) fetch(column + TILE, stage ^ 1);
    end_group();
    wait_copies<STAGES - 1>();
    __syncwarp();
    Place k = come + stage * STAGE, v = k + bytes<D>(16);
    if constexpr (NARROW) {
      widen_tile<D, K>(wide, mine + stage * STAGE);
      __syncwarp();
      k = v = place_of(wide);
    }
    float score[2][4] = {};
    multiply_rows<2, D>(score, along_rows<D>(place_of(q)), along_columns<D>(k), T{});
    if constexpr (NARROW) {
      __syncwarp();
      widen_tile<DV, K>(wide, mine + stage * STAGE + 16 * D);
      __syncwarp();
    }
    const int first_key = column + warp * 16 + member * 2;
    float best[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = first_key + n * 8 + i % 2, query = row_query[i / 2];
        float bend;
        if (FLAGS & SLOPES) scores.slope = slope[i / 2];
        score[n][i] = scores(p, s, score[n][i], query, c, (float)(c - query - s.shift), bend);
      }
    if (edges || column + TILE > to)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int c = first_key + n * 8 + i % 2;
          if (c >= to || !sees(p, s, row_query[i / 2], c)) score[n][i] = -INFINITE;
        }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) best[i / 2] = fmaxf(best[i / 2], score[n][i]);
    best[0] = largest_of_four(best[0]);
    best[1] = largest_of_four(best[1]);
    if (any_of_warp(best[0] > top[0] || best[1] > top[1]))
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float shrink = power_of_2(top[i] - finite(best[i]));
        top[i] = best[i];
        sum[i] *= shrink;
#pragma unroll
        for (int n = 0; n < DV / 8; ++n) {
          result[n][2 * i] *= shrink;
          result[n][2 * i + 1] *= shrink;
        }
      }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[n][i] = power_of_2(score[n][i] - finite(top[i / 2]));
        sum[i / 2] += score[n][i];
      }
    multiply_into<2, DV>(result, score, along_rows<DV>(v), T{});
    __syncwarp();  // the buffers are free again
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
      put(((O*)p.o)[b * p.o_steps.batch + head * p.o_steps.head + there * p.o_steps.row + x],
          found);
      if (p.lse && x == 0)
        p.lse[b * p.lse_steps.batch + head * p.lse_steps.head + there * p.lse_steps.row] = lse;
    }
  }
}

// The results of all splits become one: a warp has a query of a head.
template <class O>
__global__ void __launch_bounds__(128) combine(const Problem p) {
  const i64 row = (i64)blockIdx.x * 4 + threadIdx.x / 32, all = (i64)p.batch * p.heads * p.queries;
  if (row >= all) return;
  const int query = row % p.queries, head = row / p.queries % p.heads,
            b = row / p.queries / p.heads;
  const Sequence s = sequence_of(p, b);
  if (query >= s.queries) return;
  float best = -INFINITE, total = 0.0f;
  for (int i = 0; i < p.splits; ++i) best = fmaxf(best, p.part_lse[i * all + row]);
  const float base = best == -INFINITE ? 0.0f : best;
  for (int i = 0; i < p.splits; ++i)
    total += power_of_2((p.part_lse[i * all + row] - base) * LOG2_E);
  const i64 there = s.first_q + query;
  O* o = (O*)p.o + b * p.o_steps.batch + head * p.o_steps.head + there * p.o_steps.row;
  for (int x = threadIdx.x % 32; x < p.value_size; x += 32) {
    float found = 0.0f;
    for (int i = 0; i < p.splits; ++i)
      found += p.part_o[(i * all + row) * p.value_size + x] *
               power_of_2((p.part_lse[i * all + row] - base) * LOG2_E);
    put(o[x], total > 0.0f ? found / total : 0.0f);
  }
  if (p.lse && threadIdx.x % 32 == 0)
    p.lse[b * p.lse_steps.batch + head * p.lse_steps.head + there * p.lse_steps.row] =
        total > 0.0f ? base + logarithm_2(total) * LN_2 : -INFINITE;
}
