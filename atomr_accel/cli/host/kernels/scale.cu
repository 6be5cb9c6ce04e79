// Multiplies the first n elements of x by a factor, one in each thread.
extern "C" __global__ void scale(float* x, int n, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factor;
}
