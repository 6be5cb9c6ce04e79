"""Batches of matrices: how leading dimensions broadcast, and with which strides."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class ProductBatch(NamedTuple):
    """A batch of products, in as few dimensions as possible.

    Attributes:
        shape: the shape to which the leading dimensions broadcast.
        sizes: the same, with dimensions merged where one stride leads through both.
        strides_a: elements from one matrix of a to the next, along each of ``sizes``; 0 repeats the
            matrix.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    strides_a: tuple[int, ...]
    strides_b: tuple[int, ...]

    @property
    def products(self) -> int:
        """Number of products."""
        return math.prod(self.sizes)


def broadcast(
    shape_a: tuple[int, ...],
    shape_b: tuple[int, ...],
    stride_a: int | tuple[int, ...] | None = None,
    stride_b: int | tuple[int, ...] | None = None,
) -> ProductBatch:
    """The batch of a product of arrays of these shapes.

    Args:
        shape_a: shape of a; its last two dimensions are the matrices.
        shape_b: shape of b.
        stride_a: elements from one matrix to the next, where they are not contiguous; a number
            where they follow each other, one for each leading dimension otherwise.
        stride_b: the same of b.
    """
    try:
        shape = np.broadcast_shapes(shape_a[:-2], shape_b[:-2])
    except ValueError:
        raise ValueError(
            f"the leading dimensions do not broadcast: a has shape {shape_a}, b has {shape_b}"
        ) from None
    merged: list[tuple[int, int, int]] = []
    left_strides = _strides(shape_a, len(shape), stride_a)
    right_strides = _strides(shape_b, len(shape), stride_b)
    for size, left, right in zip(shape, left_strides, right_strides, strict=True):
        if size == 1:
            continue
        if merged:
            before, before_left, before_right = merged[-1]
            if before_left == size * left and before_right == size * right:
                merged[-1] = (before * size, left, right)
                continue
        merged.append((size, left, right))
    return ProductBatch(
        shape,
        tuple(size for size, _, _ in merged),
        tuple(stride for _, stride, _ in merged),
        tuple(stride for _, _, stride in merged),
    )


def _strides(shape: tuple[int, ...], ndim: int, stride: int | tuple[int, ...] | None) -> list[int]:
    """Elements from one matrix to the next along each of ``ndim`` leading dimensions."""
    if isinstance(stride, tuple):
        given = [0 if size == 1 else step for size, step in zip(shape[:-2], stride, strict=True)]
        return [0] * (ndim - len(given)) + given
    if stride is None:
        stride = shape[-2] * shape[-1]
    strides = []
    for size in reversed(shape[:-2]):
        strides.append(0 if size == 1 else stride)
        stride *= size
    return [0] * (ndim - len(strides)) + strides[::-1]
