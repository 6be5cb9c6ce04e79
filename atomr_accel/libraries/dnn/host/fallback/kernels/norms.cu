// Normalisations ("forward") and their gradients ("backward_input", "backward_parameters").
//
// Each is launched with a block for each place in its outer dimensions, or with fewer, which take
// several in turn; the block sums over the inner ones. A block has whole warps. DIMS, the most
// dimensions of either kind, comes from Python, which packs the arguments.

#include "access.cuh"
#include "types.cuh"

// A dimension: its size, and the step it makes in each of the tensors.
struct Dim { i64 size, x, grad, out, parameter, statistic; };
struct Norm { i64 outers, inners, outer_dims, inner_dims; Dim outer[DIMS]; Dim inner[DIMS]; };
struct Place { i64 x, grad, out, parameter, statistic; };

__device__ Place place(const Dim* dims, i64 count, i64 index, Place at) {
  for (i64 d = count - 1; d >= 0; --d) {
    const i64 size = dims[d].size;
    const i64 rest = index / size;
    const i64 i = index - rest * size;
    index = rest;
    at.x += i * dims[d].x;
    at.grad += i * dims[d].grad;
    at.out += i * dims[d].out;
    at.parameter += i * dims[d].parameter;
    at.statistic += i * dims[d].statistic;
  }
  return at;
}

// The sum over a block, for all of its threads.
template <class A> __device__ A total(A value) {
  __shared__ A parts[32];
  for (int step = 16; step; step /= 2) value += __shfl_down_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  A sum = 0;
  for (int i = 0; i < (blockDim.x + 31) / 32; ++i) sum += parts[i];
  return sum;
}

// A block for each statistic. T: elements, P: parameters, A: arithmetic and statistics.
template <class T, class P, class A>
__global__ void forward(T* y, const T* x, const P* scale, const P* bias, A* means, A* inverses,
                        A* next_mean, A* next_variance, const A* old_mean, const A* old_variance,
                        Norm norm, double epsilon, double momentum, i64 centred) {
  const Place zero = {};
  for (i64 at = blockIdx.x; at < norm.outers; at += gridDim.x) {
    const Place base = place(norm.outer, norm.outer_dims, at, zero);
    A mean = 0;
    if (centred) {
      A sum = 0;
      for (i64 i = threadIdx.x; i < norm.inners; i += blockDim.x)
        sum += get<A>(x[place(norm.inner, norm.inner_dims, i, base).x]);
      mean = total(sum) / (A)norm.inners;
    }
    A squares = 0;
    for (i64 i = threadIdx.x; i < norm.inners; i += blockDim.x) {
      const A off = get<A>(x[place(norm.inner, norm.inner_dims, i, base).x]) - mean;
      squares += off * off;
    }
    const A variance = total(squares) / (A)norm.inners;
    const A inverse = (A)1 / sqrt(variance + (A)epsilon);
    for (i64 i = threadIdx.x; i < norm.inners; i += blockDim.x) {
      const Place here = place(norm.inner, norm.inner_dims, i, base);
      A value = (get<A>(x[here.x]) - mean) * inverse * get<A>(scale[here.parameter]);
      if (bias) value += get<A>(bias[here.parameter]);
      put(y[here.out], value);
    }
    if (threadIdx.x == 0) {
      const i64 s = base.statistic;
      if (means) means[s] = mean;
      if (inverses) inverses[s] = inverse;
      if (next_mean) {
        const A m = (A)momentum;
        const A others = norm.inners > 1 ? (A)(norm.inners - 1) : (A)1;
        next_mean[s] = ((A)1 - m) * old_mean[s] + m * mean;
        next_variance[s] =
            ((A)1 - m) * old_variance[s] + m * variance * ((A)norm.inners / others);
      }
    }
  }
}

// A block for each statistic.
template <class T, class P, class A>
__global__ void backward_input(T* dx, const T* grad, const T* x, const P* scale, const A* means,
                               const A* inverses, Norm norm) {
  const Place zero = {};
  for (i64 at = blockIdx.x; at < norm.outers; at += gridDim.x) {
    const Place base = place(norm.outer, norm.outer_dims, at, zero);
    const A mean = means ? means[base.statistic] : (A)0;
    const A inverse = inverses[base.statistic];
    A plain = 0, weighted = 0;
    for (i64 i = threadIdx.x; i < norm.inners; i += blockDim.x) {
      const Place here = place(norm.inner, norm.inner_dims, i, base);
      const A scaled = get<A>(grad[here.grad]) * get<A>(scale[here.parameter]);
      plain += scaled;
      weighted += scaled * (get<A>(x[here.x]) - mean) * inverse;
    }
    plain = means ? total(plain) / (A)norm.inners : (A)0;
    weighted = total(weighted) / (A)norm.inners;
    for (i64 i = threadIdx.x; i < norm.inners; i += blockDim.x) {
      const Place here = place(norm.inner, norm.inner_dims, i, base);
      const A scaled = get<A>(grad[here.grad]) * get<A>(scale[here.parameter]);
      const A normal = (get<A>(x[here.x]) - mean) * inverse;
      put(dx[here.out], inverse * (scaled - plain - normal * weighted));
    }
  }
}

// A block for each parameter. Q: gradients of parameters.
template <class T, class Q, class A>
__global__ void backward_parameters(Q* dscale, Q* dbias, const T* grad, const T* x,
                                    const A* means, const A* inverses, Norm norm) {
  const Place zero = {};
  for (i64 at = blockIdx.x; at < norm.outers; at += gridDim.x) {
    const Place base = place(norm.outer, norm.outer_dims, at, zero);
    A plain = 0, weighted = 0;
    for (i64 i = threadIdx.x; i < norm.inners; i += blockDim.x) {
      const Place here = place(norm.inner, norm.inner_dims, i, base);
      const A mean = means ? means[here.statistic] : (A)0;
      const A g = get<A>(grad[here.grad]);
      plain += g;
      weighted += g * (get<A>(x[here.x]) - mean) * inverses[here.statistic];
    }
    plain = total(plain);
    weighted = total(weighted);
    if (threadIdx.x == 0) {
      put(dscale[base.parameter], weighted);
      if (dbias) put(dbias[base.parameter], plain);
    }
  }
}
