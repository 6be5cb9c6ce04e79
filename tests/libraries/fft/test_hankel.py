"""Hankel transforms next to SciPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device

from ...harness import on_shared
from ..conformance import MARKS

pytestmark = MARKS


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 40),
    dtype=st.sampled_from(["float16", "float32", "float64", "int32"]),
    biased=st.booleans(),
)
@on_shared
async def test_transforms_and_their_inverses(
    device: Device, seed: int, n: int, dtype: str, biased: bool
) -> None:
    random = np.random.default_rng(seed)
    a = (random.standard_normal((2, n)) * 3).astype(dtype)
    dln, mu = float(random.uniform(0.05, 0.5)), float(random.uniform(0, 3))
    bias = float(random.uniform(-0.4, 0.4)) if biased else 0.0
    offset = device.fft.fhtoffset(dln, mu, 0.1, bias)
    assert offset == scipy.fft.fhtoffset(dln, mu, 0.1, bias)
    x = await device.put(a)
    single = dtype in ("float16", "float32")
    for name in ("fht", "ifht"):
        expected = getattr(scipy.fft, name)(a.astype(np.float64), dln, mu, offset, bias)
        got = await device.get(await getattr(device.fft, name)(x, dln, mu, offset, bias))
        assert got.dtype == ("float32" if single else "float64")
        size = np.abs(expected).max() + 1
        np.testing.assert_allclose(got, expected, 0, size * (1e-5 if single else 1e-11))


async def test_more_coefficients_than_travel_together(device: Device) -> None:
    """A batch, an output of the caller's, and the function that comes back."""
    a = np.exp(-(np.linspace(-4, 4, 20_001) ** 2))
    x, out = await device.put(a), await device.empty(a.shape, np.float64)
    async with device.batch() as batch:
        made = batch.fft.fht(x, 0.01, 0.5)
        assert batch.fft.ifht(made, 0.01, 0.5, out=out) is out
    np.testing.assert_allclose(await device.get(made), scipy.fft.fht(a, 0.01, 0.5), 0, 1e-9)
    np.testing.assert_allclose(await device.get(out), a, 0, 1e-9)


async def test_refusals(device: Device) -> None:
    fft: Any = device.fft
    x = await device.put(np.ones((2, 8)))
    cases: list[tuple[type[Exception], str, Any]] = [
        (TypeError, "a must be real", lambda: fft.fht(x + 0j, 0.1, 0)),
        (ValueError, "dln must be", lambda: fft.fht(x, 0, 0)),
        (TypeError, "mu", lambda: fft.fht(x, 0.1, "0")),
        (ValueError, "bias", lambda: fft.ifht(x, 0.1, 0, bias=np.inf)),
        (ValueError, "choose another bias", lambda: fft.fht(x, 0.1, 0, bias=-1.0)),
        (ValueError, "choose another bias", lambda: fft.ifht(x, 0.1, 0, bias=1.0)),
        (ValueError, "choose another bias", lambda: fft.fht(x, 0.1, 0, bias=1e5)),
        (ValueError, "choose smaller ones", lambda: fft.fht(x, 0.1, 0, offset=1e308)),
        (ValueError, "choose", lambda: fft.ifht(x, 0.1, 0.5, bias=1200.0)),
        (ValueError, "choose", lambda: fft.ifht(x, 0.1, 0.5, bias=-1200.0)),
        (ValueError, "one point or more", lambda: fft.fht(x[:, :0], 0.1, 0)),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            await call()
