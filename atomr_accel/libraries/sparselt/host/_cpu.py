"""Structured sparsity on the CPU, with NumPy.

A compressed matrix is the elements that are kept, and behind them where each was in its group, a
byte each. Narrow types are computed in float32, and float32 is not rounded to TF32 first.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ....executors.operations import array_handlers
from ...blaslt.host.cpu import gelu, saturate
from ..wire._messages import (
    GROUP,
    CheckSparsity,
    Compress,
    MeasureCompressed,
    MultiplyCompressed,
    Prune,
    decode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire._messages import DenseOperand, Structured

Array = np.ndarray[Any, Any]


def _patterns(group: int) -> Array:
    """The square masks that keep half of each row and of each column."""
    rows = [
        [float(at in kept) for at in range(group)]
        for kept in itertools.combinations(range(group), group // 2)
    ]
    masks = np.array([*itertools.product(rows, repeat=group)])
    square: Array = masks[(masks.sum(1) == group // 2).all(1)]
    return square


TILES: Final = {group: _patterns(group) for group in (2, 4)}
"""By how many elements are one group."""


@final
class CpuSparseLt:
    """Executes the messages of structured sparsity."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Compress: self._compress,
            MeasureCompressed: self._measure,
            MultiplyCompressed: self._multiply,
            **array_handlers(context, {CheckSparsity: check, Prune: prune}),
        }

    def close(self) -> None:
        """Nothing is held."""

    def _measure(self, message: MeasureCompressed) -> tuple[int, int]:
        matrix = message.matrix
        kept = matrix.rows * matrix.columns // 2
        return kept * (DTYPES[matrix.dtype].itemsize + 1), 0

    def _compress(self, message: Compress) -> None:
        self._context.check()
        matrix = message.matrix
        groups = self._matrix(message.source, matrix).reshape(-1, matrix.group)
        values, places = self._compressed(message.target, matrix)
        sizes = np.abs(groups.astype(np.float64))
        # The largest of each group, in the order in which they are there.
        kept = np.sort(np.argsort(-sizes, axis=1, kind="stable")[:, : matrix.group // 2], axis=1)
        places[...] = kept
        values[...] = np.take_along_axis(groups, kept, 1)

    def _multiply(self, message: MultiplyCompressed) -> None:
        self._context.check()
        spec = decode(message.spec)
        values, places = self._compressed(message.a, spec.a)
        groups = np.zeros((len(values), spec.a.group), values.dtype)
        np.put_along_axis(groups, places.astype(np.int64), values, 1)
        a = groups.reshape(spec.a.rows, spec.a.columns)
        b, d = self._dense(message.b, spec.b), self._dense(message.d, spec.d)
        wide = np.float64 if spec.a.dtype == "int8" else np.float32
        with np.errstate(all="ignore"):
            value = np.float32(message.alpha) * (a.astype(wide) @ b.astype(wide))
            if message.beta:
                value = value + np.float32(message.beta) * self._dense(message.c, spec.c)
            if spec.bias:
                bias = self._context.array(message.bias, (spec.d.rows, 1), DTYPES[spec.bias])
                value = value + bias.astype(wide)
            if spec.activation == "relu":
                value = np.maximum(value, 0)
            elif spec.activation == "gelu":
                value = gelu(value)
            if d.dtype.name == "int32":
                value = np.rint(value)
            d[...] = saturate(value, d.dtype)

    def _matrix(self, address: int, matrix: Structured) -> Array:
        return self._context.array(address, (matrix.rows, matrix.columns), DTYPES[matrix.dtype])

    def _compressed(self, address: int, matrix: Structured) -> tuple[Array, Array]:
        """The elements that are kept, and where they were."""
        kept = matrix.group // 2
        dtype, count = DTYPES[matrix.dtype], matrix.rows * matrix.columns // matrix.group
        values = self._context.array(address, (count, kept), dtype)
        places = self._context.array(address + values.nbytes, (count, kept), DTYPES["uint8"])
        return values, places

    def _dense(self, address: int, dense: DenseOperand) -> Array:
        kind = DTYPES[dense.dtype]
        strides = (dense.ld * kind.itemsize, kind.itemsize)
        return self._context.array(
            address,
            (dense.rows, dense.columns),
            kind,
            strides if dense.by_rows else strides[::-1],
        )


def prune(a: Array, alg: str, out: Array) -> None:
    """Keep the larger half of each group."""
    mask = {"strip": strips, "tile": tiles}[alg](np.abs(a.astype(np.float64)), group_of(a))
    out[...] = np.where(mask, a, np.zeros((), a.dtype))


def check(a: Array) -> bool:
    """Return whether half of each group is zero."""
    group = group_of(a)
    return bool(((a != 0).reshape(-1, group).sum(1) <= group // 2).all())


def group_of(a: Array) -> int:
    """Return the number of elements of a row of which half are zero."""
    return GROUP.get(a.dtype.name, 4)


def strips(sizes: Array, group: int) -> Array:
    """Which elements are among the larger half of their group of a row."""
    order = np.argsort(-sizes.reshape(-1, group), axis=1, kind="stable")
    mask = np.zeros(order.shape, bool)
    np.put_along_axis(mask, order[:, : group // 2], values=True, axis=1)
    return mask.reshape(sizes.shape)


def tiles(sizes: Array, group: int) -> Array:
    """Half of each row and each column of square tiles, so that their sum is the largest."""
    rows, columns = sizes.shape
    split = sizes.reshape(rows // group, group, columns // group, group).transpose(0, 2, 1, 3)
    patterns = TILES[group]
    best = np.einsum("ijrc,prc->ijp", split, patterns).argmax(-1)
    mask: Array = (patterns[best] > 0).transpose(0, 2, 1, 3).reshape(rows, columns)
    return mask
