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


def broadcast(
    shape_a: tuple[int, ...],
    shape_b: tuple[int, ...],
    step_a: int | None = None,
    step_b: int | None = None,
) -> Batch:
    """The batch of a product of arrays of these shapes.

    Args:
        shape_a: shape of a; its last two dimensions are the matrices.
        shape_b: shape of b.
        step_a: elements from one matrix to the next, where they are not contiguous.
        step_b: the same of b.

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
    steps = zip(
        _steps(shape_a, len(shape), step_a), _steps(shape_b, len(shape), step_b), strict=True
    )
    for size, (left, right) in zip(shape, steps, strict=True):
        if size == 1:
            continue
        if merged:
            before, before_left, before_right = merged[-1]
            if before_left == size * left and before_right == size * right:
                merged[-1] = (before * size, left, right)
                continue
        merged.append((size, left, right))
    return Batch(
        shape,
        tuple(size for size, _, _ in merged),
        tuple(step for _, step, _ in merged),
        tuple(step for _, _, step in merged),
    )


def _steps(shape: tuple[int, ...], ndim: int, step: int | None) -> list[int]:
    """Elements from one matrix to the next along each of ``ndim`` leading dimensions."""
    if step is None:
        step = shape[-2] * shape[-1]
    steps = []
    for size in reversed(shape[:-2]):
        steps.append(0 if size == 1 else step)
        step *= size
    return [0] * (ndim - len(steps)) + steps[::-1]
