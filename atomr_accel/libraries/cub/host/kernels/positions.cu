// 0, 1, 2, ...: what a sort of positions moves.
__global__ void positions(long long* out, long long count) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  long long at = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; at < count; at += step) out[at] = at;
}

struct alignas(8) Wide {
  unsigned long long parts[2];
};

// Values of 16 bytes, in the order of positions that were sorted in their place.
__global__ void gather(Wide* out, const Wide* values, const long long* places, long long count) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  long long at = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; at < count; at += step) out[at] = values[places[at]];
}
