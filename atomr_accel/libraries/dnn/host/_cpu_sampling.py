"""Samples of images at positions, and windows of images, with NumPy."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from ...._dtypes import DTYPES
from ....executors.indices import require_within
from ..wire._sampling_messages import AffineGrid, MoveWindows, SampleGrid
from ._cpu_routines import view_of, wide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ....backends.cpu.host.context import CpuContext

Array = np.ndarray[Any, Any]


class Spot(NamedTuple):
    """Positions along a dimension, all of shape (batch, places).

    Attributes:
        base: the element before a position.
        after: the share of the element behind it.
        slope: by how much the position among elements moves with that in the grid.
        found: whether there may be elements.
    """

    base: Array
    after: Array
    slope: Array
    found: Array


@final
class CpuSampling:
    """Executes samples of images, windows of them, and their gradients."""

    def __init__(self, context: CpuContext) -> None:
        self._context: Final = context
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {
            AffineGrid: self._affine,
            SampleGrid: self._sample,
            MoveWindows: self._windows,
        }

    def _affine(self, message: AffineGrid) -> None:
        self._context.check()
        read, dtype, dims = self._context.array, DTYPES[message.dtype], len(message.places)
        theta = read(message.theta, (message.batch, dims, dims + 1), dtype)
        grid = read(message.grid, (message.batch, math.prod(message.places), dims), dtype)
        points = _points(message.places, aligned=message.aligned).astype(wide(theta[:0]).dtype)
        with np.errstate(all="ignore"):
            if message.backward:
                made = np.einsum("npi,pj->nij", wide(grid), points)
                theta[...] = made.astype(dtype)
            else:
                grid[...] = np.einsum("nij,pj->npi", wide(theta), points).astype(dtype)

    # --- elements at positions ------------------------------------------------------------

    def _sample(self, message: SampleGrid) -> None:
        self._context.check()
        image, result = message.image, message.result
        (batch, channels, *space), places = image.shape, result.shape[2:]
        dtype, dims, count = DTYPES[image.dtype], len(space), math.prod(places)
        x = view_of(self._context, message.x, image)
        y = view_of(self._context, message.y, result)
        grid = wide(self._context.array(message.grid, (batch, count, dims), dtype))
        with np.errstate(all="ignore"):
            spots = [
                _located(grid[..., dims - 1 - d], size, message) for d, size in enumerate(space)
            ]
            corners = [_Corner(spots, corner, space) for corner in np.ndindex(*(2,) * dims)]
            if message.kind == "sample":
                flat = wide(x).reshape(batch, channels, math.prod(space))
                made = sum(_weighed(each.weight(), each.take(flat)) for each in corners)
                y[...] = np.asarray(made).reshape(y.shape).astype(dtype)
                return
            slopes = wide(y).reshape(batch, channels, count)
            if message.kind == "image":
                total = np.zeros((batch, channels, math.prod(space)), slopes.dtype)
                for each in corners:
                    each.add(total, _weighed(each.weight(), slopes))
                x[...] = total.reshape(x.shape).astype(dtype)
                return
            flat = wide(x).reshape(batch, channels, math.prod(space))
            sums = np.zeros(grid.shape, grid.dtype)
            for each in corners if message.mode == "bilinear" else ():
                product = (each.take(flat) * slopes).sum(1)
                for d in range(dims):
                    term = _weighed(each.weight(d), product[:, None])[:, 0]
                    sums[..., dims - 1 - d] += term if each.bits[d] else -term
            moved = np.stack([spot.slope for spot in reversed(spots)], -1)
            made = np.where(moved == 0, 0, sums * moved)
            self._context.array(message.dgrid, grid.shape, dtype)[...] = made.astype(dtype)

    # --- windows --------------------------------------------------------------------------

    def _windows(self, message: MoveWindows) -> None:
        self._context.check()
        kind = message.kind
        x = view_of(self._context, message.x, message.image)
        y = view_of(self._context, message.y, message.result)
        if kind in ("unfold", "fold"):
            self._columns(message, x, y)
            return
        indices = view_of(self._context, message.indices, message.result, "int64")
        if kind == "pool":
            y[...], indices[...] = _largest(message, x)
            return
        count = math.prod(x.shape[2:])
        require_within(indices, 0, count - 1, "indices")
        places = indices.reshape(*y.shape[:2], math.prod(y.shape[2:]))
        if kind == "unpool":
            flat = np.zeros((*x.shape[:2], count), x.dtype)
            np.put_along_axis(flat, places, y.reshape(places.shape), -1)
            x[...] = flat.reshape(x.shape)
        else:
            found = np.take_along_axis(x.reshape(*x.shape[:2], count), places, -1)
            y[...] = found.reshape(y.shape)

    def _columns(self, message: MoveWindows, x: Array, y: Array) -> None:
        batch, channels, *space = x.shape
        places = y.shape[2:]
        padded = [size + 2 * pad for size, pad in zip(space, message.padding, strict=True)]
        inner: Any = (
            ...,
            *(slice(pad, pad + size) for size, pad in zip(space, message.padding, strict=True)),
        )
        columns = y.reshape(batch, channels, math.prod(message.window), *places)
        whole = np.zeros((batch, channels, *padded), wide(x[:0]).dtype)
        if message.kind == "unfold":
            whole[inner] = x
            for number, tap in enumerate(_taps(message, places)):
                columns[:, :, number] = whole[tap]
        else:
            for number, tap in enumerate(_taps(message, places)):
                whole[tap] += columns[:, :, number]
            x[...] = whole[inner].astype(x.dtype)


class _Corner:
    """The elements on one side of positions, in each dimension.

    Args:
        spots: positions in each dimension.
        bits: for each dimension, whether the later of two elements is meant.
        space: sizes of the images.
    """

    def __init__(self, spots: list[Spot], bits: tuple[int, ...], space: list[int]) -> None:
        self.bits: Final = bits
        self._spots: Final = spots
        inside: Array = np.all([each.found for each in spots], 0)
        index: Any = 0
        for spot, bit, size in zip(spots, bits, space, strict=True):
            element = spot.base + bit
            inside = inside & (element >= 0) & (element < size)
            index = index * size + np.clip(element, 0, size - 1)
        self._inside, self._index = inside[:, None], index[:, None]

    def weight(self, without: int | None = None) -> Array:
        """Return the share of the elements, or of all dimensions but one; 0 outside."""
        weight = self._inside[:, 0].astype(self._spots[0].after.dtype)
        for d, (spot, bit) in enumerate(zip(self._spots, self.bits, strict=True)):
            if d != without:
                weight = weight * (spot.after if bit else 1 - spot.after)
        return weight

    def take(self, flat: Array) -> Array:
        """Return the elements, (batch, channels, places), and zeros outside."""
        index = np.broadcast_to(self._index, (*flat.shape[:2], self._index.shape[-1]))
        return np.where(self._inside, np.take_along_axis(flat, index, 2), 0)

    def add(self, total: Array, terms: Array) -> None:
        """Add terms to the elements."""
        batch, channels = np.ogrid[: total.shape[0], : total.shape[1]]
        np.add.at(total, (batch[..., None], channels[..., None], self._index), terms)


def _weighed(weight: Array, values: Array) -> Array:
    """Return products; those of weight 0 do not count, even of NaN."""
    factor = weight[:, None]
    return np.where(factor != 0, factor * values, 0)


def _located(g: Array, size: int, message: SampleGrid) -> Spot:
    """Return the elements at positions from -1 to 1."""
    top = g.dtype.type(size - 1)
    half = g.dtype.type(0.5)
    where = (g + 1) * half * top if message.aligned else ((g + 1) * size - 1) * half
    slope = np.full_like(g, (size - 1 if message.aligned else size) * half)
    if message.padding == "reflection":
        low, span = (0 * half, top) if message.aligned else (-half, g.dtype.type(size))
        beyond = where - low
        slope = np.where(beyond < 0, -slope, slope)
        rest = np.fmod(np.abs(beyond), 2 * span) if span else np.zeros_like(g)
        back = ~(rest < span)
        where = np.where(back, 2 * span - rest, rest) + low
        slope = np.where(back, -slope, slope)
    if message.padding != "zeros":
        where = np.where(where > 0, where, 0)  # NaN becomes 0
        slope = np.where((where > 0) & (where < top), slope, 0)
        where = np.minimum(where, top)
    found = (where >= -1) & (where < size)
    where = np.where(found, where, 0)
    if message.mode == "nearest":
        return Spot(np.rint(where).astype(np.int64), np.zeros_like(g), slope, found)
    base = np.floor(where)
    return Spot(base.astype(np.int64), where - base, slope, found)


def _points(places: tuple[int, ...], *, aligned: bool) -> Array:
    """Return (places, dimensions + 1): positions from -1 to 1, the last dimension first, and 1."""
    axes = []
    for size in places:
        i = np.arange(size)
        if size == 1:
            axes.append(np.zeros(1))
        else:
            axes.append(2 * i / (size - 1) - 1 if aligned else (2 * i + 1) / size - 1)
    mesh = np.meshgrid(*axes, indexing="ij")
    return np.stack([*(each.ravel() for each in reversed(mesh)), np.ones(mesh[0].size)], -1)


def _taps(message: MoveWindows, places: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Each element of the window, as an index of a padded image."""
    numbers = zip(message.window, message.stride, message.dilation, places, strict=True)
    axes = [
        [slice(tap * apart, tap * apart + (count - 1) * step + 1, step) for tap in range(size)]
        for size, step, apart, count in numbers
    ]
    for each in itertools.product(*axes):
        yield (..., *each)


def _largest(message: MoveWindows, x: Array) -> tuple[Array, Array]:
    """Return the largest element of each window, and its index in space."""
    places = message.result.shape[2:]
    numbers = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    around = []
    for size, pad, window, step, count in zip(
        x.shape[2:], message.padding, message.window, message.stride, places, strict=True
    ):
        around.append((pad, max(0, (count - 1) * step + window - pad - size)))
    values = np.pad(wide(x), [(0, 0), (0, 0), *around], constant_values=-np.inf)
    indices = np.pad(numbers, around, constant_values=-1)
    best = np.full(message.result.shape, -np.inf, values.dtype)
    found = np.full(message.result.shape, -1)
    for tap in _taps(message, places):
        value, index = values[tap], indices[tap[1:]]
        better = (value > best) | (np.isnan(value) & ~np.isnan(best)) | (found < 0)
        better &= index >= 0
        best, found = np.where(better, value, best), np.where(better, index, found)
    return best.astype(x.dtype), found
