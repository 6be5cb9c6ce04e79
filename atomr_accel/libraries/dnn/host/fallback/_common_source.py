"""What our own kernels have in common, and how they are launched."""

from __future__ import annotations

from typing import Final, NamedTuple

from ....host._device_code import CONVERSIONS

THREADS: Final = 256
"""Threads of a block."""

ACCESS: Final = r"""
typedef long long i64;

// Elements of any type, in the arithmetic A.
template <class A, class T> __device__ A get(const T& value) { return (A)value; }
template <class A> __device__ A get(const h16& value) { return (A)widen(value); }
template <class A> __device__ A get(const b16& value) { return (A)widen(value); }
template <class Y, class A> __device__ void put(Y& target, A value) { target = (Y)value; }
template <class A> __device__ void put(h16& target, A value) { narrow(target, (float)value); }
template <class A> __device__ void put(b16& target, A value) { narrow(target, (float)value); }
"""
"""What kernels begin with, after the conversions."""


class Launch(NamedTuple):
    """A kernel with its arguments.

    Attributes:
        source: where it is, without the conversions.
        name: its name expression.
        items: the threads it can use.
        data: its arguments, packed.
    """

    source: str
    name: str
    items: int
    data: bytes


def complete(source: str) -> str:
    """A source as NVRTC takes it."""
    return CONVERSIONS + source
