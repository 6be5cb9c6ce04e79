"""The kinds of dtypes: those that ``ml_dtypes`` adds are numbers like NumPy's own."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel._dtypes import DTYPES, HALVES, is_added, is_float, is_inexact, number_kind

from ... import seeds
from ...harness import cpu_only, on_shared

ADDED: dict[str, Any] = {
    name: kind
    for name, kind in vars(ml_dtypes).items()
    if isinstance(kind, type) and issubclass(kind, np.generic)
}


@pytest.mark.parametrize("name", ADDED)
def test_number_kind_names_added_dtypes_by_what_they_hold(name: str) -> None:
    dtype = np.dtype(ADDED[name])
    finder: Any = ml_dtypes.iinfo if "int" in name else ml_dtypes.finfo
    if "complex" not in name:
        finder(dtype)
    expected = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
    assert name.removeprefix("b").startswith(expected[number_kind(dtype)])
    assert is_added(dtype)


@pytest.mark.parametrize("letter", np.typecodes["All"])
def test_number_kind_is_numpys_for_numpys_dtypes(letter: str) -> None:
    dtype = np.dtype(letter)
    assert number_kind(dtype) == dtype.kind
    assert is_float(dtype) == (dtype.kind == "f")
    assert is_inexact(dtype) == (dtype.kind in ("f", "c"))
    assert not is_added(dtype)


def test_halves_are_all_floats_narrower_than_32_bits() -> None:
    names = {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"}
    assert {DTYPES[name] for name in names} == HALVES


SUMS = (np.sum, np.mean, np.prod, np.var, np.std, np.nansum, np.linalg.norm)


@cpu_only
@on_shared
@pytest.mark.parametrize("dtype", sorted(HALVES, key=str), ids=str)
@pytest.mark.parametrize("function", SUMS, ids=lambda each: each.__name__)
async def test_sums_of_narrow_floats_are_rounded_once(
    device: Device, dtype: Any, function: Any
) -> None:
    x = np.random.default_rng(seeds.draw()).choice([0.5, 1, 1.5], 70).astype(dtype)
    expected = function(x.astype(np.float32)).astype(dtype)
    found = await device.get(await device.evaluate(function(await device.put(x))))
    assert found.dtype == dtype
    eps = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=2 * eps)


@cpu_only
@on_shared
@pytest.mark.parametrize("dtype", sorted(HALVES, key=str), ids=str)
async def test_a_percentile_of_narrow_floats_is_that_of_wide_ones(
    device: Device, dtype: Any
) -> None:
    x = np.arange(5, dtype=np.float32).astype(dtype)  # 100 is none of the fp8 numbers
    found = await device.get(await device.array.percentile(await device.put(x), 50))
    assert found == np.percentile(x.astype(np.float32), 50).astype(dtype)
