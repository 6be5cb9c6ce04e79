// Attention of a tile of queries to all keys that they see, by online softmax.
//
// A warp has 16 * BLOCKS rows of the scores, in registers, and goes over tiles of TILE keys. The
// next keys and values are on their way meanwhile.
#include "attention.cuh"

template <class T, int D, int DV, int WARPS, int BLOCKS, int TILE, int FLAGS>
__global__ void __launch_bounds__(WARPS * 32) forward(const Problem p) {
  constexpr int THREADS = WARPS * 32, ROWS = WARPS * BLOCKS * 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  // Those that see the most keys begin first.
  const int tile = p.tiles - 1 - blockIdx.x % p.tiles;
  const int head = blockIdx.x / p.tiles % p.heads, b = blockIdx.x / p.tiles / p.heads;
  const Sequence s = sequence_of(p, b);
  const int first = tile * ROWS;
  const int end = p.begin_q ? s.queries : p.queries;  // results behind the end are 0
  if (first >= end) return;

  constexpr int STAGE = bytes<D>(TILE) + bytes<DV>(TILE);
  const Place q = place_of(shared_memory), buffers = q + bytes<D>(ROWS);
  const int kv_head = head / (p.heads / p.kv_heads);
  const auto keys = keys_at<T, (FLAGS & PAGES) != 0>(p, p.k, p.k_steps, b, kv_head, s.first_k);
  const auto values = keys_at<T, (FLAGS & PAGES) != 0>(p, p.v, p.v_steps, b, kv_head, s.first_k);
  const auto fetch = [&](int column, int stage) {
    const Place to = buffers + stage * STAGE;
    load_tile<TILE, D, THREADS>(to, keys, column, s.keys, p.size, threadIdx.x);
    load_tile<TILE, DV, THREADS>(to + bytes<D>(TILE), values, column, s.keys, p.value_size,
                                 threadIdx.x);
  };
  const Scores<FLAGS, T> scores(p, b, head);
  int low = 0, high = 0;
  if (first < s.queries) keys_of(p, s, first, min(first + ROWS, s.queries) - 1, low, high);
  low = low / TILE * TILE;

  float result[BLOCKS][DV / 8][4] = {}, top[BLOCKS][2], sum[BLOCKS][2];
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
    for (int i = 0; i < 2; ++i) {
      // A sink is a key without a value, which counts once for the four lanes of a row.
      top[m][i] = p.sink ? p.sink[head] * LOG2_E : -INFINITE;
      sum[m][i] = p.sink && member == 0 ? 1.0f : 0.0f;
    }
  load_tile<ROWS, D, THREADS>(q, rows_of<T>(p.q, p.q_steps, b, head, s.first_q), first, s.queries,
                              p.size, threadIdx.x);
  if (low < high) fetch(low, 0);
  end_group();

  const Place rows = along_rows<D>(q + bytes<D>(warp * BLOCKS * 16));
  const Place k_along = along_columns<D>(buffers),
              v_along = along_rows<DV>(buffers + bytes<D>(TILE));
  for (int column = low, stage = 0; column < high; column += TILE, stage ^= 1) {
    wait_copies<0>();
    __syncthreads();  // this tile is there, and nobody reads the one before
    if (column + TILE < high) fetch(column + TILE, stage ^ 1);
    end_group();
    float score[BLOCKS][TILE / 8][4] = {};
#pragma unroll
    for (int at = 0; at < D / 16; ++at) {
      u32 left[BLOCKS][4];
#pragma unroll
      for (int m = 0; m < BLOCKS; ++m) load_a(left[m], rows + bytes<D>(m * 16), at);
#pragma unroll
      for (int n = 0; n < TILE / 16; ++n) {
        u32 right[4];
        load_b<D>(right, k_along + stage * STAGE, n, at);
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m) {
          multiply(score[m][2 * n], left[m], right[0], right[1], T{});
          multiply(score[m][2 * n + 1], left[m], right[2], right[3], T{});
        }
      }
    }
    const bool whole = see_all(p, s, first, ROWS, column, TILE);
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
      const int row = first + (warp * BLOCKS + m) * 16 + group;
      const float distance = (float)(column + member * 2 - row - s.shift);
#pragma unroll
      for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float bend;
          score[m][n][i] =
              scores(p, s, score[m][n][i], row + i / 2 * 8, column + n * 8 + member * 2 + i % 2,
                     distance + (float)(n * 8 + i % 2 - i / 2 * 8), bend);
        }
      if (!whole)
#pragma unroll
        for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (!sees(p, s, row + i / 2 * 8, column + n * 8 + member * 2 + i % 2))
              score[m][n][i] = -INFINITE;
      float best[2] = {top[m][0], top[m][1]};
#pragma unroll
      for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) best[i / 2] = fmaxf(best[i / 2], score[m][n][i]);
      best[0] = largest_of_four(best[0]);
      best[1] = largest_of_four(best[1]);
      if (any_of_warp(best[0] > top[m][0] || best[1] > top[m][1]))
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float shrink = power_of_2(top[m][i] - finite(best[i]));
          top[m][i] = best[i];
          sum[m][i] *= shrink;
#pragma unroll
          for (int n = 0; n < DV / 8; ++n) {
            result[m][n][2 * i] *= shrink;
            result[m][n][2 * i + 1] *= shrink;
          }
        }
      const float from[2] = {finite(top[m][0]), finite(top[m][1])};
#pragma unroll
      for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          score[m][n][i] = power_of_2(score[m][n][i] - from[i / 2]);
          sum[m][i / 2] += score[m][n][i];
        }
      if (FLAGS & DROPOUT)
#pragma unroll
        for (int n = 0; n < TILE / 8; n += 2)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            scores.drop(p, row + i * 8, column + n * 8 + member * 2, score[m][n][2 * i],
                        score[m][n][2 * i + 1], score[m][n + 1][2 * i],
                        score[m][n + 1][2 * i + 1]);
    }
#pragma unroll
    for (int at = 0; at < TILE / 16; ++at) {
      u32 left[BLOCKS][4];
#pragma unroll
      for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          left[m][i] = pack(score[m][2 * at + i / 2][i % 2 * 2],
                            score[m][2 * at + i / 2][i % 2 * 2 + 1], T{});
#pragma unroll
      for (int n = 0; n < DV / 16; ++n) {
        u32 right[4];
        load_bt<DV>(right, v_along + stage * STAGE, n, at);
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m) {
          multiply(result[m][2 * n], left[m], right[0], right[1], T{});
          multiply(result[m][2 * n + 1], left[m], right[2], right[3], T{});
        }
      }
    }
  }
  wait_copies<0>();

#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float total = sum_of_four(sum[m][i]);
      const int row = first + (warp * BLOCKS + m) * 16 + group + i * 8;
      if (row >= end) continue;
      const bool seen = row < s.queries && total > 0.0f;
      const float factor = seen ? (FLAGS & DROPOUT ? p.kept : 1.0f) / total : 0.0f;
      T* o =
          (T*)p.o + b * p.o_steps.batch + head * p.o_steps.head + (s.first_q + row) * p.o_steps.row;
#pragma unroll
      for (int n = 0; n < DV / 8; ++n) {
        const int x = n * 8 + member * 2;
        if (x < p.value_size)
          put_two(o + x, result[m][n][2 * i] * factor, result[m][n][2 * i + 1] * factor);
      }
      if (p.lse && member == 0)
        p.lse[b * p.lse_steps.batch + head * p.lse_steps.head +
              (s.first_q + row) * p.lse_steps.row] =
            seen ? (top[m][i] + logarithm_2(total)) * LN_2 : -INFINITE;
    }
}
