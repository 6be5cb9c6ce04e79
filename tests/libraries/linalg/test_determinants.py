"""Determinants of singular matrices are zero, however large other pivots get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device

from ...harness import on_shared
from ..conformance import MARKS

pytestmark = MARKS


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(["float32", "float64", "complex64", "complex128"]),
    n=st.integers(2, 40),
    seed=st.integers(0, 2**20),
    lead=st.sampled_from([(), (3,)]),
)
@on_shared
async def test_a_first_pivot_of_zero_decides(
    device: Device, dtype: str, n: int, seed: int, lead: Any
) -> None:
    large = float(np.finfo(dtype).max) / 2
    host = np.random.default_rng(seed).choice([-large, large], (*lead, n, n)).astype(dtype)
    host[..., 0] = host[..., 0, :] = 0
    a = await device.put(host)
    assert not (await device.get(await device.linalg.det(a))).any()
    sign, log = await device.linalg.slogdet(a)
    assert not (await device.get(sign)).any()
    assert np.isneginf(await device.get(log)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@on_shared
async def test_an_overflow_is_not_a_zero(device: Device, dtype: str) -> None:
    large = float(np.finfo(dtype).max) / 2
    a = await device.put(np.diag(np.full(3, large)).astype(dtype))
    assert np.isposinf(await device.get(await device.linalg.det(a)))
    a = await device.put(np.array([[0, 1], [0, np.nan]], dtype))
    assert np.isnan(await device.get(await device.linalg.det(a)))
