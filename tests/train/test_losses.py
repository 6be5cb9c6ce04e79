"""Losses next to NumPy's formulas in float64, and their gradients next to differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from atomr_accel import Device, train

from .checks import check_gradient, on_device


def _huber(x: Any, t: Any, delta: float) -> Any:
    d = np.abs(x - t)
    return np.where(d < delta, d * d / 2, delta * (d - delta / 2))


def _bce(x: Any, t: Any, pos: float) -> Any:
    p = special.expit(x)
    return -(pos * t * np.log(p) + (1 - t) * np.log(1 - p))


LOSSES: dict[str, tuple[Any, Any]] = {
    "mse": (train.mse, lambda x, t: (x - t) ** 2),
    "mae": (train.mae, lambda x, t: np.abs(x - t)),
    "huber": (
        lambda x, t, **how: train.huber(x, t, delta=0.4, **how),
        lambda x, t: _huber(x, t, 0.4),
    ),
    "bce": (train.bce_with_logits, lambda x, t: _bce(x, t, 1)),
    "bce_weighted": (
        lambda x, t, **how: train.bce_with_logits(x, t, weight=2.0, pos_weight=3.0, **how),
        lambda x, t: 2 * _bce(x, t, 3),
    ),
    "kl": (train.kl_div, lambda x, t: t * (np.log(t) - x)),
    "kl_log": (
        lambda x, t, **how: train.kl_div(x, np.log(t), log_target=True, **how),
        lambda x, t: t * (np.log(t) - x),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32 - 1))
@on_device
async def test_loss(device: Device, name: str, seed: int) -> None:
    """Values of every reduction, and the gradient."""
    loss, formula = LOSSES[name]
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 4)))
    x, target = rng.normal(0, 2, shape), rng.uniform(0.1, 0.9, shape)
    a, b = await device.put(x), await device.put(target)
    each = formula(x, target)
    for reduction, expected in (("none", each), ("sum", each.sum()), ("mean", each.mean())):
        found = await device.get(loss(a, b, reduction=reduction))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    await check_gradient(device, lambda t, p: loss(p, t.put(target)), x, rng)


@on_device
async def test_no_overflow(device: Device) -> None:
    """Large scores have finite losses and gradients."""
    x, target = await device.put(np.array([-1e4, 0.0, 1e4])), await device.put(np.ones(3))
    compute = train.grad(device, lambda _t, p: train.bce_with_logits(p, target, reduction="sum"))
    loss, slope = await compute(x)
    np.testing.assert_allclose(await device.get(loss), 1e4 + np.log(2))
    np.testing.assert_allclose(await device.get(slope), [-1, -0.5, 0])


@on_device
async def test_refused(device: Device) -> None:
    """Shapes and options that do not fit."""
    x, y = await device.put(np.ones(3)), await device.put(np.ones((3, 1)))
    with pytest.raises(ValueError, match="target must have the shape of x"):
        train.mse(x, y)
    with pytest.raises(TypeError, match="target must be a value"):
        train.mae(x, np.ones(3))
    with pytest.raises(ValueError, match="delta must be above 0"):
        train.huber(x, x, delta=0)
    with pytest.raises(ValueError, match="reduction must be"):
        train.kl_div(x, x, reduction="max")  # type: ignore[arg-type]
