// Elements of any type, read and written in an arithmetic type A.
#pragma once

#include "conversions.cuh"
#include "types.cuh"

template <class A, class T> __device__ A get(const T& value) { return (A)value; }
template <class A> __device__ A get(const h16& value) { return (A)widen(value); }
template <class A> __device__ A get(const b16& value) { return (A)widen(value); }
template <class Y, class A> __device__ void put(Y& target, A value) { target = (Y)value; }
template <class A> __device__ void put(h16& target, A value) { narrow(target, (float)value); }
template <class A> __device__ void put(b16& target, A value) { narrow(target, (float)value); }
