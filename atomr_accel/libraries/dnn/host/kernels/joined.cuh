// Numbers of several threads, joined in an order. THREADS, a power of two, is a block's threads.
#pragma once

struct Sum {
  template <class A> __device__ static A of(A a, A b) { return a + b; }
};
struct Most {
  template <class A> __device__ static A of(A a, A b) { return b > a || b != b ? b : a; }
};

// What G threads have, joined; G is 1 or THREADS.
template <class Join, int G, class A> __device__ A joined(A value) {
  if (G == 1) return value;
  __shared__ A parts[THREADS];
  __syncthreads();
  parts[threadIdx.x] = value;
  for (int half = THREADS / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      parts[threadIdx.x] = Join::of(parts[threadIdx.x], parts[threadIdx.x + half]);
  }
  __syncthreads();
  return parts[0];
}
