// Numbers of eight bits with a scale for each block of them: dequantize<E, Y>, where E is how many
// bits of them are exponent. Scales are 2 ** (byte - 127), but NaN for 255.
//
// Launched with one thread for each element, or with fewer, which take several in turn. DIMS, the
// most dimensions, comes from Python.

#include "access.cuh"
#include "types.cuh"

struct Blocks {
  i64 ndim, axis, block;
  i64 shape[DIMS], from[DIMS], scale[DIMS], to[DIMS];
};

// The largest of the four bits of exponent are numbers, too, but for one of them.
template <int E> __device__ float number(unsigned char bits) {
  const int digits = 7 - E, most = (1 << E) - 1, bias = (1 << (E - 1)) - 1;
  const int exponent = bits >> digits & most, fraction = bits & ((1 << digits) - 1);
  float size = exponent ? ldexpf((float)(fraction | 1 << digits), exponent - bias - digits)
                        : ldexpf((float)fraction, 1 - bias - digits);
  if (E == 4 && (bits & 127) == 127) size = __uint_as_float(0x7fc00000u);
  if (E == 5 && exponent == most) size = __uint_as_float(fraction ? 0x7fc00000u : 0x7f800000u);
  return bits >> 7 ? -size : size;
}

template <int E, class Y>
__global__ void dequantize(Y* y, const unsigned char* x, const unsigned char* scales,
                           Blocks blocks, i64 count) {
  const i64 threads = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
    i64 rest = i, to = 0, from = 0, scale = 0;
    for (i64 d = blocks.ndim - 1; d >= 0; --d) {
      const i64 index = rest % blocks.shape[d];
      rest /= blocks.shape[d];
      to += index * blocks.to[d];
      from += index * blocks.from[d];
      scale += (d == blocks.axis ? index / blocks.block : index) * blocks.scale[d];
    }
    const int exponent = scales[scale];
    const float value = exponent == 255 ? __uint_as_float(0x7fc00000u) : number<E>(x[from]);
    put(y[to], ldexp((double)value, exponent - 127));
  }
}
