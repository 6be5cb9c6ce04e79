// Losses: cross-entropy ("rows", "weigh", "gradient"; "soft_rows" and "soft_gradient" of targets
// that are probabilities), connectionist temporal classification
// ("ctc"), and their sums ("total"). A is the type that is computed in, I that of classes.
//
// THREADS, a power of two, comes from Python: blocks have as many threads, and take several rows
// in turn where there are fewer blocks than rows. Sums have an order, so results are the same each
// time. A class that does not exist makes NaN, and nothing is read for it.

#include "access.cuh"
#include "joined.cuh"
#include "types.cuh"

template <class A> __device__ A nan_of() { return (A)__longlong_as_double(0x7ff8000000000000LL); }
template <class A> __device__ A infinity() { return (A)__longlong_as_double(0x7ff0000000000000LL); }

// y is the sum of values, divided by that of weights, if there are any, and by "divisor".
template <class A, class Y>
__global__ void total(Y* y, const A* values, const A* weights, i64 count, double divisor) {
  if (blockIdx.x) return;
  A sum = 0, weight = 0;
  for (i64 i = threadIdx.x; i < count; i += THREADS) {
    sum += values[i];
    if (weights) weight += weights[i];
  }
  sum = joined<Sum, THREADS>(sum);
  weight = weights ? joined<Sum, THREADS>(weight) : (A)divisor;
  if (threadIdx.x == 0) put(*y, sum / weight);
}

// --- cross-entropy ---------------------------------------------------------------------

struct Scores { i64 count, classes, behind, ignore; double smoothing; };

template <class A, class T>
__device__ A weight_of(const T* weights, i64 c) { return weights ? get<A>(weights[c]) : (A)1; }

// The logarithm of the sum of exponentials of a row of scores.
template <int G, class A, class T>
__device__ A normalizer(const T* x, const Scores& how, i64 lane) {
  A most = -infinity<A>();
  for (i64 c = lane; c < how.classes; c += G) most = Most::of(most, get<A>(x[c * how.behind]));
  most = joined<Most, G>(most);
  A sum = 0;
  for (i64 c = lane; c < how.classes; c += G) sum += exp(get<A>(x[c * how.behind]) - most);
  return most + log(joined<Sum, G>(sum));
}

// G threads for each row; of how much a row counts there is no need without a mean.
template <int G, class A, class Y, class T, class I>
__global__ void rows(Y* losses, A* counts, const T* x, const I* target, const T* weights,
                     Scores how) {
  const i64 lane = threadIdx.x % G, each = THREADS / G;
  for (i64 r = blockIdx.x * each + threadIdx.x / G; r < how.count; r += gridDim.x * each) {
    const T* row = x + r / how.behind * how.classes * how.behind + r % how.behind;
    const i64 t = target[r];
    const bool known = t >= 0 && t < how.classes, ignored = t == how.ignore;
    A loss = ignored ? (A)0 : nan_of<A>();
    if (known && !ignored) {
      const A normal = normalizer<G, A>(row, how, lane);
      loss = (A)(1 - how.smoothing) * weight_of<A>(weights, t) *
             (normal - get<A>(row[t * how.behind]));
      if (how.smoothing != 0) {
        A sum = 0;
        for (i64 c = lane; c < how.classes; c += G)
          sum += weight_of<A>(weights, c) * (normal - get<A>(row[c * how.behind]));
        loss += (A)(how.smoothing / (double)how.classes) * joined<Sum, G>(sum);
      }
    }
    if (lane) continue;
    put(losses[r], loss);
    if (counts) counts[r] = ignored ? (A)0 : known ? weight_of<A>(weights, t) : nan_of<A>();
  }
}

// How much all rows count together.
template <class A, class T, class I>
__global__ void weigh(A* sum, const I* target, const T* weights, Scores how) {
  if (blockIdx.x) return;
  A part = 0;
  for (i64 r = threadIdx.x; r < how.count; r += THREADS) {
    const i64 t = target[r];
    if (t == how.ignore) continue;
    part += t >= 0 && t < how.classes ? weight_of<A>(weights, t) : nan_of<A>();
  }
  part = joined<Sum, THREADS>(part);
  if (threadIdx.x == 0) *sum = part;
}

// "each" tells whether rows have gradients of their own.
template <int G, class A, class T, class I>
__global__ void gradient(T* dx, const T* dy, const T* x, const I* target, const T* weights,
                         const A* sum, Scores how, i64 each) {
  const i64 lane = threadIdx.x % G, at_once = THREADS / G;
  for (i64 r = blockIdx.x * at_once + threadIdx.x / G; r < how.count; r += gridDim.x * at_once) {
    const i64 first = r / how.behind * how.classes * how.behind + r % how.behind;
    const i64 t = target[r];
    const bool known = t >= 0 && t < how.classes, ignored = t == how.ignore;
    if (ignored || !known) {
      for (i64 c = lane; c < how.classes; c += G)
        put(dx[first + c * how.behind], ignored ? (A)0 : nan_of<A>());
      continue;
    }
    const A factor = get<A>(dy[each ? r : 0]) / (sum ? *sum : (A)1);
    const A own = (A)(1 - how.smoothing) * weight_of<A>(weights, t);
    const A others = (A)(how.smoothing / (double)how.classes);
    const A normal = normalizer<G, A>(x + first, how, lane);
    A all = 0;
    if (how.smoothing != 0) {
      for (i64 c = lane; c < how.classes; c += G) all += weight_of<A>(weights, c);
      all = joined<Sum, G>(all);
    }
    for (i64 c = lane; c < how.classes; c += G) {
      const A p = exp(get<A>(x[first + c * how.behind]) - normal);
      const A slope = own * (p - (A)(c == t)) + others * (all * p - weight_of<A>(weights, c));
      put(dx[first + c * how.behind], factor * slope);
    }
  }
}

// Of a target that has a probability for each class, the share of one, smoothed.
template <class A, class T>
__device__ A share_of(const T* target, i64 c, const Scores& how) {
  return (A)(1 - how.smoothing) * get<A>(target[c * how.behind]) +
         (A)(how.smoothing / (double)how.classes);
}

template <int G, class A, class Y, class T>
__global__ void soft_rows(Y* losses, const T* x, const T* target, const T* weights, Scores how) {
  const i64 lane = threadIdx.x % G, each = THREADS / G;
  for (i64 r = blockIdx.x * each + threadIdx.x / G; r < how.count; r += gridDim.x * each) {
    const i64 first = r / how.behind * how.classes * how.behind + r % how.behind;
    const A normal = normalizer<G, A>(x + first, how, lane);
    A loss = 0;
    for (i64 c = lane; c < how.classes; c += G) {
      const A share = share_of<A>(target + first, c, how);
      if (share != 0)
        loss += share * weight_of<A>(weights, c) * (normal - get<A>(x[first + c * how.behind]));
    }
    loss = joined<Sum, G>(loss);
    if (lane == 0) put(losses[r], loss);
  }
}

template <int G, class A, class T>
__global__ void soft_gradient(T* dx, const T* dy, const T* x, const T* target, const T* weights,
                              Scores how, i64 each, double divisor) {
  const i64 lane = threadIdx.x % G, at_once = THREADS / G;
  for (i64 r = blockIdx.x * at_once + threadIdx.x / G; r < how.count; r += gridDim.x * at_once) {
    const i64 first = r / how.behind * how.classes * how.behind + r % how.behind;
    const A factor = get<A>(dy[each ? r : 0]) / (A)divisor;
    const A normal = normalizer<G, A>(x + first, how, lane);
    A all = 0;
    for (i64 c = lane; c < how.classes; c += G)
      all += share_of<A>(target + first, c, how) * weight_of<A>(weights, c);
    all = joined<Sum, G>(all);
    for (i64 c = lane; c < how.classes; c += G) {
      const A p = exp(get<A>(x[first + c * how.behind]) - normal);
      const A own = share_of<A>(target + first, c, how) * weight_of<A>(weights, c);
      put(dx[first + c * how.behind], factor * (all * p - own));
    }
  }
}

// --- connectionist temporal classification ---------------------------------------------

// Graves et al., 2006. A sequence of n targets has 2 n + 1 states: blanks around each of them.
struct Classification {
  i64 steps, batch, classes, size, width, blank, mean, each, zero;
};

template <class A> __device__ A log_sum(A a, A b, A c) {
  const A most = a > b ? (a > c ? a : c) : (b > c ? b : c);
  if (most == -infinity<A>()) return a + b + c;  // that, or NaN
  return most + log(exp(a - most) + exp(b - most) + exp(c - most));
}

// A sequence: its targets, and the logarithms of its probabilities.
template <class A, class T, class I> struct Sequence {
  const T* x;
  const I* targets;
  i64 step, classes, blank;

  __device__ i64 label(i64 s) const { return s % 2 ? (i64)targets[s / 2] : blank; }
  __device__ A log_of(i64 t, i64 s) const {
    const i64 c = label(s);
    return c >= 0 && c < classes ? get<A>(x[t * step + c]) : nan_of<A>();
  }
  // Whether the blank before a state can be left out.
  __device__ bool skips(i64 s) const { return s % 2 && s > 1 && label(s) != label(s - 2); }
};

// What the vendor's routine is asked: sequences for which there are targets and a path, and for
// others something as short. It takes targets one behind the other, and looks at none of them.
struct Packed { int* labels; int* counts; int* steps; };

template <class A, class T, class I>
__device__ bool ordinary(const Sequence<A, T, I>& seq, i64 steps, i64 length) {
  i64 needed = length;
  for (i64 s = 1; s < 2 * length; s += 2) {
    const i64 own = seq.label(s);
    if (own < 0 || own >= seq.classes || own == seq.blank) return false;
    needed += s > 1 && own == seq.label(s - 2);
  }
  return length > 0 && needed <= steps;
}

template <class A, class T, class I>
__device__ bool known(const Classification& how, i64 steps, i64 length, i64 offset) {
  return steps >= 0 && steps <= how.steps && length >= 0 && length <= how.size - offset &&
         (!how.width || length <= how.width);
}

// By one block, because each begins where the one before ends. Rows of targets only.
template <class A, class T, class I>
__global__ void pack(Packed packed, const I* targets, const I* input_lengths,
                     const I* target_lengths, Classification how) {
  if (blockIdx.x) return;
  for (i64 n = threadIdx.x; n < how.batch; n += blockDim.x) {
    const i64 offset = n * how.width, steps = input_lengths[n], length = target_lengths[n];
    const Sequence<A, T, I> seq = {nullptr, targets + offset, 0, how.classes, how.blank};
    const bool asked = known<A, T, I>(how, steps, length, offset) && ordinary(seq, steps, length);
    packed.counts[n] = asked ? (int)length : -1;
    packed.steps[n] = asked ? (int)steps : 1;
  }
  __syncthreads();
  for (i64 n = threadIdx.x; n < how.batch; n += blockDim.x) {
    i64 at = 0;
    for (i64 m = 0; m < n; ++m) at += packed.counts[m] < 0 ? 1 : packed.counts[m];
    if (packed.counts[n] < 0) packed.labels[at] = 1;
    for (i64 i = 0; i < packed.counts[n]; ++i)
      packed.labels[at + i] = (int)targets[n * how.width + i];
  }
  __syncthreads();
  for (i64 n = threadIdx.x; n < how.batch; n += blockDim.x)
    if (packed.counts[n] < 0) packed.counts[n] = 1;
}

// A block for each sequence; of those that "costs" is of, gradients are there. "states" has two
// rows of them, or with a gradient one for each step and four more: two for what is to come, the
// next state with the same class, and how probable it is that a step is in a state.
template <class A, class Y, class T, class I>
__global__ void ctc(Y* losses, T* dx, const T* dy, const T* x, const I* targets,
                    const I* input_lengths, const I* target_lengths, A* states, const A* costs,
                    Classification how) {
  for (i64 n = blockIdx.x; n < how.batch; n += gridDim.x) {
    i64 offset = n * how.width;
    if (!how.width)
      for (i64 m = 0; m < n; ++m) offset += target_lengths[m] > 0 ? target_lengths[m] : 0;
    const i64 steps = input_lengths[n], length = target_lengths[n], count = 2 * length + 1;
    const bool sound = known<A, T, I>(how, steps, length, offset);
    const Sequence<A, T, I> seq = {x + n * how.classes, targets + offset,
                                   how.batch * how.classes, how.classes, how.blank};
    A* alpha = states + (dx ? how.steps + 4 : 2) * (2 * offset + n);
    const A share = (A)(how.mean && length > 1 ? length : 1);
    if (costs && sound && ordinary(seq, steps, length)) {
      if (losses && threadIdx.x == 0) put(losses[n], costs[n] / share);
      if (!dx) continue;
      const A factor = get<A>(dy[how.each ? n : 0]) / share / (how.mean ? (A)how.batch : (A)1);
      for (i64 t = 0; t < how.steps; ++t)
        for (i64 c = threadIdx.x; c < how.classes; c += blockDim.x) {
          T& made = dx[t * seq.step + n * how.classes + c];
          put(made, t < steps ? factor * get<A>(made) : (A)0);
        }
      continue;
    }
    A loss = sound ? infinity<A>() : nan_of<A>();
    if (sound && !steps && !length) loss = 0;
    if (sound && steps) {
      for (i64 t = 0; t < steps; ++t) {
        A* row = alpha + (dx ? t : t % 2) * count;
        const A* before = alpha + (dx ? t - 1 : (t + 1) % 2) * count;
        for (i64 s = threadIdx.x; s < count; s += blockDim.x) {
          A sum = s < 2 ? (A)0 : -infinity<A>();
          if (t)
            sum = log_sum(before[s], s ? before[s - 1] : -infinity<A>(),
                          seq.skips(s) ? before[s - 2] : -infinity<A>());
          row[s] = sum + seq.log_of(t, s);
        }
        __syncthreads();
      }
      const A* row = alpha + (dx ? steps - 1 : (steps - 1) % 2) * count;
      loss = -log_sum(row[count - 1], length ? row[count - 2] : -infinity<A>(), -infinity<A>());
    }
    const bool zero = how.zero && loss == infinity<A>();
    if (losses && threadIdx.x == 0) put(losses[n], zero ? (A)0 : loss / share);
    if (dx) {
      T* made = dx + n * how.classes;
      const A factor = get<A>(dy[how.each ? n : 0]) / share / (how.mean ? (A)how.batch : (A)1);
      const bool finite = loss < infinity<A>() && loss > -infinity<A>();
      const i64 end = finite ? steps : 0;
      // What no step comes to has no gradient; where there is no path it is not known.
      for (i64 t = end; t < how.steps; ++t)
        for (i64 c = threadIdx.x; c < how.classes; c += blockDim.x)
          put(made[t * seq.step + c],
              finite || zero || (sound && t >= steps) ? (A)0 : nan_of<A>());
      A* beta = alpha + how.steps * count;
      A* next = beta + 2 * count;
      A* through = next + count;
      if (end)
        for (i64 s = threadIdx.x; s < count; s += blockDim.x) {
          i64 before = s - 1, behind = s + 1;
          while (before >= 0 && seq.label(before) != seq.label(s)) --before;
          while (behind < count && seq.label(behind) != seq.label(s)) ++behind;
          const A found = behind < count ? (A)behind : (A)0;  // 0 is behind nothing
          next[s] = before < 0 ? found : -found - 1;
        }
      for (i64 t = end - 1; t >= 0; --t) {
        A* row = beta + t % 2 * count;
        const A* behind = beta + (t + 1) % 2 * count;
        for (i64 s = threadIdx.x; s < count; s += blockDim.x) {
          A sum = s >= count - 2 ? (A)0 : -infinity<A>();
          if (t < steps - 1)
            sum = log_sum(behind[s] + seq.log_of(t + 1, s),
                          s + 1 < count ? behind[s + 1] + seq.log_of(t + 1, s + 1) : -infinity<A>(),
                          s + 2 < count && seq.skips(s + 2)
                              ? behind[s + 2] + seq.log_of(t + 1, s + 2)
                              : -infinity<A>());
          row[s] = sum;
          through[s] = exp(alpha[t * count + s] + sum + loss);
        }
        for (i64 c = threadIdx.x; c < how.classes; c += blockDim.x)
          put(made[t * seq.step + c], factor * exp(get<A>(seq.x[t * seq.step + c])));
        __syncthreads();
        // Then those of the targets, each by the first state that has it.
        for (i64 s = threadIdx.x; s < count; s += blockDim.x) {
          if (next[s] < 0) continue;
          A sum = through[s];
          for (i64 o = (i64)next[s]; o; o = (i64)(-next[o] - 1)) sum += through[o];
          const i64 at = t * seq.step + seq.label(s);
          put(made[at], factor * (exp(get<A>(seq.x[at])) - sum));
        }
        __syncthreads();
      }
    }
    __syncthreads();
  }
}
