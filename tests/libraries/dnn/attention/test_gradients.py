"""Gradients of attention are differences, on the CPU and in the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel.libraries.dnn.host.cpu_attention import FUNCTIONS

from ...conformance import MARKS
from ..rows.attention import Mask, attention, gradients

Array = np.ndarray[Any, Any]

pytestmark = MARKS


STEP = 1e-5
ATTRIBUTES: dict[str, Any] = {
    "attn_scale": 0.4,
    "generate_stats": True,
    "diagonal_alignment": "BOTTOM_RIGHT",
    "diagonal_band_left_bound": None,
    "diagonal_band_right_bound": None,
    "use_alibi_mask": False,
    "dropout": 0.0,
    "max_seq_len_kv": None,
}


def problem(rng: np.random.Generator) -> dict[str, Array]:
    return {
        "q": rng.standard_normal((2, 4, 5, 3)),
        "k": rng.standard_normal((2, 2, 7, 3)),
        "v": rng.standard_normal((2, 2, 7, 2)),
    }


@pytest.mark.parametrize(
    ("more", "attributes"),
    [
        ([], {}),
        ([], {"diagonal_band_right_bound": 0, "diagonal_band_left_bound": 3}),
        (["bias"], {"diagonal_band_right_bound": 1}),
        (["sink_token"], {"diagonal_band_right_bound": 0}),
        (["softcap", "alibi_slopes"], {}),
        (["seed"], {"dropout": 0.4}),
        (["seq_len_q"], {"diagonal_band_right_bound": 0}),
    ],
)
def test_gradients_on_the_cpu_are_differences(more: list[str], attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = problem(rng)
    optional: dict[str, dict[str, Any]] = {
        "bias": {"bias": rng.standard_normal((1, 4, 5, 7))},
        "sink_token": {"sink_token": rng.standard_normal((1, 4, 1, 1))},
        "softcap": {"softcap": np.float64(1.5)},
        "alibi_slopes": {"alibi_slopes": rng.uniform(0, 1, (1, 4, 1, 1))},
        "seed": {"seed": np.array([[[[5]]]]), "offset": np.array([[[[3]]]])},
        "seq_len_q": {
            "seq_len_q": np.array([3, 5]).reshape(2, 1, 1, 1),
            "seq_len_kv": np.array([7, 5]).reshape(2, 1, 1, 1),
        },
    }
    for name in more:
        inputs |= optional[name]
    chosen = {**ATTRIBUTES, **attributes}
    forward, backward = FUNCTIONS["sdpa"], FUNCTIONS["sdpa_backward"]
    result = forward(inputs, chosen, {})
    do = rng.standard_normal(result["o"].shape)
    names = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sink_token": "dSink_token"}
    outputs: Any = {gradient: inputs[name] for name, gradient in names.items() if name in inputs}
    given = {**inputs, "o": result["o"], "dO": do, "stats": result["stats"]}
    found = backward(given, chosen, outputs)
    seen = np.isfinite(result["stats"])
    for name, gradient in names.items():
        if name not in inputs:
            continue
        expected = np.zeros(inputs[name].shape)
        for index in np.ndindex(*expected.shape):
            values = []
            for sign in (1, -1):
                moved = inputs[name].copy()
                moved[index] += sign * STEP
                o = forward({**inputs, name: moved}, chosen, {})["o"]
                values.append((np.where(seen, o, 0) * do).sum())
            expected[index] = (values[0] - values[1]) / (2 * STEP)
        np.testing.assert_allclose(found[gradient], expected, atol=1e-8)


def test_gradients_of_the_reference_are_differences() -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "q": rng.standard_normal((4, 4, 3)),
        "k": rng.standard_normal((6, 2, 3)),
        "v": rng.standard_normal((6, 2, 3)),
        "bias": rng.standard_normal((4, 4, 6)),
        "sink": rng.standard_normal(4),
    }
    mask = Mask(causal=True, window=(3, 0), softcap=2.0)
    slopes = rng.uniform(0, 1, 4)

    def loss(given: dict[str, Array]) -> Any:
        return (attention(**given, mask=mask, slopes=slopes)[0] * do).sum()

    do = rng.standard_normal((4, 4, 3))
    o = attention(**arrays, mask=mask, slopes=slopes)[0]
    found = gradients(do, **arrays, o=o, mask=mask, slopes=slopes)
    for name, array in arrays.items():
        expected = np.zeros(array.shape)
        for index in np.ndindex(*array.shape):
            moved = [array.copy() for _ in range(2)]
            moved[0][index] += STEP
            moved[1][index] -= STEP
            high, low = (loss({**arrays, name: each}) for each in moved)
            expected[index] = (high - low) / (2 * STEP)
        np.testing.assert_allclose(getattr(found, name), expected, atol=1e-8)
