"""Batches of matrices: how leading dimensions broadcast, and by which steps to walk them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Batch(NamedTuple):
    """A batch of products, in as few dimensions as possible.

    Attributes:
        shape: what the leading dimensions broadcast to.
        sizes: the same, with dimensions merged where one step leads through both.
        steps_a: elements from one matrix of a to the next, along each of ``sizes``; 0
            repeats the matrix.
        steps_b: those of b.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    steps_a: tuple[int, ...]
    steps_b: tuple[int, ...]

    @property
    def products(self) -> int:
        """How many products."""
        return math.prod(self.sizes)


def broadcast(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> Batch:
    """The batch of a product of contiguous arrays of these shapes.

    Raises:
        ValueError: the leading dimensions do not broadcast.
    """
    try:
        shape = np.broadcast_shapes(shape_a[:-2], shape_b[:-2])
    except ValueError:
        raise ValueError(
            f"the leading dimensions do not broadcast: a has shape {shape_a}, b has {shape_b}"
        ) from None
    merged: list[tuple[int, int, int]] = []
    for size, step_a, step_b in zip(
        shape, _steps(shape_a, len(shape)), _steps(shape_b, len(shape)), strict=True
    ):
        if size == 1:
            continue
        if merged:
            before, before_a, before_b = merged[-1]
            if before_a == size * step_a and before_b == size * step_b:
                merged[-1] = (before * size, step_a, step_b)
                continue
        merged.append((size, step_a, step_b))
    return Batch(
        shape,
        tuple(size for size, _, _ in merged),
        tuple(step for _, step, _ in merged),
        tuple(step for _, _, step in merged),
    )


def _steps(shape: tuple[int, ...], ndim: int) -> list[int]:
    """Elements from one matrix to the next along each of ``ndim`` leading dimensions."""
    step = shape[-2] * shape[-1]
    steps = []
    for size in reversed(shape[:-2]):
        steps.append(0 if size == 1 else step)
        step *= size
    return [0] * (ndim - len(steps)) + steps[::-1]
