"""Builds of the package's bindings for an absent device: arguments, compilation and storage."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pytest

from atomr_accel.libraries.cub.host._algorithms import ALGORITHMS
from atomr_accel.libraries.cub.wire._spec import Operator, Spec, encode

from ...harness import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def binary(kind: str, dtype: str, result: str | None = None) -> Operator:
    return Operator((dtype, dtype), result or dtype, kind)


def own(dtype: str, source: str) -> Operator:
    return Operator((dtype,), "bool", "", source, "f")


POSITIVE: Final = own("float32", "__device__ bool f(float a) { return a > 0; }")
BELOW: Final = own(
    "float32", "#include <cuda/std/cmath>\n__device__ bool f(float a) { return a < -1; }"
)
PLUS: Final = binary("plus", "float32")

SPECS: Final = (
    Spec("reduce", ("float16", "float32", "float16"), (PLUS,), init=True, determinism="run_to_run"),
    Spec("reduce", ("float32",) * 3, (PLUS,), init=True, determinism="not_guaranteed"),
    Spec(
        "reduce",
        ("bfloat16",) * 3,
        (binary("maximum", "bfloat16"),),
        determinism="run_to_run",
    ),
    Spec("arg_reduce", ("float32", "int64"), descending=True),
    Spec("inclusive_scan", ("complex64",) * 3, (binary("plus", "complex64"),)),
    Spec("exclusive_scan", ("int32",) * 3, (binary("plus", "int32"),), init=True),
    Spec("segmented_reduce", ("float32", "int64", "float32", "float32"), (PLUS,), init=True),
    Spec("radix_sort", ("float32", "")),
    Spec("radix_sort", ("bfloat16", "uint64"), descending=True),
    Spec("radix_sort", ("int8", "complex128")),
    Spec("argsort", ("bool", "uint64")),
    Spec("merge_sort", ("int32", "complex128"), (binary("less", "int32", "bool"),)),
    Spec("segmented_sort", ("int16", "", "int32")),
    Spec("select", ("float32",), (POSITIVE,)),
    Spec("select_flagged", ("complex128",)),
    Spec("partition", ("float32",), (POSITIVE,)),
    Spec("three_way_partition", ("float32",), (POSITIVE, BELOW)),
    Spec("unique_by_key", ("float16", ""), (binary("equal_to", "float16", "bool"),)),
    Spec("unique_by_key", ("int32", "complex128"), (binary("equal_to", "int32", "bool"),)),
    Spec("histogram_even", ("float16", "int64", "float64"), levels=11),
    Spec("histogram_even", ("uint8", "int32", "int64"), levels=257),
    Spec(
        "unary_transform", ("float16", "bfloat16"), (Operator(("float16",), "bfloat16", "negate"),)
    ),
    Spec("binary_transform", ("complex64",) * 3, (binary("divides", "complex64"),)),
    Spec("lower_bound", ("bfloat16", "bfloat16")),
    Spec("upper_bound", ("int32", "int32"), (binary("less", "int32", "bool"),)),
)


def test_all_algorithms_are_built() -> None:
    assert {spec.algorithm for spec in SPECS} == {*ALGORITHMS}


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
