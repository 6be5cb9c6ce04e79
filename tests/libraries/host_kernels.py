"""CUDA kernels compiled for the host, so that their results are tested without a GPU.

Most kernels of this package use no shared memory and no barriers, so a loop over all
threads is a launch. Of the others each thread of a block has a stack of its own, and runs from
barrier to barrier in turn. Arguments are read from the same packed bytes that a GPU would get,
through a struct of the kernel's parameters.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from atomr_accel.executors.device_code import CudaSource

COMPILER: Final = shutil.which("g++") or shutil.which("clang++")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

_PRELUDE: Final = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static
struct dim { unsigned x, y, z; };
static dim gridDim, blockDim, blockIdx, threadIdx;
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
static double normcdfinv(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 200; ++i) {
    const double at = (low + high) / 2;
    (0.5 * std::erfc(-at * 0.70710678118654752440) < p ? low : high) = at;
  }
  return low;
}
static double erfinv(double x) { return normcdfinv((x + 1) / 2) * 0.70710678118654752440; }
static float erfinvf(float x) { return (float)erfinv(x); }
static double erfcinv(double x) { return -normcdfinv(x / 2) * 0.70710678118654752440; }
static float erfcinvf(float x) { return (float)erfcinv(x); }
static float normcdfinvf(float p) { return (float)normcdfinv(p); }
static double cyl_bessel_i0(double x) { return std::cyl_bessel_i(0.0, std::fabs(x)); }
static double cyl_bessel_i1(double x) {
  return std::copysign(std::cyl_bessel_i(1.0, std::fabs(x)), x);
}
static void sincospi(double x, double* s, double* c) {
  *s = std::sin(x * M_PI);
  *c = std::cos(x * M_PI);
}
static void sincospif(float x, float* s, float* c) {
  *s = (float)std::sin(x * M_PI);
  *c = (float)std::cos(x * M_PI);
}
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
static double __longlong_as_double(long long i) { double d; std::memcpy(&d, &i, 8); return d; }
static float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }

// Called for a number that its conversion to integers does not hold: processors differ in what
// they make of it.
static long overflows;
extern "C" void __ubsan_handle_float_cast_overflow(void*, unsigned long) { ++overflows; }
extern "C" long take_overflows() { const long found = overflows; overflows = 0; return found; }

struct h16 { unsigned short bits; };
struct b16 { unsigned short bits; };
static float widen(h16 value) {
  const int exponent = value.bits >> 10 & 31, digits = value.bits & 1023;
  float size = exponent == 0    ? std::ldexp((float)digits, -24)
               : exponent == 31 ? (digits ? NAN : INFINITY)
                                : std::ldexp((float)(digits | 1024), exponent - 25);
  return value.bits >> 15 ? -size : size;
}
static float widen(b16 value) { return __uint_as_float((unsigned)value.bits << 16); }
static void narrow(h16& target, float value) {
  const unsigned short sign = __float_as_uint(value) >> 31 << 15;
  const float size = std::fabs(value);
  if (std::isnan(value)) { target.bits = 0x7e00; return; }
  if (size >= 65520.0f) { target.bits = sign | 0x7c00; return; }
  int exponent = size > 0 ? std::max(std::ilogb(size), -14) : -14;
  const long digits = std::lrint(std::ldexp(size, 10 - exponent));  // ties to even
  target.bits = sign | (unsigned short)(((exponent + 14) << 10) + digits);
}
static void narrow(b16& target, float value) {
  const unsigned bits = __float_as_uint(value);
  if (std::isnan(value)) { target.bits = 0x7fc0; return; }
  target.bits = (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float round_b16(float value) {
  b16 rounded;
  narrow(rounded, value);
  return widen(rounded);
}
static unsigned multiply_wide(unsigned a, unsigned b, unsigned& high) {
  const unsigned long long wide = (unsigned long long)a * b;
  high = wide >> 32;
  return (unsigned)wide;
}
template <class T, class U> static T atomicAdd(T* place, U value) {
  const T before = *place;
  *place = (T)(before + (T)value);
  return before;
}
template <class T> static T atomicMin(T* place, T value) {
  const T before = *place;
  *place = value < before ? value : before;
  return before;
}
template <class T> static T atomicCAS(T* place, T expected, T value) {
  const T before = *place;
  if (before == expected) *place = value;
  return before;
}
template <class T> static T atomicExch(T* place, T value) {
  const T before = *place;
  *place = value;
  return before;
}
template <class T> static T atomicInc(T* place, T last) {
  const T before = *place;
  *place = before >= last ? 0 : before + 1;
  return before;
}
static void __threadfence() {}
static unsigned __byte_perm(unsigned a, unsigned b, unsigned places) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned made = 0;
  for (int at = 0; at < 4; ++at)
    made |= (unsigned)(both >> 8 * (places >> 4 * at & 7) & 255) << 8 * at;
  return made;
}
static float __double2float_ru(double value) {
  const float made = (float)value;
  return (double)made < value ? std::nextafterf(made, INFINITY) : made;
}
static float __double2float_rd(double value) { return -__double2float_ru(-value); }
static double __dmul_rn(double a, double b) { return a * b; }
static double __dadd_rn(double a, double b) { return a + b; }
static float fast_log2(float x) { return std::log2(x); }
static float fast_sqrt(float x) { return std::sqrt(x); }
static void store_pair(unsigned long long* to, unsigned long long one, unsigned long long other) {
  to[0] = one, to[1] = other;
}
static void load_pair(
    const unsigned long long* from, unsigned long long& one, unsigned long long& other) {
  one = from[0], other = from[1];
}
static void fast_sincos(float x, float* s, float* c) { *s = std::sin(x); *c = std::cos(x); }
template <class F> static void launch(unsigned blocks, unsigned threads, F kernel) {
  gridDim = {blocks, 1, 1};
  blockDim = {threads, 1, 1};
  for (unsigned block = 0; block < blocks; ++block)
    for (unsigned thread = 0; thread < threads; ++thread) {
      blockIdx = {block, 0, 0};
      threadIdx = {thread, 0, 0};
      kernel();
    }
}

struct Fiber { ucontext_t context; std::vector<char> stack; bool done; };
static std::vector<Fiber> fibers;
static ucontext_t in_turn;
static std::function<void()> body;
static void __syncthreads() { swapcontext(&fibers[threadIdx.x].context, &in_turn); }
static void __syncwarp() { __syncthreads(); }  // no thread goes on before all have come
template <class T> static T __shfl_down_sync(unsigned, T value, int step) {
  static T values[1024];
  values[threadIdx.x] = value;
  __syncthreads();
  const unsigned other = threadIdx.x + step;
  const T found = other / 32 == threadIdx.x / 32 && other < blockDim.x ? values[other] : value;
  __syncthreads();
  return found;
}
template <class T> static T __shfl_up_sync(unsigned, T value, int step) {
  static T values[1024];
  values[threadIdx.x] = value;
  __syncthreads();
  const T found = (int)threadIdx.x % 32 >= step ? values[threadIdx.x - step] : value;
  __syncthreads();
  return found;
}
template <class T> static T __shfl_sync(unsigned, T value, int lane) {
  static T values[1024];
  values[threadIdx.x] = value;
  __syncthreads();
  const T found = values[threadIdx.x / 32 * 32 + lane % 32];
  __syncthreads();
  return found;
}
template <class T> static T __shfl_xor_sync(unsigned, T value, int bits) {
  static T values[1024];
  values[threadIdx.x] = value;
  __syncthreads();
  const T found = values[threadIdx.x ^ bits];
  __syncthreads();
  return found;
}
static void run_fiber() {
  body();
  fibers[threadIdx.x].done = true;
}
template <class F>
static void launch_together(unsigned blocks, unsigned threads, F kernel, unsigned rows = 1) {
  body = kernel;
  gridDim = {blocks, rows, 1};
  blockDim = {threads, 1, 1};
  fibers.resize(threads);
  for (unsigned block = 0; block < blocks * rows; ++block) {
    blockIdx = {block % blocks, block / blocks, 0};
    for (Fiber& fiber : fibers) {
      fiber.stack.resize(1 << 16);
      fiber.done = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = &in_turn;
      makecontext(&fiber.context, run_fiber, 0);
    }
    for (unsigned left = threads; left;)
      for (unsigned thread = 0; thread < threads; ++thread) {
        if (fibers[thread].done) continue;
        threadIdx = {thread, 0, 0};
        swapcontext(&in_turn, &fibers[thread].context);
        left -= fibers[thread].done;
      }
  }
}
"""

_OF_DEVICES: Final = dict.fromkeys(("conversions.cuh", "instructions.cuh"), "")
"""Headers in PTX. The prelude replaces their content."""

Array = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def on_host(source: CudaSource) -> str:
    """A source without what only devices have."""
    return source.preprocess(_OF_DEVICES)


def compile_kernels(
    source: str, kernels: Mapping[str, str], folder: Path, threads: int = 7
) -> Mapping[str, Callable[[bytes], None]]:
    """Compile instances of kernels.

    Args:
        source: CUDA C++, by ``on_host``.
        kernels: by name expression, the kernel's parameters as members of a struct, such
            as ``"T* target; const S* source"``.
        folder: where to put the library.
        threads: how many a block has; where kernels shuffle, a multiple of 32.

    Returns:
        By name expression, what launches it with packed arguments. It fails where a kernel
        converts a number to integers that do not hold it, such as -1.0 to unsigned ones: a GPU
        makes something else of it than this processor.
    """
    launch = "launch_together" if "__sync" in source else "launch"
    runners = []
    for number, (name, members) in enumerate(kernels.items()):
        names = [member.split()[-1].lstrip("*&") for member in members.split(";") if member.strip()]
        values = ", ".join(f"a.{member}" for member in names)
        runners.append(
            f'extern "C" unsigned long size{number}() {{\n'
            f"  struct Arguments {{ {members}; }};\n"
            f"  Arguments* a = nullptr;\n"
            f"  return (unsigned long)(&a->{names[-1]} + 1);\n"
            f"}}\n"
            f'extern "C" void run{number}(const void* bytes) {{\n'
            f"  struct Arguments {{ {members}; }};\n"
            f"  Arguments a;\n"
            f"  std::memcpy(&a, bytes, size{number}());\n"
            f"  {launch}(3, {threads}, [&] {{ {name}({values}); }});\n"
            f"}}\n"
        )
    library = _library("\n".join([_PRELUDE, source, *runners]), folder)

    def runner(number: int) -> Callable[[bytes], None]:
        run, size = getattr(library, f"run{number}"), getattr(library, f"size{number}")
        run.argtypes, size.restype = [ctypes.c_char_p], ctypes.c_ulong

        def launch(arguments: bytes) -> None:
            assert len(arguments) == size(), "the arguments are not packed as the kernel has them"
            run(arguments)
            assert not library.take_overflows(), "numbers became integers that do not hold them"

        return launch

    return {name: runner(number) for number, name in enumerate(kernels)}


Launch = Callable[[bytes, "tuple[int, int]", int], None]


def compile_bodies(source: str, bodies: Sequence[str], name: str, folder: Path) -> list[Launch]:
    """Compile kernels of one name, each with all that is its own.

    Args:
        source: the code that they share, from ``on_host``.
        bodies: the code of each kernel, with its types; its parameter is one struct ``Arguments``.
        name: the name of all kernels.
        folder: where to put the library.

    Returns:
        A function for each kernel that launches it, with packed arguments, blocks in x and y, and
        threads.
    """
    parts = []
    for number, body in enumerate(bodies):
        parts.append(
            f"namespace k{number} {{\n{body}\n}}\n"
            f'extern "C" unsigned long size{number}() {{ return sizeof(k{number}::Arguments); }}\n'
            f'extern "C" void run{number}(const void* bytes, unsigned x, unsigned y, unsigned t) {{'
            f"  k{number}::Arguments a;\n"
            f"  std::memcpy(&a, bytes, sizeof a);\n"
            f"  launch_together(x, t, [&] {{ k{number}::{name}(a); }}, y);\n"
            f"}}\n"
        )
    library = _library("\n".join([_PRELUDE, source, *parts]), folder)

    def launcher(number: int) -> Launch:
        run, size = getattr(library, f"run{number}"), getattr(library, f"size{number}")
        run.argtypes = [ctypes.c_char_p, *[ctypes.c_uint] * 3]
        size.restype = ctypes.c_ulong

        def launch(arguments: bytes, blocks: tuple[int, int], threads: int) -> None:
            assert len(arguments) == size(), "the arguments are not packed as the kernel has them"
            run(arguments, *blocks, threads)
            assert not library.take_overflows(), "numbers became integers that do not hold them"

        return launch

    return [launcher(number) for number in range(len(bodies))]


def _library(text: str, folder: Path) -> ctypes.CDLL:
    """C++ as a library."""
    assert COMPILER is not None
    file = folder / "kernels.cpp"
    file.write_text(text, encoding="utf-8")
    object_file, library_file = file.with_suffix(".o"), file.with_suffix(".so")
    flags = ["-std=c++17", "-O1", "-fPIC", "-w", "-ffp-contract=off"]
    flags.append("-fsanitize=float-cast-overflow")  # its handler is in the prelude
    for command in (
        [COMPILER, *flags, "-c", str(file), "-o", str(object_file)],
        [COMPILER, "-shared", str(object_file), "-o", str(library_file)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library_file))


def with_pointers(
    arguments: bytes, *arrays: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> bytes:
    """Packed arguments with the addresses of arrays in the place of the first pointers."""
    pointers = b"".join(array.ctypes.data.to_bytes(8, "little") for array in arrays)
    return pointers + arguments[len(pointers) :]


class HostKernels:
    """Kernels that run on the host."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def function(self, name: str) -> Any:
        return self._compiled[name]

    def launch(self, function: Any, items: int, arguments: Any) -> None:
        self.prepare(function, items, arguments)()

    def prepare(self, function: Any, items: int, arguments: Any) -> Callable[[], None]:
        assert items
        return lambda: function(bytes(arguments._data))

    def close(self) -> None:
        """Nothing is held."""
