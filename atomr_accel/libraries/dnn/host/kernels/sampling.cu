// Positions from affine matrices ("affine", "affine_back"), elements of images at positions
// ("sample", and its gradients "scatter" and "steer"), and windows of images ("unfold", "fold",
// "pool", "unpool", "pick"). A is the type that is computed in, T that of elements.
//
// Each is launched with one thread for each item of its work, or with fewer, which take several in
// turn. Only "scatter" adds in no order, unless it is told to.

#include "access.cuh"
#include "joined.cuh"
#include "types.cuh"

struct Steps { i64 outer, channel, space[3]; };

__device__ i64 at(const Steps& steps, i64 outer, i64 channel, const i64* space) {
  return outer * steps.outer + channel * steps.channel + space[0] * steps.space[0] +
         space[1] * steps.space[1] + space[2] * steps.space[2];
}

// An index along three dimensions, the last one fastest; what is left of i.
__device__ i64 split(i64 i, const i64* sizes, i64* index) {
  for (int d = 2; d >= 0; --d) {
    index[d] = i % sizes[d];
    i /= sizes[d];
  }
  return i;
}

// The batch, channel and place of item i, in the order in which they lie in memory.
__device__ void find(i64 i, i64 channels, i64 last, const i64* sizes, i64& n, i64& c, i64* place) {
  if (last) {
    c = i % channels;
    n = split(i / channels, sizes, place);
  } else {
    const i64 rest = split(i, sizes, place);
    c = rest % channels;
    n = rest / channels;
  }
}

#define EACH(i, count)                                                           \
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
       i += (i64)gridDim.x * blockDim.x)

template <class T> __global__ void clear(T* y, i64 count) {
  EACH(i, count) put(y[i], 0.0f);
}

template <class A, class T> __global__ void convert(T* y, const A* x, i64 count) {
  EACH(i, count) put(y[i], x[i]);
}

// --- positions from matrices -----------------------------------------------------------

struct Affine { i64 batch, dims, aligned, places[3]; };

// Position along a dimension, from -1 to 1.
template <class A> __device__ A even(i64 i, i64 size, i64 aligned) {
  if (size <= 1) return (A)0;
  return aligned ? (A)(2 * i) / (A)(size - 1) - (A)1 : (A)(2 * i + 1) / (A)size - (A)1;
}

// Component j of a place: the last dimension comes first, and 1 at the end.
template <class A> __device__ A component(const Affine& how, const i64* place, i64 j) {
  if (j == how.dims) return (A)1;
  const int d = (int)(2 - j);
  return even<A>(place[d], how.places[d], how.aligned);
}

template <class A, class T> __global__ void affine(T* grid, const T* theta, Affine how) {
  const i64 count = how.batch * how.places[0] * how.places[1] * how.places[2] * how.dims;
  EACH(i, count) {
    i64 place[3];
    const i64 row = i % how.dims, n = split(i / how.dims, how.places, place);
    const T* matrix = theta + (n * how.dims + row) * (how.dims + 1);
    A sum = 0;
    for (i64 j = 0; j <= how.dims; ++j) sum += get<A>(matrix[j]) * component<A>(how, place, j);
    put(grid[i], sum);
  }
}

// A block for each element of the matrices.
template <class A, class T> __global__ void affine_back(T* dtheta, const T* dgrid, Affine how) {
  const i64 places = how.places[0] * how.places[1] * how.places[2];
  const i64 count = how.batch * how.dims * (how.dims + 1);
  for (i64 i = blockIdx.x; i < count; i += gridDim.x) {
    const i64 j = i % (how.dims + 1), row = i / (how.dims + 1) % how.dims;
    const i64 n = i / (how.dims + 1) / how.dims;
    A sum = 0;
    for (i64 o = threadIdx.x; o < places; o += THREADS) {
      i64 place[3];
      split(o, how.places, place);
      sum += get<A>(dgrid[(n * places + o) * how.dims + row]) * component<A>(how, place, j);
    }
    sum = joined<Sum, THREADS>(sum);
    if (threadIdx.x == 0) put(dtheta[i], sum);
  }
}

// --- elements at positions -------------------------------------------------------------

enum Padding { ZEROS, BORDER, REFLECTION };

struct Grid {
  i64 batch, channels, last, dims, nearest, padding, aligned, size[3], places[3];
  Steps image, result;
};

// An element along a dimension, the share of the one behind it, and by how much the position among
// elements moves with that in the grid. "found" is whether there are elements.
template <class A> struct Spot { i64 base; A after, slope; bool found; };

template <class A> __device__ Spot<A> locate(A g, i64 size, const Grid& how) {
  const A top = (A)(size - 1);
  A where = how.aligned ? (g + (A)1) / (A)2 * top : ((g + (A)1) * (A)size - (A)1) / (A)2;
  A slope = (A)(how.aligned ? size - 1 : size) / (A)2;
  if (how.padding == REFLECTION) {
    // Between the centres of the outermost elements, or their edges.
    const A low = how.aligned ? (A)0 : (A)-0.5, span = how.aligned ? top : (A)size;
    if (span > 0) {
      A beyond = where - low;
      if (beyond < 0) {
        beyond = -beyond;
        slope = -slope;
      }
      const A rest = fmod(beyond, 2 * span);
      where = (rest < span ? rest : 2 * span - rest) + low;
      if (!(rest < span)) slope = -slope;
    } else {
      where = 0;
    }
  }
  if (how.padding != ZEROS) {
    // NaN becomes 0.
    if (!(where > 0)) where = slope = 0;
    if (where >= top) {
      where = top;
      slope = 0;
    }
  }
  Spot<A> spot = {0, 0, slope, where >= (A)-1 && where < (A)size};
  if (!spot.found) return spot;
  const A base = how.nearest ? rint(where) : floor(where);
  spot.base = (i64)base;
  spot.after = how.nearest ? (A)0 : where - base;
  return spot;
}

template <class A, class T>
__device__ bool locate_all(const T* grid, i64 n, i64 o, const Grid& how, Spot<A>* spots) {
  const i64 places = how.places[0] * how.places[1] * how.places[2];
  const T* g = grid + (n * places + o) * how.dims;
  spots[0] = {0, 0, 0, true};
  bool found = true;
  for (int d = (int)(3 - how.dims); d < 3; ++d) {
    spots[d] = locate<A>(get<A>(g[2 - d]), how.size[d], how);
    found = found && spots[d].found;
  }
  return found;
}

// The elements around spots: bit d of "corner" is whether the later one of dimension d is meant.
template <class A>
__device__ bool inside(const Spot<A>* spots, int corner, const Grid& how, i64* element) {
  for (int d = 0; d < 3; ++d) {
    element[d] = spots[d].base + (corner >> d & 1);
    if (element[d] < 0 || element[d] >= how.size[d]) return false;
  }
  return true;
}

template <class A> __device__ A share(const Spot<A>* spots, int corner, int without) {
  A w = 1;
  for (int d = 0; d < 3; ++d)
    if (d != without) w *= corner >> d & 1 ? spots[d].after : (A)1 - spots[d].after;
  return w;
}

template <class A, class T>
__global__ void sample(T* y, const T* x, const T* grid, Grid how) {
  const i64 places = how.places[0] * how.places[1] * how.places[2];
  EACH(i, how.batch * how.channels * places) {
    i64 n, c, place[3], element[3];
    find(i, how.channels, how.last, how.places, n, c, place);
    const i64 o = (place[0] * how.places[1] + place[1]) * how.places[2] + place[2];
    Spot<A> spots[3];
    A sum = 0;
    if (locate_all<A>(grid, n, o, how, spots))
      for (int corner = 0; corner < 8; ++corner) {
        const A w = share(spots, corner, -1);
        if (w != 0 && inside(spots, corner, how, element))
          sum += w * get<A>(x[at(how.image, n, c, element)]);
      }
    put(y[at(how.result, n, c, place)], sum);
  }
}

// Adds to dx, which has a number for each element of the images: all that a channel gets by one
// thread, if it is "ordered".
template <class A, class T>
__global__ void scatter(A* dx, const T* dy, const T* grid, Grid how, i64 ordered) {
  const i64 places = how.places[0] * how.places[1] * how.places[2];
  const i64 each = ordered ? places : 1;
  const i64 one[3] = {1, 1, 1};
  EACH(i, how.batch * how.channels * (places / each)) {
    i64 n, c, place[3], element[3];
    find(i, how.channels, how.last, ordered ? one : how.places, n, c, place);
    const i64 first = (place[0] * how.places[1] + place[1]) * how.places[2] + place[2];
    for (i64 o = first; o < first + each; ++o) {
      Spot<A> spots[3];
      if (!locate_all<A>(grid, n, o, how, spots)) continue;
      split(o, how.places, place);
      const A slope = get<A>(dy[at(how.result, n, c, place)]);
      for (int corner = 0; corner < 8; ++corner) {
        const A w = share(spots, corner, -1);
        if (w == 0 || !inside(spots, corner, how, element)) continue;
        A* target = dx + at(how.image, n, c, element);
        if (ordered)
          *target += w * slope;
        else
          atomicAdd(target, w * slope);
      }
    }
  }
}

template <class A, class T>
__global__ void steer(T* dgrid, const T* dy, const T* x, const T* grid, Grid how) {
  const i64 places = how.places[0] * how.places[1] * how.places[2];
  EACH(i, how.batch * places) {
    i64 place[3], element[3];
    const i64 n = split(i, how.places, place), o = i - n * places;
    Spot<A> spots[3];
    A sums[3] = {0, 0, 0};
    if (locate_all<A>(grid, n, o, how, spots))
      for (int corner = 0; corner < (how.nearest ? 0 : 8); ++corner) {
        if ((how.dims == 2 && corner & 1) || !inside(spots, corner, how, element)) continue;
        A product = 0;
        for (i64 c = 0; c < how.channels; ++c)
          product += get<A>(x[at(how.image, n, c, element)]) *
                     get<A>(dy[at(how.result, n, c, place)]);
        for (int d = (int)(3 - how.dims); d < 3; ++d) {
          const A w = share(spots, corner, d);
          if (w != 0) sums[d] += corner >> d & 1 ? w * product : -w * product;
        }
      }
    for (int d = (int)(3 - how.dims); d < 3; ++d)
      put(dgrid[i * how.dims + 2 - d], spots[d].slope == 0 ? (A)0 : sums[d] * spots[d].slope);
  }
}

// --- windows ---------------------------------------------------------------------------

struct Windows {
  i64 batch, channels, last, size[3], places[3], window[3], stride[3], padding[3], dilation[3];
  Steps image, result;
};

// Columns lie as (batch, channels and elements of the window, places).
template <class A, class T> __global__ void unfold(T* y, const T* x, Windows how) {
  const i64 taps = how.window[0] * how.window[1] * how.window[2];
  const i64 places = how.places[0] * how.places[1] * how.places[2];
  EACH(i, how.batch * how.channels * taps * places) {
    i64 place[3], tap[3], element[3];
    const i64 rest = split(split(i, how.places, place), how.window, tap);
    bool found = true;
    for (int d = 0; d < 3; ++d) {
      element[d] = place[d] * how.stride[d] - how.padding[d] + tap[d] * how.dilation[d];
      found = found && element[d] >= 0 && element[d] < how.size[d];
    }
    const i64 c = rest % how.channels, n = rest / how.channels;
    put(y[i], found ? get<A>(x[at(how.image, n, c, element)]) : (A)0);
  }
}

template <class A, class T> __global__ void fold(T* x, const T* y, Windows how) {
  const i64 taps = how.window[0] * how.window[1] * how.window[2];
  const i64 places = how.places[0] * how.places[1] * how.places[2];
  EACH(i, how.batch * how.channels * how.size[0] * how.size[1] * how.size[2]) {
    i64 n, c, element[3], tap[3], place[3];
    find(i, how.channels, how.last, how.size, n, c, element);
    A sum = 0;
    for (i64 k = 0; k < taps; ++k) {
      split(k, how.window, tap);
      bool found = true;
      for (int d = 0; d < 3; ++d) {
        const i64 begin = element[d] + how.padding[d] - tap[d] * how.dilation[d];
        place[d] = begin / how.stride[d];
        found = found && begin >= 0 && begin % how.stride[d] == 0 && place[d] < how.places[d];
      }
      if (!found) continue;
      const i64 o = (place[0] * how.places[1] + place[1]) * how.places[2] + place[2];
      sum += get<A>(y[((n * how.channels + c) * taps + k) * places + o]);
    }
    put(x[at(how.image, n, c, element)], sum);
  }
}

// The largest element of each window, and where it is: the first one, or the first NaN.
template <class A, class T>
__global__ void pool(T* y, i64* indices, const T* x, Windows how) {
  EACH(i, how.batch * how.channels * how.places[0] * how.places[1] * how.places[2]) {
    i64 n, c, place[3], first[3], end[3], e[3];
    find(i, how.channels, how.last, how.places, n, c, place);
    for (int d = 0; d < 3; ++d) {
      first[d] = place[d] * how.stride[d] - how.padding[d];
      end[d] = first[d] + how.window[d];
      if (first[d] < 0) first[d] = 0;
      if (end[d] > how.size[d]) end[d] = how.size[d];
    }
    A most = get<A>(x[at(how.image, n, c, first)]);
    i64 found = (first[0] * how.size[1] + first[1]) * how.size[2] + first[2];
    for (e[0] = first[0]; e[0] < end[0]; ++e[0])
      for (e[1] = first[1]; e[1] < end[1]; ++e[1])
        for (e[2] = first[2]; e[2] < end[2]; ++e[2]) {
          const A value = get<A>(x[at(how.image, n, c, e)]);
          if (value > most || (value != value && most == most)) {
            most = value;
            found = (e[0] * how.size[1] + e[1]) * how.size[2] + e[2];
          }
        }
    const i64 target = at(how.result, n, c, place);
    put(y[target], most);
    indices[target] = found;
  }
}

// x is zeros before. Nothing is written for an index that is out of range.
template <class A, class T>
__global__ void unpool(T* x, const T* y, const i64* indices, Windows how) {
  const i64 space = how.size[0] * how.size[1] * how.size[2];
  EACH(i, how.batch * how.channels * how.places[0] * how.places[1] * how.places[2]) {
    i64 n, c, place[3], element[3];
    find(i, how.channels, how.last, how.places, n, c, place);
    const i64 source = at(how.result, n, c, place), index = indices[source];
    if (index < 0 || index >= space) continue;
    split(index, how.size, element);
    put(x[at(how.image, n, c, element)], get<A>(y[source]));
  }
}

template <class A, class T>
__global__ void pick(T* y, const T* x, const i64* indices, Windows how) {
  const i64 space = how.size[0] * how.size[1] * how.size[2];
  EACH(i, how.batch * how.channels * how.places[0] * how.places[1] * how.places[2]) {
    i64 n, c, place[3], element[3];
    find(i, how.channels, how.last, how.places, n, c, place);
    const i64 target = at(how.result, n, c, place), index = indices[target];
    const bool known = index >= 0 && index < space;
    split(known ? index : 0, how.size, element);
    put(y[target], known ? get<A>(x[at(how.image, n, c, element)]) : (A)0);
  }
}
