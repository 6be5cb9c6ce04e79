// Gradients of attention, with probabilities computed again from what the forward pass has kept of
// them: the logarithms of their divisors.
//
//   p = exp(score - lse)     delta = sum(o * grad)     ds = p * (grad @ v.T - delta)
//   dv = p.T @ grad          dq = scale * ds @ k       dk = scale * ds.T @ q
//
// What each block sums is its own, in an order that does not change: there are no atomics.
#include "attention.cuh"

__device__ __forceinline__ i64 place_of_sum(const Problem& p, const Sequence& s, int b, int head,
                                            int row) {
  return b * p.lse_steps.batch + head * p.lse_steps.head + (s.first_q + row) * p.lse_steps.row;
}
// A divisor's logarithm in powers of 2; a query that saw no key has probabilities of 0.
__device__ __forceinline__ float logarithm_of(float lse) {
  return lse == -INFINITE ? INFINITE : lse * LOG2_E;
}

// delta, laid out as the logarithms are: a warp has a query of a head.
template <class T>
__global__ void __launch_bounds__(128) deltas(const Problem p) {
  const i64 at = (i64)blockIdx.x * 4 + threadIdx.x / 32;
  if (at >= (i64)p.batch * p.heads * p.queries) return;
  const int row = at % p.queries, head = at / p.queries % p.heads, b = at / p.queries / p.heads;
  const Sequence s = sequence_of(p, b);
  if (row >= s.queries) return;
  const T* o = (const T*)p.o + b * p.o_steps.batch + head * p.o_steps.head +
               (s.first_q + row) * p.o_steps.row;
  const T* grad = (const T*)p.grad + b * p.grad_steps.batch + head * p.grad_steps.head +
                  (s.first_q + row) * p.grad_steps.row;
  float sum = 0.0f;
  for (int x = threadIdx.x % 32; x < p.value_size; x += 32) sum += widen(o[x]) * widen(grad[x]);
#pragma unroll
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) p.delta[place_of_sum(p, s, b, head, row)] = sum;
}

// What a product of a query and a key, and one of a gradient and a value, become: the
// probability that a value was multiplied by, the gradient by the score, and that by the product.
// What a mask hides may become anything, and has to be made 0 then.
template <int FLAGS, class T>
__device__ __forceinline__ void gradient(const Problem& p, const Sequence& s,
                                         const Scores<FLAGS, T>& scores, int row, int column,
                                         float distance, float lse, float delta, float& share,
                                         float& by, float& by_score) {
  float bend, kept = 1.0f;
  const float score = scores(p, s, share, row, column, distance, bend);
  share = power_of_2(score - lse);
  if (FLAGS & DROPOUT) kept = scores.keep(p, row, column) ? p.kept : 0.0f;
  by_score = share * (by * kept - delta);
  by = by_score * bend;
  share *= kept;
}

// dk and dv: a warp has 16 keys, and goes over tiles of TILE queries of all heads that share them.
// WANT: 1 for dk, 2 for dv, 3 for both.
template <class T, int D, int DV, int WARPS, int TILE, int FLAGS, int WANT>
__global__ void __launch_bounds__(WARPS * 32) by_keys(const Problem p) {
  constexpr int THREADS = WARPS * 32, ROWS = WARPS * 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  const int first = blockIdx.x % p.tiles * ROWS;
  const int kv_head = blockIdx.x / p.tiles % p.kv_heads, b = blockIdx.x / p.tiles / p.kv_heads;
  const Sequence s = sequence_of(p, b);
  const int end = p.begin_k ? s.keys : p.keys;  // gradients of what is behind the end are 0
  if (first >= end) return;

  // A tile of queries comes with one of gradients, and two numbers of each row.
  constexpr int STAGE = bytes<D>(TILE) + bytes<DV>(TILE) + 8 * TILE, SUMS = STAGE - 8 * TILE;
  const Place k = place_of(shared_memory), v = k + bytes<D>(ROWS), buffers = v + bytes<DV>(ROWS);
  unsigned char* const with_sums =
      (unsigned char*)shared_memory + bytes<D>(ROWS) + bytes<DV>(ROWS) + SUMS;
  load_tile<ROWS, D, THREADS>(k, rows_of<T>(p.k, p.k_steps, b, kv_head, s.first_k), first, s.keys,
                              p.size, threadIdx.x);
  load_tile<ROWS, DV, THREADS>(v, rows_of<T>(p.v, p.v_steps, b, kv_head, s.first_k), first, s.keys,
                               p.value_size, threadIdx.x);
  end_group();

  const int last = min(first + ROWS, s.keys) - 1;
  const int low = p.after < 0 ? 0 : max(0, first - s.shift - p.after) / TILE * TILE;
  const int high = last < first   ? 0
                   : p.before < 0 ? s.queries
                                  : (int)min((i64)s.queries, (i64)last - s.shift + p.before + 1);
  float dk[WANT & 1 ? D / 8 : 1][4] = {}, dv[WANT & 2 ? DV / 8 : 1][4] = {};
  const int sharing = p.heads / p.kv_heads,
            steps = high <= low ? 0 : (high - low + TILE - 1) / TILE;
  // Step i is a tile of queries of one of the heads that share these keys.
  const auto fetch = [&](int i, int stage) {
    const int head = kv_head * sharing + i / steps, row = low + i % steps * TILE;
    const Place to = buffers + stage * STAGE;
    float* const lses = (float*)(with_sums + stage * STAGE);
    load_tile<TILE, D, THREADS>(to, rows_of<T>(p.q, p.q_steps, b, head, s.first_q), row, s.queries,
                                p.size, threadIdx.x);
    load_tile<TILE, DV, THREADS>(to + bytes<D>(TILE),
                                 rows_of<T>(p.grad, p.grad_steps, b, head, s.first_q), row,
                                 s.queries, p.value_size, threadIdx.x);
    static_assert(TILE <= THREADS, "each thread brings one row's");
    if (const int r = threadIdx.x; r < TILE) {
      const bool there = row + r < s.queries;
      const i64 place = there ? place_of_sum(p, s, b, head, row + r) : 0;
      lses[r] = there ? logarithm_of(p.lse[place]) : INFINITE;
      lses[TILE + r] = there ? p.delta[place] : 0.0f;
    }
  };
  if (steps) fetch(0, 0);
  end_group();
  for (int step = 0; step < steps * sharing; ++step) {
    wait_copies<0>();
    __syncthreads();  // this tile is there, and nobody reads the one before
    if (step + 1 < steps * sharing) fetch(step + 1, (step + 1) % 2);
    end_group();
    const int head = kv_head * sharing + step / steps, row = low + step % steps * TILE;
    const Place q = buffers + step % 2 * STAGE, grad = q + bytes<D>(TILE);
    const float* const lses = (const float*)(with_sums + step % 2 * STAGE);
    const Scores<FLAGS, T> scores(p, b, head);
    float share[TILE / 8][4] = {}, by[TILE / 8][4] = {};
    multiply_rows<TILE / 8, D>(share, along_rows<D>(k + bytes<D>(warp * 16)), along_columns<D>(q),
                               T{});
    multiply_rows<TILE / 8, DV>(by, along_rows<DV>(v + bytes<DV>(warp * 16)),
                                along_columns<DV>(grad), T{});
    const int key = first + warp * 16 + group;
    const float distance = (float)(key - row - member * 2 - s.shift);
#pragma unroll
    for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = n * 8 + member * 2 + i % 2;
        float by_score;
        gradient(p, s, scores, row + at, key + i / 2 * 8,
                 distance + (float)(i / 2 * 8 - n * 8 - i % 2), lses[at], lses[TILE + at],
                 share[n][i], by[n][i], by_score);
      }
    if (!see_all(p, s, row, TILE, first, ROWS))
#pragma unroll
      for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!sees(p, s, row + n * 8 + member * 2 + i % 2, key + i / 2 * 8))
            share[n][i] = by[n][i] = 0.0f;
    if constexpr (WANT & 2) multiply_into<TILE / 8, DV>(dv, share, along_rows<DV>(grad), T{});
    if constexpr (WANT & 1) multiply_into<TILE / 8, D>(dk, by, along_rows<D>(q), T{});
  }
  wait_copies<0>();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + warp * 16 + group + i * 8;
    if (row >= end) continue;
    if constexpr (WANT & 1) {
      T* place = (T*)p.dk + b * p.k_steps.batch + kv_head * p.k_steps.head +
                 (s.first_k + row) * p.k_steps.row;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        if (n * 8 < p.size)
          put_two(place + n * 8 + member * 2, dk[n][2 * i] * p.scale, dk[n][2 * i + 1] * p.scale);
    }
    if constexpr (WANT & 2) {
      T* place = (T*)p.dv + b * p.v_steps.batch + kv_head * p.v_steps.head +
                 (s.first_k + row) * p.v_steps.row;
#pragma unroll
      for (int n = 0; n < DV / 8; ++n)
        if (n * 8 < p.value_size)
          put_two(place + n * 8 + member * 2, dv[n][2 * i], dv[n][2 * i + 1]);
    }
  }
}

// dq: a warp has 16 queries, and goes over tiles of TILE keys.
template <class T, int D, int DV, int WARPS, int TILE, int FLAGS>
__global__ void __launch_bounds__(WARPS * 32) by_queries(const Problem p) {
  constexpr int THREADS = WARPS * 32, ROWS = WARPS * 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  const int first = (p.tiles - 1 - blockIdx.x % p.tiles) * ROWS;
  const int head = blockIdx.x / p.tiles % p.heads, b = blockIdx.x / p.tiles / p.heads;
  const Sequence s = sequence_of(p, b);
  const int end = p.begin_q ? s.queries : p.queries;
  if (first >= end) return;

  constexpr int STAGE = bytes<D>(TILE) + bytes<DV>(TILE);
  const Place q = place_of(shared_memory), grad = q + bytes<D>(ROWS),
              buffers = grad + bytes<DV>(ROWS);
  load_tile<ROWS, D, THREADS>(q, rows_of<T>(p.q, p.q_steps, b, head, s.first_q), first, s.queries,
                              p.size, threadIdx.x);
  load_tile<ROWS, DV, THREADS>(grad, rows_of<T>(p.grad, p.grad_steps, b, head, s.first_q), first,
                               s.queries, p.value_size, threadIdx.x);
  end_group();
  const int kv_head = head / (p.heads / p.kv_heads);
  const auto keys = rows_of<T>(p.k, p.k_steps, b, kv_head, s.first_k);
  const auto values = rows_of<T>(p.v, p.v_steps, b, kv_head, s.first_k);
  const auto fetch = [&](int column, int stage) {
    const Place to = buffers + stage * STAGE;
    load_tile<TILE, D, THREADS>(to, keys, column, s.keys, p.size, threadIdx.x);
    load_tile<TILE, DV, THREADS>(to + bytes<D>(TILE), values, column, s.keys, p.value_size,
                                 threadIdx.x);
  };
  const Scores<FLAGS, T> scores(p, b, head);
  float lse[2], delta[2], dq[D / 8][4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + warp * 16 + group + i * 8;
    const bool there = row < s.queries;
    const i64 place = there ? place_of_sum(p, s, b, head, row) : 0;
    lse[i] = there ? logarithm_of(p.lse[place]) : INFINITE;
    delta[i] = there ? p.delta[place] : 0.0f;
  }
  int low = 0, high = 0;
  if (first < s.queries) keys_of(p, s, first, min(first + ROWS, s.queries) - 1, low, high);
  low = low / TILE * TILE;
  if (low < high) fetch(low, 0);
  end_group();
  for (int column = low, stage = 0; column < high; column += TILE, stage ^= 1) {
    wait_copies<0>();
    __syncthreads();  // this tile is there, and nobody reads the one before
    if (column + TILE < high) fetch(column + TILE, stage ^ 1);
    end_group();
    const Place k = buffers + stage * STAGE, v = k + bytes<D>(TILE);
    float share[TILE / 8][4] = {}, by[TILE / 8][4] = {};
    multiply_rows<TILE / 8, D>(share, along_rows<D>(q + bytes<D>(warp * 16)), along_columns<D>(k),
                               T{});
    multiply_rows<TILE / 8, DV>(by, along_rows<DV>(grad + bytes<DV>(warp * 16)),
                                along_columns<DV>(v), T{});
    const int row = first + warp * 16 + group;
    const float distance = (float)(column + member * 2 - row - s.shift);
#pragma unroll
    for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float by_score;
        gradient(p, s, scores, row + i / 2 * 8, column + n * 8 + member * 2 + i % 2,
                 distance + (float)(n * 8 + i % 2 - i / 2 * 8), lse[i / 2], delta[i / 2],
                 share[n][i], by[n][i], by_score);
      }
    if (!see_all(p, s, first, ROWS, column, TILE))
#pragma unroll
      for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!sees(p, s, row + i / 2 * 8, column + n * 8 + member * 2 + i % 2)) by[n][i] = 0.0f;
    multiply_into<TILE / 8, D>(dq, by, along_rows<D>(k), T{});
  }
  wait_copies<0>();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + warp * 16 + group + i * 8;
    if (row >= end) continue;
    T* place =
        (T*)p.dq + b * p.q_steps.batch + head * p.q_steps.head + (s.first_q + row) * p.q_steps.row;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      if (n * 8 < p.size)
        put_two(place + n * 8 + member * 2, dq[n][2 * i] * p.scale, dq[n][2 * i + 1] * p.scale);
  }
}

// dbias, of 64 queries and TILE keys: the sum of what the sequences and heads that share it have.
template <class T, int D, int DV, int TILE, int FLAGS>
__global__ void __launch_bounds__(128) by_bias(const Problem p) {
  constexpr int ROWS = 64;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  const int across = (p.keys + TILE - 1) / TILE,
            down = p.bias_rows > 1 ? (p.queries + ROWS - 1) / ROWS : 1;
  const int column = blockIdx.x % across * TILE, tile = blockIdx.x / across % down;
  const int of_head = blockIdx.x / across / down % p.bias_heads,
            of_batch = blockIdx.x / across / down / p.bias_heads;
  const Place q = place_of(shared_memory), grad = q + bytes<D>(ROWS);
  const Place k = grad + bytes<DV>(ROWS), v = k + bytes<D>(TILE);
  float sum[TILE / 8][4] = {};
  for (int b = p.bias_batch > 1 ? of_batch : 0; b < (p.bias_batch > 1 ? of_batch + 1 : p.batch);
       ++b) {
    const Sequence s = sequence_of(p, b);
    for (int head = p.bias_heads > 1 ? of_head : 0;
         head < (p.bias_heads > 1 ? of_head + 1 : p.heads); ++head) {
      const int kv_head = head / (p.heads / p.kv_heads);
      const Scores<FLAGS, T> scores(p, b, head);
      // A bias that all queries share has a block for all of them.
      for (int first = tile * ROWS;
           first < (p.bias_rows > 1 ? min((tile + 1) * ROWS, s.queries) : s.queries);
           first += ROWS) {
        __syncthreads();
        load_tile<ROWS, D, 128>(q, rows_of<T>(p.q, p.q_steps, b, head, s.first_q), first, s.queries,
                                p.size, threadIdx.x);
        load_tile<ROWS, DV, 128>(grad, rows_of<T>(p.grad, p.grad_steps, b, head, s.first_q), first,
                                 s.queries, p.value_size, threadIdx.x);
        load_tile<TILE, D, 128>(k, rows_of<T>(p.k, p.k_steps, b, kv_head, s.first_k), column,
                                s.keys, p.size, threadIdx.x);
        load_tile<TILE, DV, 128>(v, rows_of<T>(p.v, p.v_steps, b, kv_head, s.first_k), column,
                                 s.keys, p.value_size, threadIdx.x);
        end_group();
        wait_copies<0>();
        __syncthreads();
        float share[TILE / 8][4] = {}, by[TILE / 8][4] = {};
        multiply_rows<TILE / 8, D>(share, along_rows<D>(q + bytes<D>(warp * 16)),
                                   along_columns<D>(k), T{});
        multiply_rows<TILE / 8, DV>(by, along_rows<DV>(grad + bytes<DV>(warp * 16)),
                                    along_columns<DV>(v), T{});
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = first + warp * 16 + group + i / 2 * 8;
          const bool there = row < s.queries;
          const i64 place = there ? place_of_sum(p, s, b, head, row) : 0;
          const float lse = there ? logarithm_of(p.lse[place]) : INFINITE,
                      delta = there ? p.delta[place] : 0.0f;
#pragma unroll
          for (int n = 0; n < TILE / 8; ++n) {
            float by_score;
            const int c = column + n * 8 + member * 2 + i % 2;
            gradient(p, s, scores, row, c, (float)(c - row - s.shift), lse, delta, share[n][i],
                     by[n][i], by_score);
            if (sees(p, s, row, c)) sum[n][i] += by_score;
          }
        }
      }
    }
  }
  T* target = (T*)p.dbias + of_batch * p.bias_steps.batch + of_head * p.bias_steps.head;
  if (p.bias_rows > 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = tile * ROWS + warp * 16 + group + i / 2 * 8;
#pragma unroll
      for (int n = 0; n < TILE / 8; ++n) {
        const int c = column + n * 8 + member * 2 + i % 2;
        if (row < p.queries && c < p.keys) put(target[row * p.bias_steps.row + c], sum[n][i]);
      }
    }
    return;
  }
  // The sum over rows: of a warp, then of all.
  __syncthreads();
  float* all = (float*)shared_memory;
#pragma unroll
  for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float found = sum[n][j] + sum[n][2 + j];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) found += __shfl_xor_sync(0xffffffffu, found, step);
      if (group == 0) all[warp * TILE + n * 8 + member * 2 + j] = found;
    }
  __syncthreads();
  for (int c = threadIdx.x; c < TILE && column + c < p.keys; c += 128)
    put(target[column + c], all[c] + all[TILE + c] + all[2 * TILE + c] + all[3 * TILE + c]);
}

// dsink: a block has a head.
template <class T>
__global__ void __launch_bounds__(128) by_sink(const Problem p) {
  const int head = blockIdx.x;
  float sum = 0.0f;
  for (int b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, b);
    for (int row = threadIdx.x; row < s.queries; row += 128) {
      const i64 place = place_of_sum(p, s, b, head, row);
      if (p.lse[place] > -INFINITE)
        sum -= power_of_2((p.sink[head] - p.lse[place]) * LOG2_E) * p.delta[place];
    }
  }
  float* all = (float*)shared_memory;
  all[threadIdx.x] = sum;
  for (int step = 64; step; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) all[threadIdx.x] += all[threadIdx.x + step];
  }
  if (threadIdx.x == 0) p.dsink[head] = all[0];
}
