"""Checks that facades share: layouts of images, windows of filters, activations."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ...._dtypes import DTYPES
from ....wire.options import LARGEST

if TYPE_CHECKING:
    from ....arrays import GpuRef
    from ._builder import Builder, Symbol

FLOATS: Final = frozenset(DTYPES[name] for name in ("float16", "bfloat16", "float32", "float64"))

Pair = tuple[int, int]
Padding = int | str | Sequence[int | Pair]
Steps = int | Sequence[int]

_RANKS: Final = range(3, 6)
_LAYOUTS: Final = {
    "NCW": (3, False),
    "NWC": (3, True),
    "NCHW": (4, False),
    "NHWC": (4, True),
    "NCDHW": (5, False),
    "NDHWC": (5, True),
}

ACTIVATIONS: Final = {
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "gelu": "gelu",
    "gelu_tanh": "gelu_approx_tanh",
    "silu": "swish",
    "swish": "swish",
    "elu": "elu",
    "softplus": "softplus",
}
"""The activations by name, as the nodes that compute them."""


def exact(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments as a key, equal only for equal ones of the same types.

    1, 1.0 and True are equal, but not all of them may be allowed. Lists, in which arguments
    may come, are keys as tuples are.
    """
    kinds = tuple(map(type, values))
    if tuple in kinds or list in kinds:
        nested = zip(values, kinds, strict=True)
        values = tuple(
            [exact(tuple(each)) if kind in (tuple, list) else each for each, kind in nested]
        )
    return values, kinds


def is_last_of(shape: Sequence[int], layout: str | None) -> bool:
    """Return whether channels are last, after a check that a shape is one of images."""
    if len(shape) not in _RANKS or 0 in shape[1:]:
        raise ValueError(
            f"x must have a batch, channels and one to three dimensions of space, of "
            f"which only the batch may be 0, not shape {shape}"
        )
    return is_last(layout, len(shape))


def is_last(layout: str | None, ndim: int) -> bool:
    """Return whether channels are the last dimension of an image.

    Args:
        layout: ``"NCHW"``, ``"NHWC"`` or the equivalent in one and three dimensions; None for
            channels first.
        ndim: dimensions of the image.
    """
    if layout is None:
        return False
    known = _LAYOUTS.get(layout)
    if known is None or known[0] != ndim:
        fitting = [name for name, (rank, _) in _LAYOUTS.items() if rank == ndim]
        raise ValueError(
            f"layout {layout!r} does not fit {ndim} dimensions; "
            f"use {' or '.join(fitting) or 'no layout'}"
        )
    return known[1]


def logical(shape: tuple[int, ...], *, last: bool) -> tuple[int, ...]:
    """The shape of an image with its channels after the batch."""
    return (shape[0], shape[-1], *shape[1:-1]) if last else shape


def physical(shape: tuple[int, ...], *, last: bool) -> tuple[int, ...]:
    """The reverse of ``logical``."""
    return (shape[0], *shape[2:], shape[1]) if last else shape


def image(builder: Builder, ref: GpuRef, *, last: bool) -> Symbol:
    """A buffer as an image, or as a filter."""
    return builder.tensor(logical(ref.shape, last=last), ref.dtype, last=last)


def per_channel(builder: Builder, ref: GpuRef, ndim: int, *, last: bool) -> Symbol:
    """A buffer with a number for each channel."""
    return builder.tensor((1, ref.size, *(1 for _ in range(ndim - 2))), ref.dtype, last=last)


def require_float(ref: GpuRef, name: str) -> None:
    """``ref`` has a dtype that networks are computed in."""
    if ref.dtype not in FLOATS:
        raise TypeError(
            f"{name} must have dtype float16, bfloat16, float32 or float64, not {ref.dtype.name}"
        )


def steps(value: Steps, space: int, name: str, least: int = 1) -> tuple[int, ...]:
    """A number for each dimension of space."""
    try:
        numbers = (
            tuple(_index(each) for each in value)
            if isinstance(value, Sequence)
            else (_index(value),) * space
        )
    except TypeError:
        raise TypeError(f"{name} must be an integer or {space} of them, not {value!r}") from None
    if len(numbers) != space or min(numbers) < least:
        raise ValueError(
            f"{name} must be an integer or {space} of them, of at least {least}, not {value!r}"
        )
    if max(numbers) > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST}, not {value!r}")
    return numbers


def _index(value: int) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def paddings(
    value: Padding, taps: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after, for each dimension of space.

    Args:
        value: a number; one, or a pair (before, after), for each dimension; ``"valid"`` for
            none; ``"same"`` for as many outputs as inputs.
        taps: size of the filter.
        stride: stride of the filter.
        dilation: dilation of the filter.
    """
    space = len(taps)
    if isinstance(value, str):
        if value == "valid":
            return (0,) * space, (0,) * space
        if value != "same" or set(stride) != {1}:
            raise ValueError(
                "padding must be 'valid', 'same' (with stride 1), or numbers, "
                f"not {value!r} with stride {stride}"
            )
        both = [step * (size - 1) for size, step in zip(taps, dilation, strict=True)]
        return tuple(each // 2 for each in both), tuple(each - each // 2 for each in both)
    if isinstance(value, Sequence) and any(isinstance(each, Sequence) for each in value):
        pairs = [tuple(each) if isinstance(each, Sequence) else (each, each) for each in value]
        if len(pairs) != space or any(len(pair) != 2 for pair in pairs):
            raise ValueError(
                f"padding must be {space} numbers or pairs (before, after), not {value!r}"
            )
        before: Any = [pair[0] for pair in pairs]
        after: Any = [pair[1] for pair in pairs]
        return steps(before, space, "padding", 0), steps(after, space, "padding", 0)
    same: Any = value
    numbers = steps(same, space, "padding", 0)
    return numbers, numbers


def activation(name: str | None) -> str | None:
    """Return the node of an activation."""
    if name is None:
        return None
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, not {name!r}"
        ) from None
