"""A small model in three stages."""

from __future__ import annotations

from typing import Any

import numpy as np

from atomr_accel import train


def stages(rng: np.random.Generator) -> Any:
    """Parameters of three stages."""
    shapes: list[dict[str, tuple[int, ...]]] = [
        {"w": (4, 6), "b": (6,)},
        {"w": (6, 6)},
        {"w": (6, 1)},
    ]
    return [
        {name: (rng.standard_normal(shape) / 2).astype(np.float32) for name, shape in each.items()}
        for each in shapes
    ]


def first(tape: Any, p: Any, batch: Any) -> Any:
    return tape.dnn.tanh(tape.blaslt.matmul(batch["x"], p["w"], bias=p["b"]))


def middle(tape: Any, p: Any, x: Any) -> Any:
    return x + tape.dnn.gelu(tape.evaluate(x @ p["w"]))


def last(tape: Any, p: Any, x: Any, batch: Any) -> Any:
    return train.mse(tape.blas.gemm(x, p["w"]), batch["y"])
