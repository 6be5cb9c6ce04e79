// Attention of a tile of queries to all keys that they see, for compute capability 9.0.
//
// One warpgroup brings queries, keys and values. GROUPS others have 64 queries each. They take
// turns in asking for products, so that the tensor cores compute those of one warpgroup while
// another one makes probabilities of its scores. Blocks stay and take work after work: the next
// keys are on their way while results are written.
#include "attention.cuh"
#include "warpgroups.cuh"

// Where in a ring of stages one is, and in which round.
template <int STAGES>
struct Ring {
  int stage = 0;
  u32 parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// Rows from `first` on as panels; zeros from `end` on, and in columns from `size` on.
template <int ROWS, int D, class T, bool PAGED>
__device__ __forceinline__ void load_panels(Place to, const Rows<T, PAGED>& from, int first,
                                            int end, int size, int thread) {
  constexpr int STEP = GROUP / 8;  // a thread has the same columns of all of its rows
  const int r = thread / 8, x = thread % 8 * 8, left = end - first - r;
  to += r * LINE + (thread % 8 ^ r % 8) * 16;
  const T* place = from.base + (PAGED ? 0 : (first + r) * from.step) + x;
#pragma unroll
  for (int i = 0; i < ROWS; i += STEP) {
    bool there = i < left;
    if constexpr (PAGED) place = from.at(first + r + i, there) + x;
#pragma unroll
    for (int panel = 0; panel < D / 64; ++panel)
      copy16(to + panel * ROWS * LINE + i * LINE, place + panel * 64,
             there && panel * 64 + x < size);
    if constexpr (!PAGED) place += STEP * from.step;
  }
}

// Which work of `count` a block takes next. Every other round goes backward: who had much gets
// little.
struct Order {
  int count, round = -1, number = 0;
  __device__ __forceinline__ bool next() {
    const int start = ++round * gridDim.x;
    number = start + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    return start < count;
  }
  __device__ __forceinline__ bool there() const { return number < count; }
};

// Queries of a head, and the keys that they see.
template <int ROWS, int TILE>
struct Work {
  int head, b, first, end, low, high;
  Sequence s;
  __device__ __forceinline__ Work(const Problem& p, int number) {
    // Those that see the most keys begin first.
    first = (p.tiles - 1 - number % p.tiles) * ROWS;
    head = number / p.tiles % p.heads;
    b = number / p.tiles / p.heads;
    s = sequence_of(p, b);
    end = p.begin_q ? s.queries : p.queries;  // results behind the end are 0
    low = high = 0;
    if (first < s.queries) keys_of(p, s, first, min(first + ROWS, s.queries) - 1, low, high);
    low = low / TILE * TILE;
  }
};

// Copies of the producer, which tells of each only when the next one is on its way, or when it has
// to wait.
struct Delivery {
  Place pending = 0;
  __device__ __forceinline__ void tell() {
    show_copies();
    if (pending) arrive(pending);
    pending = 0;
  }
  __device__ __forceinline__ void flush() {
    wait_copies<0>();
    tell();
  }
  __device__ __forceinline__ void wait(Place empty, u32 parity) {
    if (passed(empty, parity)) return;
    flush();
    wait_barrier(empty, parity);
  }
  __device__ __forceinline__ void sent(Place full) {
    end_group();
    wait_copies<1>();
    tell();
    pending = full;
  }
};

// The rows of a thread: two, 8 apart.
template <int TILE, int FLAGS, class T>
struct Softmax {
  static constexpr bool BENT = (FLAGS & (CAP | SLOPES | BIAS)) != 0;
  Scores<FLAGS, T> scores;
  float unit;  // of `top` and scores, in powers of 2
  float top[2], sum[2];

  __device__ __forceinline__ Softmax(const Problem& p, int b, int head) : scores(p, b, head) {
    unit = BENT ? 1.0f : scores.scale;
    for (int i = 0; i < 2; ++i) {
      // A sink is a key without a value, which counts once for the four lanes of a row.
      top[i] = p.sink ? p.sink[head] * LOG2_E / unit : -INFINITE;
      sum[i] = p.sink && threadIdx.x % 4 == 0 ? 1.0f : 0.0f;
    }
  }

  // Scores of 64 queries from `first` on become probabilities; what was summed up before shrinks.
  __device__ __forceinline__ void operator()(const Problem& p, const Sequence& s,
                                             float (&score)[TILE / 8][4], float (&shrink)[2],
                                             int first, int column) {
    const int member = threadIdx.x % 4;
    const int row = first + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    if constexpr (BENT) {
      const float distance = (float)(column + member * 2 - row - s.shift);
#pragma unroll
      for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float bend;
          score[n][i] =
              scores(p, s, score[n][i], row + i / 2 * 8, column + n * 8 + member * 2 + i % 2,
                     distance + (float)(n * 8 + i % 2 - i / 2 * 8), bend);
        }
    }
    if (!see_all(p, s, first, 64, column, TILE)) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int low, high;
        keys_of(p, s, row + i * 8, row + i * 8, low, high);
        if (row + i * 8 >= s.queries) high = 0;
        low -= column + member * 2;
        high -= column + member * 2;
#pragma unroll
        for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
          for (int j = 0; j < 2; ++j)
            if (n * 8 + j < low || n * 8 + j >= high) score[n][i * 2 + j] = -INFINITE;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float best = top[i];
#pragma unroll
      for (int n = 0; n < TILE / 8; ++n)
        best = fmaxf(best, fmaxf(score[n][i * 2], score[n][i * 2 + 1]));
      best = largest_of_four(best);
      const float from = finite(best) * unit;
      shrink[i] = power_of_2(top[i] * unit - from);
      top[i] = best;
      sum[i] *= shrink[i];
#pragma unroll
      for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          score[n][i * 2 + j] = power_of_2(score[n][i * 2 + j] * unit - from);
          sum[i] += score[n][i * 2 + j];
        }
    }
    if constexpr ((FLAGS & DROPOUT) != 0)
#pragma unroll
      for (int n = 0; n < TILE / 8; n += 2)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          scores.drop(p, row + i * 8, column + n * 8 + member * 2, score[n][2 * i],
                      score[n][2 * i + 1], score[n + 1][2 * i], score[n + 1][2 * i + 1]);
  }
};

template <int N>
__device__ __forceinline__ void scale_rows(float (&d)[N][4], const float (&factor)[2]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) d[n][i] *= factor[i / 2];
}

template <int K, class T>
__device__ __forceinline__ void pack_rows(u32 (&to)[K / 2][4], const float (&from)[K][4], T type) {
#pragma unroll
  for (int at = 0; at < K / 2; ++at)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[at][i] = pack(from[2 * at + i / 2][i % 2 * 2], from[2 * at + i / 2][i % 2 * 2 + 1], type);
}

template <class T, int D, int DV, int GROUPS, int TILE, int STAGES, int FLAGS>
__global__ void __launch_bounds__((GROUPS + 1) * GROUP, 1) forward_groups(const Problem p) {
  constexpr int ROWS = GROUPS * 64, K_BYTES = TILE * D * 2, V_BYTES = TILE * DV * 2;
  const Place q = aligned(place_of(shared_memory));
  const Place keys = q + ROWS * D * 2, values = keys + STAGES * K_BYTES;
  const Place q_full = values + STAGES * V_BYTES, q_empty = q_full + 8;
  const Place k_full = q_full + 16, k_empty = k_full + 8 * STAGES;
  const Place v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
  const int group = same_in_warp(threadIdx.x / GROUP) - 1;
  Order order{p.tiles * p.heads * p.batch};
  Ring<STAGES> k_at, v_at;
  u32 q_parity = 0;

  if (threadIdx.x < 2 + 4 * STAGES) {
    const bool empty = threadIdx.x < 2 ? threadIdx.x : (threadIdx.x - 2) / STAGES % 2;
    make_barrier(q_full + 8 * threadIdx.x, empty ? 4 * GROUPS : GROUP);
  }
  __syncthreads();

  if (group < 0) {
    keep_registers<GROUPS == 2 ? 40 : 32>();
    Delivery delivery;
    while (order.next()) {
      if (!order.there()) continue;
      const Work<ROWS, TILE> work(p, order.number);
      if (work.low >= work.high) continue;
      const Sequence& s = work.s;
      const int kv_head = work.head / (p.heads / p.kv_heads);
      constexpr bool PAGED = (FLAGS & PAGES) != 0;
      const auto from_k = keys_at<T, PAGED>(p, p.k, p.k_steps, work.b, kv_head, s.first_k);
      const auto from_v = keys_at<T, PAGED>(p, p.v, p.v_steps, work.b, kv_head, s.first_k);
      const auto bring_values = [&](int column) {
        delivery.wait(v_empty + 8 * v_at.stage, v_at.parity ^ 1);
        load_panels<TILE, DV>(values + v_at.stage * V_BYTES, from_v, column, s.keys, p.value_size,
                              threadIdx.x);
        delivery.sent(v_full + 8 * v_at.stage);
        v_at.advance();
      };
      delivery.wait(q_empty, q_parity ^ 1);
      load_panels<ROWS, D>(q, rows_of<T>(p.q, p.q_steps, work.b, work.head, s.first_q), work.first,
                           s.queries, p.size, threadIdx.x);
      delivery.sent(q_full);
      q_parity ^= 1;
      for (int column = work.low; column < work.high; column += TILE) {
        delivery.wait(k_empty + 8 * k_at.stage, k_at.parity ^ 1);
        load_panels<TILE, D>(keys + k_at.stage * K_BYTES, from_k, column, s.keys, p.size,
                             threadIdx.x);
        delivery.sent(k_full + 8 * k_at.stage);
        k_at.advance();
        if (column > work.low) bring_values(column - TILE);
        if (column + TILE >= work.high) bring_values(column);
      }
    }
    delivery.flush();
    return;
  }

  take_registers<GROUPS == 2 ? 232 : 160>();
  const int lane = threadIdx.x % 32, member = lane % 4;
  const bool speaks = lane == 0;  // for its warp
  const u64 q_lines = describe(q + group * 64 * LINE, 16);
  if (group == GROUPS - 1) give_turn(0);

  while (order.next()) {
    if (!order.there()) continue;
    const Work<ROWS, TILE> work(p, order.number);
    if (work.first >= work.end) continue;
    const Sequence& s = work.s;
    const int first = work.first + group * 64;
    Softmax<TILE, FLAGS, T> softmax(p, work.b, work.head);
    float result[DV / 8][4] = {}, score[TILE / 8][4], shrink[2];
    u32 chances[TILE / 16][4];

    const auto ask_scores = [&] {
      const u64 lines = describe(keys + k_at.stage * K_BYTES, 16);
      wait_barrier(k_full + 8 * k_at.stage, k_at.parity);
      settle(score);
      begin_products();
#pragma unroll
      for (int at = 0; at < D / 16; ++at)
        multiply_lines(score, q_lines + (at / 4 * ROWS * LINE + at % 4 * 32) / 16,
                       lines + (at / 4 * TILE * LINE + at % 4 * 32) / 16, at, T{});
      end_products();
    };
    const auto have_scores = [&](bool last) {
      if (speaks) {
        arrive(k_empty + 8 * k_at.stage);
        if (last) arrive(q_empty);
      }
      k_at.advance();
    };
    const auto ask_result = [&] {
      const u64 lines = describe(values + v_at.stage * V_BYTES, TILE * LINE);
      wait_barrier(v_full + 8 * v_at.stage, v_at.parity);
      settle(result);
      begin_products();
#pragma unroll
      for (int at = 0; at < TILE / 16; ++at)
        multiply_across(result, chances[at], lines + at * 16 * LINE / 16, T{});
      end_products();
    };
    const auto have_result = [&] {
      wait_products<0>();
      settle(result);
      if (speaks) arrive(v_empty + 8 * v_at.stage);
      v_at.advance();
    };

    if (work.low < work.high) {
      wait_barrier(q_full, q_parity);
      q_parity ^= 1;
      ask_scores();
      wait_products<0>();
      settle(score);
      have_scores(work.low + TILE >= work.high);
      softmax(p, s, score, shrink, first, work.low);
      pack_rows(chances, score, T{});
      for (int column = work.low + TILE; column < work.high; column += TILE) {
        wait_turn(group);
        ask_scores();
        ask_result();
        give_turn((group + 1) % GROUPS);
        wait_products<1>();
        settle(score);
        have_scores(column + TILE >= work.high);
        softmax(p, s, score, shrink, first, column);
        // ptxas waits before it takes powers, as values are needed no earlier. To make it take them
        // before the wait was slower: products of other warpgroups are under way meanwhile.
        have_result();
        scale_rows(result, shrink);
        pack_rows(chances, score, T{});
      }
      ask_result();
      have_result();
    }

#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float total = sum_of_four(softmax.sum[i]);
      const int row = first + threadIdx.x / 32 % 4 * 16 + lane / 4 + i * 8;
      if (row >= work.end) continue;
      const bool seen = row < s.queries && total > 0.0f;
      const float factor = seen ? (FLAGS & DROPOUT ? p.kept : 1.0f) / total : 0.0f;
      T* o = (T*)p.o + work.b * p.o_steps.batch + work.head * p.o_steps.head +
             (s.first_q + row) * p.o_steps.row;
#pragma unroll
      for (int n = 0; n < DV / 8; ++n) {
        const int x = n * 8 + member * 2;
        if (x < p.value_size)
          put_two(o + x, result[n][2 * i] * factor, result[n][2 * i + 1] * factor);
      }
      if (p.lse && member == 0)
        p.lse[work.b * p.lse_steps.batch + work.head * p.lse_steps.head +
              (s.first_q + row) * p.lse_steps.row] =
            seen ? (softmax.top[i] * softmax.unit + logarithm_2(total)) * LN_2 : -INFINITE;
    }
  }
  if (group == 0) wait_turn(0);
}
