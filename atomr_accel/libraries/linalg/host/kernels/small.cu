// Factorizations of stacks of small matrices, as LAPACK has them: column-major, without gaps; and
// tables of pointers, which functions of the vendor's take for larger ones.
//
// A block is one warp, which has a matrix in shared memory: as N columns of N + 1 elements, so that
// threads that follow each other find rows, and columns, in banks of their own. Matrices have up to
// N rows and columns. Launched with a block for each matrix, or with fewer that take more in turn.

#include "types.cuh"

template <class R> struct complex_of { R re, im; };

template <class T> struct parts { typedef T real; };
template <class R> struct parts<complex_of<R>> { typedef R real; };
template <class T> using real_of = typename parts<T>::real;

#define FN __device__ __forceinline__
#define C complex_of<R>

FN float root(float x) { return sqrtf(x); }
FN double root(double x) { return sqrt(x); }
FN float size_of(float x) { return x < 0 ? -x : x; }
FN double size_of(double x) { return x < 0 ? -x : x; }
template <class R> FN R size_of(C x) { return size_of(x.re) + size_of(x.im); }  // as of LAPACK
FN float most_of(float x) { return size_of(x); }
FN double most_of(double x) { return size_of(x); }
template <class R> FN R most_of(C x) {
  const R re = size_of(x.re), im = size_of(x.im);
  return re >= im ? re : im == im ? im : re;  // NaN, if one is
}

FN float real(float x) { return x; }
FN double real(double x) { return x; }
template <class R> FN R real(C x) { return x.re; }
FN float imaginary(float) { return 0; }
FN double imaginary(double) { return 0; }
template <class R> FN R imaginary(C x) { return x.im; }
FN float conjugate(float x) { return x; }
FN double conjugate(double x) { return x; }
template <class R> FN C conjugate(C x) { return C{x.re, -x.im}; }
template <class T> struct made_of {
  static FN T from(T re, T) { return re; }
};
template <class R> struct made_of<C> {
  static FN C from(R re, R im) { return C{re, im}; }
};

template <class R> FN C operator+(C a, C b) { return C{a.re + b.re, a.im + b.im}; }
template <class R> FN C operator-(C a, C b) { return C{a.re - b.re, a.im - b.im}; }
template <class R> FN C operator*(C a, C b) {
  return C{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class R> FN C operator/(C a, R b) { return C{a.re / b, a.im / b}; }
template <class R> FN C operator/(C a, C b) {  // scaled by the larger part
  if (size_of(b.re) >= size_of(b.im)) {
    const R r = b.im / b.re, d = b.re + b.im * r;
    return C{(a.re + a.im * r) / d, (a.im - a.re * r) / d};
  }
  const R r = b.re / b.im, d = b.im + b.re * r;
  return C{(a.re * r + a.im) / d, (a.im * r - a.re) / d};
}

#define ALL 0xffffffffu
template <class R> FN R summed(R value) {
  for (int bit = 16; bit; bit /= 2) value += __shfl_xor_sync(ALL, value, bit);
  return value;
}
template <class R> FN R largest(R value) {  // NaN, if one is
  for (int bit = 16; bit; bit /= 2) {
    const R other = __shfl_xor_sync(ALL, value, bit);
    if (!(other <= value)) value = other != other || value == value ? other : value;
  }
  return value;
}

// The threads of a block take rows, or columns, in turn.
#define EACH(i, first, count) for (int i = (first) + (int)threadIdx.x; i < (count); i += 32)
#define AT(i, j) tile[(i) + (j) * (N + 1)]

template <class T, int N> FN void load(T* tile, const T* from, int m, int n) {
  for (int j = 0; j < n; ++j) EACH(i, 0, m) AT(i, j) = from[i + j * m];
  __syncwarp();
}
template <class T, int N> FN void store(const T* tile, T* to, int m, int n) {
  __syncwarp();
  for (int j = 0; j < n; ++j) EACH(i, 0, m) to[i + j * m] = AT(i, j);
  __syncwarp();
}

// --- Cholesky's ------------------------------------------------------------------------------

// The lower triangle, in place. "info" tells the first minor that is not positive.
template <class T, int N>
__global__ void __launch_bounds__(32) potrf(T* matrices, int* info, u64 batch, u64 rows) {
  __shared__ T tile[N * (N + 1)];
  const int n = (int)rows;
  for (u64 which = blockIdx.x; which < batch; which += gridDim.x) {
    T* matrix = matrices + which * n * n;
    load<T, N>(tile, matrix, n, n);
    int failed = 0;
    for (int k = 0; k < n && !failed; ++k) {
      const real_of<T> square = real(AT(k, k));
      __syncwarp();
      if (!(square > 0)) {
        failed = k + 1;
        continue;
      }
      const real_of<T> pivot = root(square);
      EACH(i, k, n) AT(i, k) = i == k ? made_of<T>::from(pivot, 0) : AT(i, k) / pivot;
      __syncwarp();
      EACH(i, k + 1, n) {
        const T factor = AT(i, k);
        for (int j = k + 1; j <= i; ++j) AT(i, j) = AT(i, j) - factor * conjugate(AT(j, k));
      }
      __syncwarp();
    }
    if (!threadIdx.x) info[which] = failed;
    store<T, N>(tile, matrix, n, n);
  }
}

// --- LU --------------------------------------------------------------------------------------

// Whether a pivot is less than another one; NaN is the largest, so that it is what comes of it.
template <class R> FN bool before(R one, R other) {
  return other > one || (other != other && one == one);
}

// Factors in place, with partial pivoting; the first pivot that is zero, counted from one, or 0.
template <class T, int N> FN int factorize(T* tile, int* pivots, int n) {
  typedef real_of<T> R;
  int failed = 0;
  for (int k = 0; k < n; ++k) {
    R best = -1;
    int row = k;
    EACH(i, k, n) {
      const R size = size_of(AT(i, k));
      if (before(best, size)) best = size, row = i;
    }
    for (int bit = 16; bit; bit /= 2) {
      const R other = __shfl_xor_sync(ALL, best, bit);
      const int its = __shfl_xor_sync(ALL, row, bit);
      const bool equal = !before(best, other) && !before(other, best);
      if (before(best, other) || (equal && its < row)) best = other, row = its;
    }
    if (!threadIdx.x) pivots[k] = row;
    if (best == 0) {
      if (!failed) failed = k + 1;
      continue;
    }
    if (row != k) EACH(j, 0, n) {
      const T upper = AT(k, j);
      AT(k, j) = AT(row, j);
      AT(row, j) = upper;
    }
    __syncwarp();
    const T pivot = AT(k, k);
    EACH(i, k + 1, n) {
      const T factor = AT(i, k) / pivot;
      AT(i, k) = factor;
      for (int j = k + 1; j < n; ++j) AT(i, j) = AT(i, j) - factor * AT(k, j);
    }
    __syncwarp();
  }
  return failed;
}

template <class T, int N>
__global__ void __launch_bounds__(32)
    getrf(T* matrices, int* exchanged, int* info, u64 batch, u64 rows, u64 /* as many */) {
  __shared__ T tile[N * (N + 1)];
  __shared__ int pivots[N];
  const int n = (int)rows;
  for (u64 which = blockIdx.x; which < batch; which += gridDim.x) {
    T* matrix = matrices + which * n * n;
    load<T, N>(tile, matrix, n, n);
    const int failed = factorize<T, N>(tile, pivots, n);
    __syncwarp();
    EACH(k, 0, n) exchanged[which * n + k] = pivots[k] + 1;
    if (!threadIdx.x) info[which] = failed;
    store<T, N>(tile, matrix, n, n);
  }
}

// The x of "op(a) x = b" in the place of b; a thread for each right-hand side, 32 at a time. Of a
// nothing is left. "trans": 0 a itself, 1 its transpose, 2 the conjugate of that.
template <class T, int N>
__global__ void __launch_bounds__(32)
    gesv(const T* matrices, T* sides, int* info, u64 batch, u64 rows, u64 nrhs, u64 trans) {
  __shared__ T tile[N * (N + 1)];
  __shared__ T side[32 * (N + 1)];
  __shared__ int pivots[N];
  const int n = (int)rows;
  const int own = (int)threadIdx.x * (N + 1);
  for (u64 which = blockIdx.x; which < batch; which += gridDim.x) {
    const T* matrix = matrices + which * n * n;
    for (int j = 0; j < N; ++j) EACH(i, 0, N) {
      T x = made_of<T>::from(i == j, 0);  // what is not there does no harm
      if (i < n && j < n) x = matrix[i + j * n];
      if (trans == 2) x = conjugate(x);
      (trans ? AT(j, i) : AT(i, j)) = x;
    }
    __syncwarp();
    const int failed = factorize<T, N>(tile, pivots, n);
    __syncwarp();
    if (!threadIdx.x) info[which] = failed;
    for (u64 first = 0; first < nrhs; first += 32) {
      const int columns = (int)(nrhs - first < 32 ? nrhs - first : 32);
      T* given = sides + (which * nrhs + first) * n;
      load<T, N>(side, given, n, columns);
      for (int k = 0; k < n; ++k) {
        const T upper = side[own + k];
        side[own + k] = side[own + pivots[k]];
        side[own + pivots[k]] = upper;
      }
      T x[N];
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = i < n ? side[own + i] : made_of<T>::from(0, 0);
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = j + 1; i < N; ++i) x[i] = x[i] - AT(i, j) * x[j];
#pragma unroll
      for (int j = N - 1; j >= 0; --j) {
        x[j] = x[j] / AT(j, j);
#pragma unroll
        for (int i = 0; i < j; ++i) x[i] = x[i] - AT(i, j) * x[j];
      }
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i < n) side[own + i] = x[i];
      store<T, N>(side, given, n, columns);
    }
  }
}

// --- QR --------------------------------------------------------------------------------------

// C := C - tau v (v^H C), of rows and columns from (k, first) on; v has a one in row k, and what is
// in column k below that.
template <class T, int N> FN void reflect(T* tile, T tau, int k, int first, int m, int n) {
  EACH(j, first, n) {
    T sum = AT(k, j);
    for (int i = k + 1; i < m; ++i) sum = sum + conjugate(AT(i, k)) * AT(i, j);
    sum = tau * sum;
    AT(k, j) = AT(k, j) - sum;
    for (int i = k + 1; i < m; ++i) AT(i, j) = AT(i, j) - AT(i, k) * sum;
  }
  __syncwarp();
}

template <class T, int N>
__global__ void __launch_bounds__(32)
    geqrf(T* matrices, T* scalars, int* info, u64 batch, u64 rows, u64 columns) {
  typedef real_of<T> R;
  __shared__ T tile[N * (N + 1)];
  const int m = (int)rows, n = (int)columns, least = m < n ? m : n;
  for (u64 which = blockIdx.x; which < batch; which += gridDim.x) {
    T* matrix = matrices + which * m * n;
    load<T, N>(tile, matrix, m, n);
    for (int k = 0; k < least; ++k) {
      const T alpha = AT(k, k);
      R below = 0;
      EACH(i, k + 1, m) {
        const R size = most_of(AT(i, k));
        if (!(size <= below)) below = size != size || below == below ? size : below;
      }
      below = largest(below);
      T tau = made_of<T>::from(0, 0);
      if (below != 0 || imaginary(alpha) != 0) {  // or else it is as it should be
        const R own = most_of(alpha), scale = below > own ? below : own == own ? own : below;
        R squares = 0;
        EACH(i, k, m) {
          const R re = real(AT(i, k)) / scale, im = imaginary(AT(i, k)) / scale;
          squares += re * re + im * im;
        }
        const R norm = scale * root(summed(squares));
        const R beta = real(alpha) >= 0 ? -norm : norm;
        tau = made_of<T>::from((beta - real(alpha)) / beta, -imaginary(alpha) / beta);
        const T divisor = alpha - made_of<T>::from(beta, 0);
        __syncwarp();
        EACH(i, k, m) AT(i, k) = i == k ? made_of<T>::from(beta, 0) : AT(i, k) / divisor;
      }
      __syncwarp();
      if (!threadIdx.x) scalars[which * least + k] = tau;
      reflect<T, N>(tile, conjugate(tau), k, k + 1, m, n);
    }
    if (!threadIdx.x) info[which] = 0;
    store<T, N>(tile, matrix, m, n);
  }
}

// The first columns of Q, in the place of the reflectors, of which there may be fewer.
template <class T, int N>
__global__ void __launch_bounds__(32)
    orgqr(T* matrices, const T* scalars, int* info, u64 batch, u64 rows, u64 columns, u64 count) {
  __shared__ T tile[N * (N + 1)];
  const int m = (int)rows, n = (int)columns, reflectors = (int)count;
  for (u64 which = blockIdx.x; which < batch; which += gridDim.x) {
    T* matrix = matrices + which * m * n;
    load<T, N>(tile, matrix, m, reflectors);
    for (int j = reflectors; j < n; ++j) EACH(i, 0, m) AT(i, j) = made_of<T>::from(i == j, 0);
    __syncwarp();
    for (int k = reflectors - 1; k >= 0; --k) {
      const T tau = scalars[which * reflectors + k];
      reflect<T, N>(tile, tau, k, k + 1, m, n);
      EACH(i, 0, m) {
        const T one = made_of<T>::from(i == k, 0);
        AT(i, k) = i < k ? made_of<T>::from(0, 0) : i == k ? one - tau : one - tau * AT(i, k);
      }
      __syncwarp();
    }
    if (!threadIdx.x) info[which] = 0;
    store<T, N>(tile, matrix, m, n);
  }
}

// --- pointers --------------------------------------------------------------------------------

// Those of "count" matrices that lie "size" bytes apart.
__global__ void point(u64* table, u64 start, u64 size, u64 count) {
  const u64 step = (u64)gridDim.x * blockDim.x, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (u64 at = first; at < count; at += step) table[at] = start + at * size;
}
