"""A layer of experts in NumPy and float64, token by token."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_accel.patterns import Gating, MoeWeights

Array = NDArray[Any]


@dataclass
class Model:
    """The experts that a router chooses, and their weights.

    Attributes:
        weights: (T, E): how much of an expert goes into a token's result.
        load: how often each expert was chosen.
        dropped: choices beyond the capacity.
        unrouted: tokens without experts.
        balance_loss, z_loss: by their formulas.
    """

    weights: Array
    load: Array
    dropped: int
    unrouted: int
    balance_loss: float
    z_loss: float


def routed(logits: Array, gating: Gating) -> Model:
    """Choose as a router does, one token after the other."""
    tokens, experts = logits.shape
    wide = logits.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        largest = wide.max(axis=1, keepdims=True)
        raised = np.exp(wide - largest)
        total = raised.sum(axis=1, keepdims=True)
        probabilities = raised / total
        scale = (largest + np.log(total))[:, 0]
    known = np.flatnonzero(np.isfinite(scale))
    capacity = gating.capacity(tokens, experts)
    load = np.zeros(experts, int)
    weights = np.zeros((tokens, experts))
    dropped = 0
    choices = np.argsort(-probabilities, axis=1, kind="stable")[:, : gating.top_k]
    for choice in range(gating.top_k):
        for token in known:
            expert = choices[token, choice]
            gate = probabilities[token, expert]
            if not gate:
                continue
            if gating.normalize:
                gate /= probabilities[token, choices[token]].sum()
            load[expert] += 1
            if capacity is not None and load[expert] > capacity:
                dropped += 1
            else:
                weights[token, expert] = gate
    share = load / max(load.sum(), 1)
    mean = probabilities[known].sum(axis=0) / max(len(known), 1)
    return Model(
        weights=weights,
        load=load,
        dropped=dropped,
        unrouted=tokens - len(known),
        balance_loss=experts * float(share @ mean),
        z_loss=float((scale[known] ** 2).sum() / max(len(known), 1)),
    )


def computed(x: Array, weights: MoeWeights[Array], mine: Array) -> tuple[Array, Array]:
    """Return the experts' weighted results, and the sum of the absolute terms.

    Args:
        x: (T, d).
        weights: of all experts.
        mine: (T, E), as in `Model`.
    """
    wide = {
        each.name: np.zeros(1)[:, None] if value is None else value.astype(np.float64)
        for each in fields(weights)
        if (value := getattr(weights, each.name)) is not None or each.name.endswith("bias")
    }
    seen = x.astype(np.float64)
    result, size = np.zeros(x.shape), np.zeros(x.shape)
    for expert in range(mine.shape[1]):
        up = seen @ wide["up"][expert] + _row(wide["up_bias"], expert)
        if "gate" in wide:
            gate = seen @ wide["gate"][expert]
            hidden = gate / (1 + np.exp(-gate)) * up
        else:
            hidden = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        bias = _row(wide["down_bias"], expert)
        given = hidden @ wide["down"][expert] + bias
        sizes = np.abs(hidden) @ np.abs(wide["down"][expert]) + np.abs(bias)
        part = mine[:, expert, None]
        result += np.where(part > 0, part * given, 0)
        size += np.where(part > 0, part * sizes, 0)
    return result, size


def _row(bias: Array, expert: int) -> Array:
    row: Array = bias[expert if len(bias) > 1 else 0]
    return row


def made(
    rng: np.random.Generator,
    *,
    d: int,
    f: int,
    experts: int,
    dtype: Any,
    gated: bool = False,
    biased: bool = False,
) -> MoeWeights[Array]:
    """Weights at random, of a size that keeps results near one."""

    def draw(*shape: int) -> Array:
        return np.asarray(rng.uniform(-1, 1, shape) / np.sqrt(shape[-2])).astype(dtype)

    return MoeWeights(
        router=rng.uniform(-1, 1, (d, experts)).astype(np.float32),
        up=draw(experts, d, f),
        down=draw(experts, f, d),
        gate=draw(experts, d, f) if gated else None,
        up_bias=draw(experts, f) if biased and not gated else None,
        down_bias=draw(experts, d) if biased else None,
    )
