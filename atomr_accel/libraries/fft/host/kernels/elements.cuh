// Complex numbers as pairs, and what elements are in the arithmetic of a transform.
#pragma once

#include "conversions.cuh"

template <class T> struct alignas(2 * sizeof(T)) Pair { T x, y; };

template <class T> struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };
template <class T> struct Wide<Pair<T>> { typedef typename Wide<T>::type type; };

// Element types to and from a pair in the arithmetic type A.
template <class A, class T> __device__ A real(T value) { return (A)value; }
template <class A> __device__ A real(h16 value) { return (A)widen(value); }
template <class A> __device__ A real(b16 value) { return (A)widen(value); }
template <class A, class T> __device__ Pair<A> read(const T& value) {
  return {real<A>(value), (A)0};
}
template <class A, class T> __device__ Pair<A> read(const Pair<T>& value) {
  return {real<A>(value.x), real<A>(value.y)};
}
template <class A> __device__ void set(float& target, A value) { target = (float)value; }
template <class A> __device__ void set(double& target, A value) { target = (double)value; }
template <class A> __device__ void set(h16& target, A value) { narrow(target, (float)value); }
template <class A> __device__ void set(b16& target, A value) { narrow(target, (float)value); }
template <class A, class T> __device__ void write(T& target, Pair<A> value) {
  set(target, value.x);
}
template <class A, class T> __device__ void write(Pair<T>& target, Pair<A> value) {
  Pair<T> narrowed;
  set(narrowed.x, value.x);
  set(narrowed.y, value.y);
  target = narrowed;
}
