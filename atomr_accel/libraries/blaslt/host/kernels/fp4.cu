// What fp4 needs besides cuBLASLt: numbers in halves of bytes ("pack"), scales in tiles ("tile").
//
// Each is launched with one thread for each byte of its target, or with fewer, which take several
// in turn.

#include "types.cuh"

// fp4, one number to a byte, to two numbers to a byte, the first one low.
__global__ void pack(unsigned char* target, const unsigned char* source, u64 count) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step)
    target[at] = (source[2 * at] & 15) | (source[2 * at + 1] << 4);
}

// Scales of (rows, columns) to tiles of 128 x 4, padded with zeros; count is that of tiles'
// elements. In a tile of 512 bytes row r and column c are at r % 32 * 16 + r / 32 * 4 + c.
__global__ void tile(unsigned char* target, const unsigned char* source, u64 count, u64 rows,
                     u64 columns) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  const u64 across = (columns + 3) / 4;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    const u64 tile = at / 512, inside = at % 512;
    const u64 row = tile / across * 128 + inside / 16 + inside % 16 / 4 * 32;
    const u64 column = tile % across * 4 + inside % 4;
    target[at] = row < rows && column < columns ? source[row * columns + column] : 0;
  }
}
