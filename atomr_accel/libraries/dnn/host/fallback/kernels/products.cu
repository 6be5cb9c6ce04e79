// Matrix products: "multiply", for any layout, types and batches.
//
// It is launched with a block of SIDE * SIDE threads for each square of the result, or with fewer
// blocks, which take several in turn. SIDE and DIMS, the most dimensions of batches, come from
// Python, which packs the arguments.

#include "access.cuh"
#include "types.cuh"

// How much of the inner dimension a block reads at once.
#define DEPTH 16

// The sizes of a product (m, k) @ (k, n), the steps of rows and columns, and the batches'.
struct Product {
  i64 m, n, k, dims;
  i64 a_row, a_column, b_row, b_column, c_row, c_column;
  i64 size[DIMS], a[DIMS], b[DIMS], c[DIMS];
};

// What a block multiplies at once, as tile[inner][outer]; zeros beyond the ends. Neighbouring
// threads read neighbours in memory. With two columns more than needed they write to different
// banks, too.
template <int TILE, class A, class T>
__device__ void fill(A (*tile)[TILE + 2], const T* from, i64 outer, i64 inner, i64 outers,
                     i64 inners) {
  const bool along = inner <= outer;
#pragma unroll
  for (int at = threadIdx.x; at < TILE * DEPTH; at += SIDE * SIDE) {
    const int o = along ? at / DEPTH : at % TILE;
    const int i = along ? at % DEPTH : at / TILE;
    tile[i][o] = o < outers && i < inners ? get<A>(from[o * outer + i * inner]) : (A)0;
  }
}

// A block for a square of the result, of which each thread has EACH * EACH elements, SIDE apart.
// A: arithmetic, L and R: factors, Y: result. One block reads while another one multiplies.
template <class A, class L, class R, class Y, int EACH>
__global__ void __launch_bounds__(SIDE * SIDE, 2)
multiply(Y* c, const L* a, const R* b, Product product, i64 squares) {
  const int TILE = SIDE * EACH;
  __shared__ A left[DEPTH][TILE + 2];
  __shared__ A right[DEPTH][TILE + 2];
  const int row = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
  const i64 down = (product.m + TILE - 1) / TILE, across = (product.n + TILE - 1) / TILE;
  for (i64 square = blockIdx.x; square < squares; square += gridDim.x) {
    i64 batch = square / (down * across);
    const i64 place = square - batch * (down * across);
    const i64 top = place / across * TILE, start = place % across * TILE;
    const L* rows = a + top * product.a_row;
    const R* columns = b + start * product.b_column;
    Y* result = c;
    for (i64 d = product.dims - 1; d >= 0; --d) {
      const i64 rest = batch / product.size[d];
      const i64 index = batch - rest * product.size[d];
      batch = rest;
      rows += index * product.a[d];
      columns += index * product.b[d];
      result += index * product.c[d];
    }
    A sum[EACH][EACH] = {};
    for (i64 k = 0; k < product.k; k += DEPTH) {
      __syncthreads();
      fill<TILE>(left, rows, product.a_row, product.a_column, product.m - top, product.k - k);
      fill<TILE>(right, columns, product.b_column, product.b_row, product.n - start,
                 product.k - k);
      rows += DEPTH * product.a_column;
      columns += DEPTH * product.b_row;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < DEPTH; ++i) {
        A x[EACH], y[EACH];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
          x[e] = left[i][row + e * SIDE];
          y[e] = right[i][column + e * SIDE];
        }
#pragma unroll
        for (int e = 0; e < EACH; ++e)
#pragma unroll
          for (int f = 0; f < EACH; ++f) sum[e][f] += x[e] * y[f];
      }
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int f = 0; f < EACH; ++f) {
        const i64 i = top + row + e * SIDE, j = start + column + f * SIDE;
        if (i < product.m && j < product.n)
          put(result[i * product.c_row + j * product.c_column], sum[e][f]);
      }
  }
}
