// Images resampled: "average" and "largest", which are pooling and interpolation, and their
// gradients "spread" and "spread_largest". A is the type that is computed in.
//
// Each is launched with one thread for each element of its result, which gathers what that is
// made of, or with fewer, which take several in turn. So gradients are the same each time.

#include "access.cuh"
#include "types.cuh"

// As in _resamples.py.
enum Kind { WINDOW, ADAPTIVE, NEAREST, NEAREST_EXACT, LINEAR, CUBIC };

struct Axis { i64 kind, size, places, window, stride, before, after, aligned; };
struct Steps { i64 outer, channel, space[3]; };
// A gradient may lie otherwise than the image that it is by.
struct Images { i64 channels, padded; Axis axes[3]; Steps image, result, gradient; };

__device__ i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
__device__ i64 larger(i64 a, i64 b) { return a > b ? a : b; }

__device__ i64 at(const Steps& steps, i64 outer, i64 channel, const i64* space) {
  return outer * steps.outer + channel * steps.channel + space[0] * steps.space[0] +
         space[1] * steps.space[1] + space[2] * steps.space[2];
}

// What a place is made of: elements from "first" to before "end", which may lie beyond the ends
// of the image where it is interpolated; "where" is the place in the image.
struct Taps { i64 first, end, count; double where; };

__device__ Taps taps(const Axis& axis, i64 place, bool padded) {
  Taps t = {0, 0, 1, 0};
  if (axis.kind == WINDOW || axis.kind == ADAPTIVE) {
    if (axis.kind == ADAPTIVE) {
      t.first = place * axis.size / axis.places;
      t.end = ((place + 1) * axis.size + axis.places - 1) / axis.places;
    } else {
      t.first = place * axis.stride - axis.before;
      t.end = t.first + axis.window;
    }
    t.count = smaller(t.end, axis.size + axis.after) - t.first;
    t.first = larger(t.first, 0);
    t.end = smaller(t.end, axis.size);
    if (!padded) t.count = t.end - t.first;
    return t;
  }
  if (axis.kind == NEAREST || axis.kind == NEAREST_EXACT) {
    t.first = axis.kind == NEAREST ? place * axis.size / axis.places
                                   : (2 * place + 1) * axis.size / (2 * axis.places);
    t.end = t.first + 1;
    return t;
  }
  t.where = axis.aligned
                ? place * ((double)(axis.size - 1) / (double)larger(1, axis.places - 1))
                : (place + 0.5) * ((double)axis.size / (double)axis.places) - 0.5;
  if (axis.kind == LINEAR && t.where < 0) t.where = 0;
  const i64 base = (i64)floor(t.where);
  t.first = axis.kind == LINEAR ? base : base - 1;
  t.end = base + (axis.kind == LINEAR ? 2 : 3);
  return t;
}

// Keys' cubic kernel (1981) with a = -3/4, which image libraries take.
__device__ double keys(double d) {
  const double a = -0.75;
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? a * (((d - 5) * d + 8) * d - 4) : 0;
}

__device__ double weight(const Axis& axis, const Taps& t, i64 element) {
  if (axis.kind == LINEAR) {
    const double after = t.where - floor(t.where);
    return element == t.first ? 1 - after : after;
  }
  return axis.kind == CUBIC ? keys(fabs(t.where - (double)element)) : 1;
}

__device__ i64 inside(const Axis& axis, i64 element) {
  return smaller(larger(element, 0), axis.size - 1);
}

// The places that an element may go into, and perhaps some more.
__device__ void users(const Axis& axis, i64 element, i64& first, i64& end) {
  if (axis.kind == WINDOW) {
    const i64 begin = element + axis.before - axis.window + 1;
    first = begin <= 0 ? 0 : (begin + axis.stride - 1) / axis.stride;
    end = (element + axis.before) / axis.stride + 1;
  } else {
    // Three elements on either side are enough for all kinds, and one place for rounding.
    const bool all = axis.aligned && axis.size == 1;
    const double ratio = axis.aligned
                             ? (double)(axis.places - 1) / (double)larger(1, axis.size - 1)
                             : (double)axis.places / (double)axis.size;
    first = all ? 0 : (i64)floor((double)(element - 3) * ratio) - 1;
    end = all ? axis.places : (i64)ceil((double)(element + 4) * ratio) + 2;
  }
  first = larger(first, 0);
  end = smaller(end, axis.places);
}

// How much an element gives to a place.
__device__ double share(const Axis& axis, i64 place, i64 element, bool padded) {
  const Taps t = taps(axis, place, padded);
  double sum = 0;
  for (i64 e = t.first; e < t.end; ++e)
    if (inside(axis, e) == element) sum += weight(axis, t, e);
  return sum / (double)t.count;
}

// An index along three dimensions, the last one fastest; what is left of i.
__device__ i64 split(i64 i, const Axis* axes, bool places, i64* index) {
  for (int d = 2; d >= 0; --d) {
    const i64 size = places ? axes[d].places : axes[d].size;
    index[d] = i % size;
    i /= size;
  }
  return i;
}

template <class A, class Y, class T>
__global__ void average(Y* y, const T* x, Images all, i64 count) {
  const i64 threads = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
    i64 place[3], e[3], p[3];
    const i64 rest = split(i, all.axes, true, place);
    const i64 c = rest % all.channels, n = rest / all.channels;
    Taps t[3];
    for (int d = 0; d < 3; ++d) t[d] = taps(all.axes[d], place[d], all.padded);
    A sum = 0;
    for (e[0] = t[0].first; e[0] < t[0].end; ++e[0])
      for (e[1] = t[1].first; e[1] < t[1].end; ++e[1])
        for (e[2] = t[2].first; e[2] < t[2].end; ++e[2]) {
          double w = 1;
          for (int d = 0; d < 3; ++d) {
            w *= weight(all.axes[d], t[d], e[d]);
            p[d] = inside(all.axes[d], e[d]);
          }
          if (w != 0) sum += (A)w * get<A>(x[at(all.image, n, c, p)]);
        }
    put(y[at(all.result, n, c, place)], sum / (A)(t[0].count * t[1].count * t[2].count));
  }
}

template <class A, class Y, class T>
__global__ void spread(Y* dx, const T* dy, Images all, i64 count) {
  const i64 threads = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
    i64 element[3], p[3], first[3], end[3];
    const i64 rest = split(i, all.axes, false, element);
    const i64 c = rest % all.channels, n = rest / all.channels;
    for (int d = 0; d < 3; ++d) users(all.axes[d], element[d], first[d], end[d]);
    A sum = 0;
    for (p[0] = first[0]; p[0] < end[0]; ++p[0]) {
      const double w0 = share(all.axes[0], p[0], element[0], all.padded);
      if (w0 == 0) continue;
      for (p[1] = first[1]; p[1] < end[1]; ++p[1]) {
        const double w1 = w0 * share(all.axes[1], p[1], element[1], all.padded);
        if (w1 == 0) continue;
        for (p[2] = first[2]; p[2] < end[2]; ++p[2]) {
          const double w = w1 * share(all.axes[2], p[2], element[2], all.padded);
          if (w != 0) sum += (A)w * get<A>(dy[at(all.result, n, c, p)]);
        }
      }
    }
    put(dx[at(all.gradient, n, c, element)], sum);
  }
}

// The largest element of a place, and the first that is; NaN is larger than all.
template <class A, class T>
__device__ A best(const T* x, const Images& all, i64 n, i64 c, const i64* place, i64* found) {
  i64 e[3];
  Taps t[3];
  for (int d = 0; d < 3; ++d) {
    t[d] = taps(all.axes[d], place[d], false);
    found[d] = t[d].first;
  }
  A most = get<A>(x[at(all.image, n, c, found)]);
  for (e[0] = t[0].first; e[0] < t[0].end; ++e[0])
    for (e[1] = t[1].first; e[1] < t[1].end; ++e[1])
      for (e[2] = t[2].first; e[2] < t[2].end; ++e[2]) {
        const A value = get<A>(x[at(all.image, n, c, e)]);
        if (value > most || (value != value && most == most)) {
          most = value;
          for (int d = 0; d < 3; ++d) found[d] = e[d];
        }
      }
  return most;
}

template <class A, class Y, class T>
__global__ void largest(Y* y, const T* x, Images all, i64 count) {
  const i64 threads = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
    i64 place[3], found[3];
    const i64 rest = split(i, all.axes, true, place);
    const i64 c = rest % all.channels, n = rest / all.channels;
    put(y[at(all.result, n, c, place)], best<A>(x, all, n, c, place, found));
  }
}

// Of equal elements of a window the first one gets it, and the first NaN if there is one.
template <class A, class Y, class T, class X>
__global__ void spread_largest(Y* dx, const T* dy, const X* x, Images all, i64 count) {
  const i64 threads = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
    i64 element[3], p[3], first[3], end[3], found[3];
    const i64 rest = split(i, all.axes, false, element);
    const i64 c = rest % all.channels, n = rest / all.channels;
    for (int d = 0; d < 3; ++d) users(all.axes[d], element[d], first[d], end[d]);
    A sum = 0;
    for (p[0] = first[0]; p[0] < end[0]; ++p[0])
      for (p[1] = first[1]; p[1] < end[1]; ++p[1])
        for (p[2] = first[2]; p[2] < end[2]; ++p[2]) {
          best<A>(x, all, n, c, p, found);
          if (found[0] == element[0] && found[1] == element[1] && found[2] == element[2])
            sum += get<A>(dy[at(all.result, n, c, p)]);
        }
    put(dx[at(all.gradient, n, c, element)], sum);
  }
}
