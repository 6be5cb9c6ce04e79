"""Kernels' CUDA C++ run by the CPU: compiled by g++, thread after thread.

It replaces the kernels' NumPy functions, so both halves of a simulation are compared without a GPU.
Kernels may use atomics, but neither barriers nor shared memory, which none here does.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atomr_accel.realtime import KernelSource

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="here is no C++ compiler")

PREFIX = r"""
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <climits>
#include <cstring>
#include <algorithm>
using namespace std;
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
struct Dim { unsigned x, y, z; };
static Dim blockIdx, blockDim, threadIdx, gridDim;
template <typename T> static T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }
template <typename T>
static T atomicMin(T* p, T v) { T old = *p; *p = v < old ? v : old; return old; }
template <typename T>
static T atomicMax(T* p, T v) { T old = *p; *p = v > old ? v : old; return old; }
template <typename T> static T atomicOr(T* p, T v) { T old = *p; *p = old | v; return old; }
template <typename T> static T atomicExch(T* p, T v) { T old = *p; *p = v; return old; }
template <typename T>
static T atomicCAS(T* p, T was, T v) { T old = *p; if (old == was) *p = v; return old; }
static void __threadfence() {}
static float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
static int __float_as_int(float f) { int i; memcpy(&i, &f, 4); return i; }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static int __popc(unsigned x) { return __builtin_popcount(x); }
"""

_KERNEL = re.compile(r'extern "C" __global__ void\s+(\w+)\(([^)]*)\)')

_libraries: dict[str, Any] = {}


def _folder() -> Path:
    """Return the folder of this session's libraries, which all of its workers share."""
    own = Path(os.environ["ATOMR_CACHE_DIR"])
    folder = own.parents["PYTEST_XDIST_WORKER" in os.environ] / "emulated"
    folder.mkdir(exist_ok=True)
    return folder


@cache
def _built(text: str) -> str:
    """Return the path of a shared library for a source."""
    folder = _folder()
    key = hashlib.sha256(text.encode()).hexdigest()[:24]
    path = folder / f"{key}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            source, made = Path(inside, "source.cpp"), Path(inside, "made.so")
            source.write_text(text)
            command = ["g++", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
            subprocess.run([*command, "-o", str(made), str(source)], check=True)
            made.replace(path)
    return str(path)


def _run(path: str, name: str, types: tuple[str, ...], grid: Any, block: Any, *args: Any) -> None:
    library = _libraries.get(path)
    if library is None:
        library = _libraries[path] = ctypes.CDLL(path)
    kept: list[Any] = []
    for kind, value in zip(types, args, strict=True):
        if value is None:
            kept.append(ctypes.c_void_p(0))
        elif "*" in kind:
            assert value.flags.c_contiguous
            kept.append(ctypes.c_void_p(value.ctypes.data))
        else:
            numbers = {
                "int": "i4",
                "unsigned": "u4",
                "float": "f4",
                "long long": "i8",
                "double": "f8",
            }
            kept.append(np.array(value, numbers[kind]).ctypes.data_as(ctypes.c_void_p))
    pointers = [
        ctypes.addressof(each) if "*" in kind else each.value
        for kind, each in zip(types, kept, strict=True)
    ]
    assert (grid[1], grid[2], block[1], block[2]) == (1, 1, 1, 1)
    getattr(library, f"run_{name}")(grid[0], block[0], (ctypes.c_void_p * len(args))(*pointers))


def emulated(kernels: KernelSource) -> KernelSource:
    """Return the source with functions that run its own C++."""
    source = kernels.source
    for name, text in kernels.headers.items():
        source = source.replace(f'#include "{name}"', text)
    parts = [PREFIX, source]
    types: dict[str, tuple[str, ...]] = {}
    for name, parameters in _KERNEL.findall(source):
        kinds = []
        for each in parameters.split(","):
            kind = re.sub(r"\b(const|__restrict__)\b", "", each).strip()
            kind = re.sub(r"\w+$", "", kind).strip()
            kinds.append(kind)
        types[name] = tuple(kinds)
        values = ", ".join(f"*({kind}*)args[{at}]" for at, kind in enumerate(kinds))
        parts.append(
            f'extern "C" void run_{name}(int grid, int block, void** args) {{ gridDim.x = grid; '
            "blockDim.x = block; for (int b = 0; b < grid; b++) for (int t = 0; t < block; t++) "
            f"{{ blockIdx.x = b; threadIdx.x = t; {name}({values}); }} }}"
        )
    path = _built("\n".join(parts))

    def function(name: str) -> Any:
        kinds = types[name]
        names = ", ".join(f"a{at}" for at in range(len(kinds)))
        # With a name of a module, or pickling would look for the function in all modules.
        made: dict[str, Any] = {"__name__": "emulated", "run": partial(_run, path, name, kinds)}
        exec(f"def call(grid, block, {names}): run(grid, block, {names})", made)
        return made["call"]

    return KernelSource(
        kernels.source, {name: function(name) for name in kernels.twins}, kernels.headers
    )
