"""Builds of the package's bindings for an absent device: arguments, compilation and storage."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from atomr_accel.libraries.cub.host._algorithms import ALGORITHMS
from atomr_accel.libraries.cub.wire._spec import CubSpec, OperatorSpec, encode

from ...harness import ROOT


def binary(kind: str, dtype: str, result: str | None = None) -> OperatorSpec:
    return OperatorSpec((dtype, dtype), result or dtype, kind)


def own(dtype: str, source: str) -> OperatorSpec:
    return OperatorSpec((dtype,), "bool", "", source, "f")


POSITIVE: Final = own("float32", "__device__ bool f(float a) { return a > 0; }")
BELOW: Final = own(
    "float32", "#include <cuda/std/cmath>\n__device__ bool f(float a) { return a < -1; }"
)
PLUS: Final = binary("plus", "float32")

SPECS: Final = (
    CubSpec(
        "reduce", ("float16", "float32", "float16"), (PLUS,), init=True, determinism="run_to_run"
    ),
    CubSpec("reduce", ("float32",) * 3, (PLUS,), init=True, determinism="not_guaranteed"),
    CubSpec(
        "reduce",
        ("bfloat16",) * 3,
        (binary("maximum", "bfloat16"),),
        determinism="run_to_run",
    ),
    CubSpec("inclusive_scan", ("complex64",) * 3, (binary("plus", "complex64"),), init=True),
    CubSpec("exclusive_scan", ("int32",) * 3, (binary("plus", "int32"),), init=True),
    CubSpec("segmented_reduce", ("float32", "int64", "float32", "float32"), (PLUS,), init=True),
    CubSpec("radix_sort", ("float32", "")),
    CubSpec("radix_sort", ("bfloat16", "uint64"), descending=True),
    CubSpec("radix_sort", ("int8", "complex128")),
    CubSpec("argsort", ("bool", "uint64")),
    CubSpec("merge_sort", ("int32", "complex128"), (binary("less", "int32", "bool"),)),
    CubSpec("segmented_sort", ("int16", "", "int32")),
    CubSpec("select", ("float32",), (POSITIVE,)),
    CubSpec("select_flagged", ("complex128",)),
    CubSpec("partition", ("float32",), (POSITIVE,)),
    CubSpec("three_way_partition", ("float32",), (POSITIVE, BELOW)),
    CubSpec("unique_by_key", ("float16", ""), (binary("equal_to", "float16", "bool"),)),
    CubSpec("unique_by_key", ("int32", "complex128"), (binary("equal_to", "int32", "bool"),)),
    CubSpec("histogram_even", ("float16", "int64", "float64"), levels=11),
    CubSpec("histogram_even", ("uint8", "int32", "int64"), levels=257),
    CubSpec(
        "unary_transform",
        ("float16", "bfloat16"),
        (OperatorSpec(("float16",), "bfloat16", "negate"),),
    ),
    CubSpec("binary_transform", ("complex64",) * 3, (binary("divides", "complex64"),)),
    CubSpec("lower_bound", ("bfloat16", "bfloat16")),
    CubSpec("upper_bound", ("int32", "int32"), (binary("less", "int32", "bool"),)),
)


def test_all_algorithms_are_built() -> None:
    built = {name for name, call in ALGORITHMS.items() if call.result}
    assert {spec.algorithm for spec in SPECS} == built


@pytest.mark.headers
@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_the_bindings_build_and_call_everything(tmp_path: Path, half: int) -> None:
    """Builds need no device; calls get as far as the runtime, so their arguments are right."""
    if find_spec("cuda.compute") is None:
        pytest.fail("this needs package cuda-cccl: pip install --group headers")
    specs = SPECS[half::2]
    environment = {**os.environ, "ATOMR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.libraries.cub.pretend"]
    for origin in ("built", "disk"):
        made = subprocess.run(
            [*command, *(encode(spec).hex() for spec in specs)],
            env=environment,
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        lines = [line for line in made.stdout.splitlines() if line.startswith(origin)]
        assert len(lines) == len(specs), made.stdout + made.stderr
        for line, spec in zip(lines, specs, strict=True):
            assert f" {spec.algorithm}: " in line, line
