"""Rows of ``NODES`` that only move elements: reshape, slice, concatenate, transpose.

They take every dtype of graphs, one in each operation, and return the same as NumPy's functions of
these names. These apply to shapes (batch, channels, ...), regardless of the place of channels in
memory. Results have channels first. A slice and a concatenation have the layout of the first
tensor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ._graph import DnnTensor, strides_of
from ._node_type import REQUIRED, NodeType

if TYPE_CHECKING:
    from ._node_type import Attributes, Inputs

MOST_JOINED: Final = 8
"""Number of tensors that one ``concatenate`` takes at most."""

JOINED: Final = tuple(f"input{position}" for position in range(MOST_JOINED))


def _whole(op: str, inputs: Inputs) -> DnnTensor:
    """The first input; none may be a number."""
    first, *others = inputs.values()
    if any(each.kind == "scalar" for each in inputs.values()):
        raise ValueError(f"{op} takes tensors, no numbers")
    if any(each.dtype != first.dtype for each in others):
        dtypes = sorted({each.dtype for each in inputs.values()})
        raise TypeError(f"{op} takes tensors of one dtype, not {' and '.join(dtypes)}")
    return first


def _made(like: DnnTensor, shape: tuple[int, ...], *, last: bool) -> DnnTensor:
    return DnnTensor(like.dtype, shape, strides_of(shape, last=last), "virtual", last=last)


def _reshape(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    tensor, shape = _whole("reshape", inputs), attributes["shape"]
    if not shape or min(shape[1:], default=1) < 1 or math.prod(shape) != math.prod(tensor.shape):
        raise ValueError(f"reshape: {tensor.shape} has not as many elements as {shape}")
    return {"y": _made(tensor, shape, last=False)}


def _slice(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    tensor = _whole("slice", inputs)
    steps = attributes["steps"] or (1,) * len(tensor.shape)
    bounds = (attributes["starts"], attributes["stops"], steps)
    if any(len(each) != len(tensor.shape) for each in bounds):
        raise ValueError(f"slice: starts, stops and steps are one for each of {tensor.shape}")
    for size, start, stop, step in zip(tensor.shape, *bounds, strict=True):
        if not 0 <= start < stop <= size or step < 1:
            raise ValueError(
                f"slice: {start}:{stop}:{step} has no elements of {size}, or more than there are"
            )
    sizes = tuple(-(-(stop - start) // step) for start, stop, step in zip(*bounds, strict=True))
    return {"y": _made(tensor, sizes, last=tensor.last)}


def _concatenate(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    tensor, axis = _whole("concatenate", inputs), attributes["axis"]
    shapes = [each.shape for each in inputs.values()]
    if not 0 <= axis < len(tensor.shape):
        raise ValueError(f"concatenate: axis {axis} is not one of shape {tensor.shape}")
    if len({(len(shape), shape[:axis], shape[axis + 1 :]) for shape in shapes}) > 1:
        raise ValueError(
            f"concatenate: shapes {' and '.join(map(str, shapes))} differ elsewhere than in "
            f"axis {axis}"
        )
    size = sum(shape[axis] for shape in shapes)
    shape = (*tensor.shape[:axis], size, *tensor.shape[axis + 1 :])
    return {"y": _made(tensor, shape, last=tensor.last)}


def _transpose(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    tensor, order = _whole("transpose", inputs), attributes["permutation"]
    if sorted(order) != list(range(len(tensor.shape))):
        raise ValueError(f"transpose: {order} is no permutation of the axes of {tensor.shape}")
    return {"y": _made(tensor, tuple(tensor.shape[axis] for axis in order), last=False)}


LAYOUT: Final[dict[str, NodeType]] = {
    "reshape": NodeType(
        ("input",),
        ("y",),
        _reshape,
        attributes={"shape": REQUIRED},
        about="the same elements in another shape, the last dimension counted fastest",
    ),
    "slice": NodeType(
        ("input",),
        ("y",),
        _slice,
        attributes={"starts": REQUIRED, "stops": REQUIRED, "steps": None},
        about="``input[start:stop:step]`` in each dimension",
    ),
    "concatenate": NodeType(
        JOINED[:2],
        ("y",),
        _concatenate,
        optional=JOINED[2:],
        attributes={"axis": REQUIRED},
        about="two to eight tensors one behind the other along ``axis``",
    ),
    "transpose": NodeType(
        ("input",),
        ("y",),
        _transpose,
        attributes={"permutation": REQUIRED},
        about="dimension ``i`` of the result is dimension ``permutation[i]`` of ``input``",
    ),
}
"""The operations by name."""
