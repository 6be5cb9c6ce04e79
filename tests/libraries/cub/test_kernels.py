"""Kernels of our own for extreme elements: on the host, and their compilation by NVRTC."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.scan_tiles import THREADS, scan_types
from atomr_accel.libraries.cub.host._algorithms import ArgReduce
from atomr_accel.libraries.cub.host._calls import Kit
from atomr_accel.libraries.cub.host.cuda import SOURCE
from atomr_accel.libraries.cub.wire._spec import C_TYPES, CubSpec

from ... import seeds
from ..compiling import check_all_compile
from ..host_kernels import compile_kernels, needs_compiler, on_host

Array = np.ndarray[Any, Any]
ON_HOST: Final = ("bool", "int8", "int64", "uint16", "float16", "bfloat16", "float32", "float64")


def call_of(dtype: str, *, largest: bool) -> ArgReduce:
    spec = CubSpec("arg_reduce", (dtype, "int64"), descending=largest)
    return ArgReduce(spec, Kit(None, None))


def names_of(dtype: str) -> list[str]:
    """Return the kernels of a call and of its opposite."""
    return [name for largest in (False, True) for name in call_of(dtype, largest=largest).kernels]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    names: dict[str, str] = {}
    for dtype in ON_HOST:
        for name in names_of(dtype):
            element = name.partition("<")[2].partition(",")[0]
            names[name] = f"i64* position; const {element}* given; i64 count"
    folder: Path = tmp_path_factory.mktemp("cub")
    return compile_kernels(on_host(SOURCE), names, folder, threads=THREADS)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", ON_HOST)
def test_the_first_extreme_element_is_found_wherever_rows_begin(kernels: Any, dtype: str) -> None:
    rng, kind = seeds.rng(), DTYPES[dtype]
    position = np.zeros(1, np.int64)

    def launch(kernel: str, count: int, /, *pointers: int, threads: int = 0) -> None:
        assert threads <= count
        kernels[kernel](struct.pack("<2Qq", *pointers, count))

    for trial, count in enumerate((1, 2, 5, 17, 300, 5000, *map(int, rng.integers(1, 90000, 10)))):
        offset, few = int(rng.integers(0, 16)), trial % 2
        numbers = rng.integers(0, 3 if few else 120, offset + count)
        row = (numbers if kind.kind in "bu" else numbers - 50).astype(kind)[offset:]
        if kind.kind not in "biu" and trial % 3 == 0:
            row[rng.integers(0, count, 2)] = np.nan
            row[rng.integers(0, count, 2)] *= -0.0
        for largest in (False, True):
            call = call_of(dtype, largest=largest)
            position[0] = -1
            call.after(launch, [row.ctypes.data, position.ctypes.data], 0, count)
            wide = row.astype(np.float64) if kind.kind not in "biu" else row
            expected = np.argmax(wide) if largest else np.argmin(wide)
            assert position[0] == expected, (trial, count, offset, largest)


@pytest.mark.headers
def test_nvrtc_compiles_the_kernels_of_every_dtype() -> None:
    names = [name for dtype in C_TYPES for name in names_of(dtype)]
    dtypes = {*C_TYPES, "complex64", "complex128"} - {"bool"}
    scans = [(dtype, kind) for dtype in dtypes for kind in ("add", "multiply")]
    names += [f"scan_tiles<{scan_types(*each)}>" for each in scans]
    check_all_compile(SOURCE, names)
