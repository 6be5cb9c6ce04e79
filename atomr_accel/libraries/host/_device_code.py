"""CUDA C++ that kernels of several libraries begin with.

It needs no header, because NVRTC's wheel brings none, and it is kept apart from the
kernels so that tests can compile those for the host with conversions of their own.
"""

from __future__ import annotations

from typing import Final

CONVERSIONS: Final = r"""
struct h16 { unsigned short bits; };  // float16
struct b16 { unsigned short bits; };  // bfloat16

__device__ __forceinline__ float widen(h16 value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
__device__ __forceinline__ float widen(b16 value) {
  return __uint_as_float((unsigned)value.bits << 16);
}
__device__ __forceinline__ void narrow(h16& target, float value) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(target.bits) : "f"(value));
}
__device__ __forceinline__ void narrow(b16& target, float value) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(target.bits) : "f"(value));
}
"""
"""The 16-bit floats: ``h16`` and ``b16``, ``widen(value)`` and ``narrow(target, value)``."""

C_TYPES: Final = {
    "bool": "unsigned char",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
    "float16": "h16",
    "bfloat16": "b16",
    "float32": "float",
    "float64": "double",
}
"""What a dtype is called in CUDA C++."""
