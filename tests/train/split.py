"""A small model of two blocks, and its loss on parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from atomr_accel import train

SPLITS: dict[str, Any] = {
    "first": 1,
    "b1": 0,
    "down": 0,
    "b2": None,
    "norm": None,
    "up": 1,
    "low": 0,
    "b3": "summed",
    "scale": "summed",
    "out": None,
}


def model(rng: np.random.Generator) -> Any:
    """Two blocks; the second has its rows cut."""
    shapes: dict[str, tuple[int, ...]] = {
        "first": (4, 8),
        "b1": (8,),
        "down": (8, 4),
        "b2": (4,),
        "norm": (4,),
        "up": (4, 8),
        "low": (8, 4),
        "b3": (4,),
        "scale": (4,),
        "out": (4, 1),
    }
    return {k: (rng.standard_normal(s) / 2).astype(np.float32) for k, s in shapes.items()}


def split(path: tuple[Any, ...], _shape: tuple[int, ...]) -> Any:
    return SPLITS[path[0]]


async def cut_loss(part: train.TensorPart, p: Any, batch: Any) -> Any:
    """Products by columns and rows, of whole rows and of cut ones."""
    tape = part.tape
    hidden = tape.dnn.tanh(await part.column(batch["x"], p["first"], p["b1"]))
    x = tape.evaluate((await part.row(hidden, p["down"], p["b2"])) * p["norm"])
    rows = part.cut(x, 0)
    h = tape.evaluate(rows * p["scale"])
    h = tape.dnn.gelu(await part.column(h, p["up"], sequence=0))
    rows = tape.evaluate(rows + await part.row(h, p["low"], p["b3"], sequence=0))
    x = await part.whole(rows, 0)
    return train.mse(tape.blas.gemm(x, p["out"]), batch["y"])
