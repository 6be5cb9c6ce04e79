"""Convolutions with NumPy: a matrix product for each tap of the filter."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..wire._nodes import FilterWindow, groups_of, window_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..wire._graph import DnnTensor

Array = np.ndarray[Any, Any]


def _taps(
    window: FilterWindow, filter_: tuple[int, ...], positions: tuple[int, ...]
) -> list[tuple[Any, Any]]:
    """Each tap of a filter, and what of the padded image it meets at all positions.

    Both are indices into the last dimensions.
    """
    axes: list[list[slice]] = []
    for size, count, stride, dilation in zip(
        filter_, positions, window.stride, window.dilation, strict=True
    ):
        axes.append([])
        for at in range(0, dilation * size, dilation):
            axes[-1].append(slice(at, at + stride * (count - 1) + 1, stride))
    taps = itertools.product(*map(range, filter_))
    found: list[tuple[Any, Any]] = []
    for tap, where in zip(taps, itertools.product(*axes), strict=True):
        found.append(((..., *tap), (..., *where)))
    return found


def _grouped(array: Array, groups: int) -> Array:
    """(N, C, ...) as (N, groups, C / groups, positions)."""
    n, channels = array.shape[:2]
    return array.reshape(n, groups, channels // groups, -1)


def _padded(image: Array, window: FilterWindow) -> Array:
    return np.pad(image, ((0, 0), (0, 0), *zip(window.before, window.after, strict=True)))


def _by_group(weight: Array, groups: int) -> Array:
    """(K, C / groups, ...) as (groups, K / groups, C / groups, ...)."""
    return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])


def _conv_fprop(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    image, weight, shape = inputs["image"], inputs["weight"], outputs["y"].shape
    window = window_of("conv_fprop", image.ndim - 2, attributes)
    groups = groups_of("conv_fprop", image.shape[1], weight.shape)
    padded, by_group = _padded(image, window), _by_group(weight, groups)
    y = _grouped(np.zeros(shape, image.dtype), groups)
    split = padded.reshape(len(image), groups, weight.shape[1], *padded.shape[2:])
    for tap, where in _taps(window, weight.shape[2:], shape[2:]):
        y += by_group[tap] @ split[where].reshape(*split.shape[:3], -1)
    return {"y": y.reshape(shape)}


def _conv_dgrad(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    loss, weight, shape = inputs["loss"], inputs["filter"], outputs["dx"].shape
    window = window_of("conv_dgrad", loss.ndim - 2, attributes)
    groups = groups_of("conv_dgrad", shape[1], weight.shape)
    by_group, grouped = _by_group(weight, groups), _grouped(loss, groups)
    padded = _padded(np.zeros(shape, loss.dtype), window)
    for tap, where in _taps(window, weight.shape[2:], loss.shape[2:]):
        part = np.swapaxes(by_group[tap], -1, -2) @ grouped
        padded[where] += part.reshape(*shape[:2], *loss.shape[2:])
    inside: Any = (
        ...,
        *(
            slice(before, before + size)
            for before, size in zip(window.before, shape[2:], strict=True)
        ),
    )
    return {"dx": padded[inside]}


def _conv_wgrad(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    image, loss, shape = inputs["image"], inputs["loss"], outputs["dw"].shape
    window = window_of("conv_wgrad", image.ndim - 2, attributes)
    groups = groups_of("conv_wgrad", image.shape[1], shape)
    padded, grouped = _padded(image, window), _grouped(loss, groups)
    dw = np.zeros(shape, image.dtype)
    by_group = _by_group(dw, groups)
    for tap, where in _taps(window, shape[2:], loss.shape[2:]):
        met = np.swapaxes(_grouped(padded[where], groups), -1, -2)
        by_group[tap] = (grouped @ met).sum(0)
    return {"dw": dw}


FUNCTIONS: Final = {
    "conv_fprop": _conv_fprop,
    "conv_dgrad": _conv_dgrad,
    "conv_wgrad": _conv_wgrad,
}
