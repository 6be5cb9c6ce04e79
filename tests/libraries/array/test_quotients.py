"""Quotients by a number that many are divided by: they have the bits of the plain ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ... import seeds
from ..host_kernels import needs_compiler
from .generated import Case, Leaves, aligned, run_all

pytestmark = [needs_compiler, pytest.mark.slow]

EPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NARROW = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def same(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], what: str) -> None:
    """Bits are equal, or both are NaN."""
    bits = f"u{wanted.itemsize}"
    differ = (got.view(bits) != wanted.view(bits)) & ~(np.isnan(got) & np.isnan(wanted))
    assert not differ.any(), f"{what}: {got[differ][:3]} for {wanted[differ][:3]}"


@pytest.mark.parametrize("name", NARROW)
def test_quotients_of_all_16_bit_numbers_match_numpy(name: str, tmp_path: Path) -> None:
    kind = NARROW[name]
    every = np.arange(1 << 16, dtype=np.uint16)
    array = aligned(every).view(kind)
    leaves = Leaves()
    x = leaves.put(array)
    by = np.random.default_rng(seeds.draw()).choice(every, 40, replace=False)
    ends = [0, 1, 127, 128, 129, 0x0400, 0x3C01, 0x3F80, 0x3F81, 0x7F00, 0x7F7F, 0x7BFF, 0x7C00]
    numbers = np.array([*by, *ends, 0x7F80, 0x7FC0, 0x8000, 0x8001], np.uint16).view(kind)
    made = run_all([Case(leaves, [x / number]) for number in numbers], tmp_path)
    with np.errstate(all="ignore"):
        for number, (got,) in zip(numbers, made, strict=True):
            same(got, array / number, f"by {number}")


def test_quotients_of_floats_match_numpy(tmp_path: Path) -> None:
    rng = np.random.default_rng(seeds.draw())
    array = aligned(rng.integers(0, 1 << 32, 1 << 15, dtype=np.uint32)).view(np.float32)
    near = rng.integers(0, 1 << 23, 1 << 14, dtype=np.uint32) | 0x3F800000  # from 1 to 2
    array[: 1 << 14] = near.view(np.float32)
    array[:9] = [0, -0.0, np.inf, -np.inf, np.nan, 2.0**-149, 2.0**-61, 2.0**61, 3.4e38]
    leaves = Leaves()
    x = leaves.put(array)
    numbers = rng.integers(0, 1 << 32, 30, dtype=np.uint32).view(np.float32)
    near = rng.integers(0, 1 << 23, 60, dtype=np.uint32) | 0x3F800000
    ends = np.array([0, -0.0, np.inf, np.nan, 2.0**-149, 2.0**-60, 2.0**60, 2.0**61, 3, 3.4e38])
    numbers = np.concatenate([numbers, near.view(np.float32), ends.astype(np.float32)])
    made = run_all([Case(leaves, [x / number]) for number in numbers], tmp_path)
    with np.errstate(all="ignore"):
        for number, (got,) in zip(numbers, made, strict=True):
            same(got, array / number, f"by {number}")


def test_rows_by_what_is_found_in_them(tmp_path: Path) -> None:
    """Rows of a few threads, of many, of several steps of each, and longer than registers."""
    rng = np.random.default_rng(seeds.draw())
    leaves = Leaves()
    cases, wanted, close = [], [], []
    for length in (7, 128, 1000, 10000):
        for kind in (np.dtype(np.float32), *NARROW.values()):
            array = aligned((rng.standard_normal((5, length)) * 2).astype(kind))
            x = leaves.put(array)
            e = np.exp(x - x.max(axis=-1, keepdims=True))
            cases.append(Case(leaves, [e / e.sum(axis=-1, keepdims=True)]))
            host = np.exp(array - array.max(axis=-1, keepdims=True))
            total = host.astype(np.float64).sum(axis=-1, keepdims=True)
            wanted.append(host.astype(np.float64) / total)
            cases.append(Case(leaves, [x / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-3)]))
            wide = array.astype(np.float64)
            close += [4 * EPS[kind.name]] * 2
            wanted.append(wide / np.sqrt(wide.var(axis=-1, keepdims=True) + 1e-3))
    for (got,), expected, by in zip(run_all(cases, tmp_path), wanted, close, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=by, atol=by)
