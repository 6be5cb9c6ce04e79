"""Attention of one query to one key on whichever backend there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ...conformance import MARKS

pytestmark = MARKS


@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.5, "seed": 3}, {"sink": True}], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
async def test_the_first_token(
    device: Any, layout: str, batch: int, options: dict[str, Any]
) -> None:
    """The result is the value, kept or dropped, scaled by the share that the sink leaves."""
    rng, heads, size = np.random.default_rng(9), 32, 16
    shape = (batch, 1, heads, size) if layout == "bshd" else (batch, heads, 1, size)
    q, k, v, do = (rng.standard_normal(shape).astype(np.float16) for _ in range(4))
    sink = rng.standard_normal(heads).astype(np.float32)
    if "sink" in options:
        options = {"sink": await device.put(sink)}
    refs = [await device.put(each) for each in (q, k, v, do)]
    flash, back = device.dnn.flash_attention_with_lse, device.dnn.flash_attention_grad
    out, lse = await flash(*refs[:3], layout=layout, **options)
    made = await back(refs[3], *refs[:3], out, lse, layout=layout, **options)
    o, stats, *gradients = [await device.get(each) for each in (out, lse, *made)]
    q, k, v, do, o, dq, dk, dv = (
        each.reshape(batch, heads, size).astype(float) for each in (q, k, v, do, o, *gradients[:3])
    )
    scores = (q * k).sum(-1, keepdims=True) / 4
    p, logs, kept = np.ones_like(scores), scores, np.ones_like(scores)
    if "sink" in options:
        logs = np.logaddexp(scores, sink[:, None])
        p = np.exp(scores - logs)
    if "dropout_p" in options:
        kept = np.where(o.any(-1, keepdims=True), 2.0, 0.0)
        assert 0.1 < (kept == 0).mean() < 0.9
    near: dict[str, Any] = {"rtol": 0.01, "atol": 0.01}
    np.testing.assert_allclose(stats.reshape(batch, heads, 1), logs, rtol=1e-3, atol=2e-3)
    np.testing.assert_allclose(o, p * kept * v, **near)
    dp = (do * v).sum(-1, keepdims=True) * kept
    ds = p * (dp - p * dp)
    np.testing.assert_allclose(dv, p * kept * do, **near)
    np.testing.assert_allclose(dq, ds * k / 4, rtol=0.01, atol=0.03)
    np.testing.assert_allclose(dk, ds * q / 4, rtol=0.01, atol=0.03)
    if "sink" in options:
        expected = -((1 - p) * p * dp).sum((0, 2))
        np.testing.assert_allclose(gradients[3], expected, rtol=0.01, atol=0.05)
