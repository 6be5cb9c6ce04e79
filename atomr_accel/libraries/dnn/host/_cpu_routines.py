"""Pooling, softmax and local response normalisation with NumPy."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...._dtypes import DTYPES
from ..wire._routine_messages import Normalize, Pool, Softmax
from ._cpu_pointwise import special

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ....backends.cpu.host.context import CpuContext
    from ..wire._graph import DnnTensor

Array = np.ndarray[Any, Any]

_softmax: Final = special("softmax")


def wide(array: Array) -> Array:
    """Return an array in its compute type."""
    return array.astype(np.float64 if array.dtype.itemsize == 8 else np.float32)


def view_of(
    context: CpuContext, address: int, tensor: DnnTensor, dtype: str | None = None
) -> Array:
    """Return the memory of a tensor, or of one like it with another dtype."""
    kind = DTYPES[dtype or tensor.dtype]
    memory = context.bytes_at(address, tensor.extent * kind.itemsize)
    strides = [stride * kind.itemsize for stride in tensor.strides]
    return np.ndarray(tensor.shape, kind, memory, strides=strides)


def _log_softmax(x: Array, axis: int) -> Array:
    """Return the logarithm of ``softmax``: NaN for rows with infinity, unlike SciPy's -inf."""
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis, keepdims=True)
        made: Array = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    return made


@final
class CpuRoutines:
    """Executes pooling, softmax and local response normalisation."""

    def __init__(self, context: CpuContext) -> None:
        self._context: Final = context
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {
            Pool: self._pool,
            Softmax: self._softmax,
            Normalize: self._normalize,
        }

    # --- pooling --------------------------------------------------------------------------

    def _pool(self, message: Pool) -> None:
        self._context.check()
        average = message.mode != "max"
        dims = len(message.window)
        space = message.x_tensor.shape[2:]
        if not message.dx:
            x = wide(view_of(self._context, message.x, message.x_tensor))
            windows = _windows(_padded(x, message, 0.0 if average else -np.inf), message)
            axes = tuple(range(-dims, 0))
            y = windows.sum(axes) / _counts(message, space) if average else windows.max(axes)
            view_of(self._context, message.y, message.y_tensor)[...] = y.astype(
                DTYPES[message.y_tensor.dtype]
            )
            return
        dy = wide(view_of(self._context, message.dy, message.y_tensor))
        shape = [size + 2 * padding for size, padding in zip(space, message.padding, strict=True)]
        gradient = np.zeros((*dy.shape[:2], *shape), dy.dtype)
        if average:
            share = dy / _counts(message, space)
            for tap in _taps(message, dy.shape[2:]):
                gradient[tap] += share
        else:
            x = _padded(wide(view_of(self._context, message.x, message.x_tensor)), message, -np.inf)
            y = _windows(x, message).max(tuple(range(-dims, 0)))
            open_ = np.ones(y.shape, bool)  # only the first of equal ones, or of NaN, counts
            for tap in _taps(message, dy.shape[2:]):
                found = open_ & ((x[tap] == y) | np.isnan(x[tap]))
                gradient[tap] += np.where(found, dy, 0)
                open_ &= ~found
        inside: tuple[Any, ...] = (
            ...,
            *(
                slice(padding, padding + size)
                for size, padding in zip(space, message.padding, strict=True)
            ),
        )
        dx = view_of(self._context, message.dx, message.x_tensor)
        dx[...] = gradient[inside].astype(dx.dtype)

    # --- softmax --------------------------------------------------------------------------

    def _softmax(self, message: Softmax) -> None:
        self._context.check()
        dtype, context = DTYPES[message.dtype], self._context
        if not message.dx:
            x = wide(context.array(message.x, message.shape, dtype))
            function = _log_softmax if message.log else _softmax
            y = function(x, axis=1) if x.size else x
            context.array(message.y, message.shape, dtype)[...] = y.astype(dtype)
            return
        y = wide(context.array(message.y, message.shape, dtype))
        dy = wide(context.array(message.dy, message.shape, dtype))
        if message.log:
            dx = dy - np.exp(y) * dy.sum(1, keepdims=True)
        else:
            dx = y * (dy - (y * dy).sum(1, keepdims=True))
        context.array(message.dx, message.shape, dtype)[...] = dx.astype(dtype)

    # --- local response normalisation -----------------------------------------------------

    def _normalize(self, message: Normalize) -> None:
        self._context.check()
        x = wide(view_of(self._context, message.x, message.tensor))
        share = message.alpha / message.size
        base = message.k + share * _neighbours(x * x, message.size)
        if not message.dx:
            y = view_of(self._context, message.y, message.tensor)
            y[...] = (x * base**-message.beta).astype(y.dtype)
            return
        dy = wide(view_of(self._context, message.dy, message.tensor))
        # What a channel gave to the sums of others: the window the other way round.
        others = _neighbours(dy * x * base ** (-message.beta - 1), message.size, mirrored=True)
        dx = dy * base**-message.beta - 2 * share * message.beta * x * others
        target = view_of(self._context, message.dx, message.tensor)
        target[...] = dx.astype(target.dtype)


def _padded(x: Array, message: Pool, value: float) -> Array:
    around = [(0, 0), (0, 0), *((padding, padding) for padding in message.padding)]
    return np.pad(x, around, constant_values=value)


def _windows(x: Array, message: Pool) -> Array:
    """All places of the window: (batch, channels, *places, *window)."""
    axes = tuple(range(2, x.ndim))
    windows = sliding_window_view(x, message.window, axes)
    steps = tuple(slice(None, None, stride) for stride in message.stride)
    return np.asarray(windows[(slice(None), slice(None), *steps)])


def _taps(message: Pool, places: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield for each element of the window a slice of its inputs, over all places."""
    for offsets in itertools.product(*map(range, message.window)):
        yield (
            ...,
            *(
                slice(offset, offset + stride * (count - 1) + 1, stride)
                for offset, stride, count in zip(offsets, message.stride, places, strict=True)
            ),
        )


def _counts(message: Pool, space: tuple[int, ...]) -> Any:
    """Return the divisors of the sums of windows."""
    if message.mode == "average":
        return np.float32(np.prod(message.window))
    ones = _padded(np.ones((1, 1, *space), np.float32), message, 0.0)
    return _windows(ones, message).sum(tuple(range(-len(message.window), 0)))


def _neighbours(values: Array, size: int, *, mirrored: bool = False) -> Array:
    """Sums over ``size`` channels around each; of an even number one more lies behind it."""
    before = (size - 1) // 2
    after = size - 1 - before
    if mirrored:
        before, after = after, before
    around = [(0, 0), (before, after), *((0, 0) for _ in values.shape[2:])]
    return np.asarray(sliding_window_view(np.pad(values, around), size, axis=1).sum(-1))
