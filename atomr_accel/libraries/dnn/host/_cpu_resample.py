"""Resampling with NumPy: pooling in windows that move or fit, interpolation.

A dimension of space is a table: for each place the elements that it is made of, with their
weights. Averages and interpolations are applied dimension by dimension; a gradient is the same
by the table the other way round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..wire._resample_nodes import ResampleAxis, axes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..wire._graph import DnnTensor

Array = np.ndarray[Any, Any]

_CUBIC: Final = -0.75
"""Parameter of Keys' cubic kernels (1981), with the value that image libraries use."""


class _ResampleTable(NamedTuple):
    """Elements and weights of each place of a result.

    Attributes:
        elements: (places, most) indices.
        weights: weights of the elements; 0 for padding.
        counts: divisors of the sums of places.
    """

    elements: Array
    weights: Array
    counts: Array


def _table(axis: ResampleAxis, *, include: bool) -> _ResampleTable:
    places = np.arange(axis.places)
    if axis.kind in ("window", "adaptive"):
        if axis.kind == "adaptive":
            first = places * axis.size // axis.places
            end = -((places + 1) * -axis.size // axis.places)
        else:
            first = places * axis.stride - axis.before
            end = first + axis.window
        counts = np.minimum(end, axis.size + axis.after) - first
        first, end = np.maximum(first, 0), np.minimum(end, axis.size)
        if not include:
            counts = end - first
        elements = first[:, None] + np.arange((end - first).max())
        weights = (elements < end[:, None]).astype(np.float64)
        return _ResampleTable(
            np.minimum(elements, axis.size - 1), weights, counts.astype(np.float64)
        )
    elements, weights = _interpolated(axis, places)
    return _ResampleTable(np.clip(elements, 0, axis.size - 1), weights, np.ones(axis.places))


def _interpolated(axis: ResampleAxis, places: Array) -> tuple[Array, Array]:
    """Elements, some of them beyond the ends, and weights."""
    if axis.kind == "NEAREST":
        return (places * axis.size // axis.places)[:, None], np.ones((axis.places, 1))
    if axis.kind == "NEAREST_EXACT":
        found = (2 * places + 1) * axis.size // (2 * axis.places)
        return found[:, None], np.ones((axis.places, 1))
    if axis.aligned:
        at = places * ((axis.size - 1) / max(1, axis.places - 1))
    else:
        at = (places + 0.5) * (axis.size / axis.places) - 0.5
    if axis.kind == "LINEAR":
        at = np.maximum(at, 0)
        base = np.floor(at)
        after = at - base
        return base.astype(int)[:, None] + np.arange(2), np.stack([1 - after, after], 1)
    base = np.floor(at)
    distances = np.abs((at - base)[:, None] - np.arange(-1, 3))
    return base.astype(int)[:, None] + np.arange(-1, 3), _keys(distances)


def _keys(distance: Array) -> Array:
    near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1
    far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _transposed(table: _ResampleTable, size: int) -> _ResampleTable:
    """The other way round: which places an element goes into."""
    places, columns = np.nonzero(table.weights)
    elements = table.elements[places, columns]
    weights = table.weights[places, columns] / table.counts[places]
    order = np.argsort(elements, kind="stable")
    elements, places, weights = elements[order], places[order], weights[order]
    uses = np.bincount(elements, minlength=size)
    rank = np.arange(len(elements)) - np.repeat(np.cumsum(uses) - uses, uses)
    into, share = np.zeros((2, size, max(1, uses.max())))
    into[elements, rank], share[elements, rank] = places, weights
    return _ResampleTable(into.astype(int), share, np.ones(size))


def _applied(x: Array, tables: Sequence[_ResampleTable]) -> Array:
    """Sum over the last dimensions by tables. Elements of weight 0 do not count, even NaN."""
    for axis, table in enumerate(tables, x.ndim - len(tables)):
        moved = np.moveaxis(x, axis, -1)
        weights = table.weights.astype(x.dtype)
        terms = np.where(weights != 0, moved[..., table.elements], x.dtype.type(0)) * weights
        x = np.moveaxis(terms.sum(-1) / table.counts.astype(x.dtype), -1, axis)
    return x


def _windows(x: Array, tables: Sequence[_ResampleTable], fill: float) -> Array:
    """(batch, channels, places..., elements of a window)."""
    dims = len(tables)
    for axis, table in enumerate(tables, 2):
        moved = np.moveaxis(x, axis, -1)[..., table.elements]
        moved = np.where(table.weights != 0, moved, x.dtype.type(fill))
        # Windows go behind all that is there; the next dimension comes to its place.
        x = np.moveaxis(moved, -2, axis)
    return x.reshape(*x.shape[: 2 + dims], math.prod(x.shape[2 + dims :]))


def _tables(op: str, space: Sequence[int], attributes: Mapping[str, Any]) -> list[_ResampleTable]:
    include = attributes["mode"] == "AVGPOOL_INCLUDE_PADDING"
    return [_table(axis, include=include) for axis in axes_of(op, tuple(space), attributes)]


def _forward(op: str) -> Any:
    def function(
        inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
    ) -> dict[str, Array]:
        del outputs
        x = inputs["input"]
        tables = _tables(op, x.shape[2:], attributes)
        if attributes["mode"] == "MAXPOOL":
            return {"y": _windows(x, tables, -np.inf).max(-1)}
        return {"y": _applied(x, tables)}

    return function


def _backward(op: str) -> Any:
    def function(
        inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
    ) -> dict[str, Array]:
        del outputs
        loss, shape = inputs["loss"], attributes["shape"]
        tables = _tables(op, shape[2:], attributes)
        if attributes["mode"] == "MAXPOOL":
            return {"dx": _max_backward(loss, inputs["input"], tables)}
        turned = [_transposed(table, size) for table, size in zip(tables, shape[2:], strict=True)]
        return {"dx": _applied(loss, turned)}

    return function


def _max_backward(loss: Array, x: Array, tables: Sequence[_ResampleTable]) -> Array:
    """Return the gradient. The first of a window's equal maxima gets it, or the first NaN."""
    values = _windows(x, tables, -np.inf)
    space = np.arange(math.prod(x.shape[2:]), dtype=np.float64).reshape(1, 1, *x.shape[2:])
    inside = _windows(space, tables, -1.0)
    found = ((values == values.max(-1, keepdims=True)) | np.isnan(values)) & (inside >= 0)
    first = found.argmax(-1)
    elements = np.take_along_axis(np.broadcast_to(inside, values.shape), first[..., None], -1)
    grads = np.where(found.any(-1), loss, 0)
    flat = np.zeros((x.shape[0] * x.shape[1], math.prod(x.shape[2:])), loss.dtype)
    rows = np.arange(len(flat))[:, None]
    np.add.at(
        flat, (rows, elements.astype(int).reshape(len(flat), -1)), grads.reshape(len(flat), -1)
    )
    return flat.reshape(x.shape)


FUNCTIONS: Final[dict[str, Any]] = {
    name: function
    for op in ("resample", "adaptive_pool", "interpolate")
    for name, function in ((op, _forward(op)), (f"{op}_backward", _backward(op)))
}
