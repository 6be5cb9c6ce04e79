"""Normalisation with NumPy.

All of them are one computation; they differ in the axes over which statistics are taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..wire._graph import DnnTensor

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


def _varying(x: Array, scale: Array) -> Axes:
    """Layer norm: the axes in which the scale varies."""
    return tuple(axis for axis in range(x.ndim) if scale.shape[axis] != 1)


def _space(x: Array, scale: Array) -> Axes:
    """Instance norm: all axes of space."""
    del scale
    return tuple(range(2, x.ndim))


def _batch(x: Array, scale: Array) -> Axes:
    """Batch norm: all axes but that of channels."""
    del scale
    return (0, *range(2, x.ndim))


def _forward(axes_of: Callable[[Array, Array], Axes], *, centred: bool = True) -> Any:
    def compute(
        inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
    ) -> dict[str, Array]:
        del attributes, outputs
        x, scale = inputs["input"], inputs["scale"]
        axes, epsilon = axes_of(x, scale), inputs["epsilon"]
        share = _share(x, axes)
        if share is not None:
            x = x * share
            epsilon = np.maximum(epsilon * share * share, np.finfo(x.dtype).tiny)
        mean = x.mean(axes, keepdims=True) if centred else x.dtype.type(0)
        variance = np.square(x - mean).mean(axes, keepdims=True)
        inverse = 1 / np.sqrt(variance + epsilon)
        y = (x - mean) * inverse * scale
        if share is not None:
            mean, variance, inverse = mean / share, variance / share / share, inverse * share
        if "bias" in inputs:
            y = y + inputs["bias"]
        results = {"y": y, "mean": mean, "inv_variance": inverse}
        if "momentum" in inputs:
            count = x.size // variance.size
            unbiased = variance * (count / max(1, count - 1))
            for name, before, now in (
                ("next_running_mean", inputs["in_running_mean"], mean),
                ("next_running_var", inputs["in_running_var"], unbiased),
            ):
                momentum = inputs["momentum"]
                results[name] = (1 - momentum) * before + momentum * now
        return results

    return compute


def _share(x: Array, axes: Axes) -> Array | None:
    """Return powers of two by which squares of ``x`` do not overflow; None if none do anyway."""
    _, exponents = np.frexp(np.abs(x).max(axes, keepdims=True, initial=0))
    large = exponents > np.finfo(x.dtype).maxexp // 2 - 16
    if not large.any():
        return None
    return np.asarray(np.ldexp(x.dtype.type(1), np.where(large, -exponents, 0)))


def _backward(axes_of: Callable[[Array, Array], Axes], *, centred: bool = True) -> Any:
    def compute(
        inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
    ) -> dict[str, Array]:
        del attributes
        shape = outputs["dscale"].shape
        others = tuple(axis for axis, size in enumerate(shape) if size == 1)
        return _gradients(axes_of, inputs, others, centred=centred)

    return compute


def _gradients(
    axes_of: Callable[[Array, Array], Axes],
    inputs: Mapping[str, Array],
    others: Axes,
    *,
    centred: bool = True,
) -> dict[str, Array]:
    """The gradients; those of the parameters are sums over the axes ``others``."""
    x, scale, grad = inputs["input"], inputs["scale"], inputs["grad"]
    axes, inverse = axes_of(x, scale), inputs["inv_variance"]
    normal = (x - inputs["mean"] if centred else x) * inverse
    scaled = grad * scale
    dx = scaled - normal * (scaled * normal).mean(axes, keepdims=True)
    if centred:
        dx = dx - scaled.mean(axes, keepdims=True)
    return {
        "dx": dx * inverse,
        "dscale": (grad * normal).sum(others, keepdims=True),
        "dbias": grad.sum(others, keepdims=True),
    }


def _inference(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del attributes, outputs
    normal = (inputs["input"] - inputs["mean"]) * inputs["inv_variance"]
    return {"y": normal * inputs["scale"] + inputs["bias"]}


def _grouped(array: Array, groups: int) -> Array:
    """The channels as a dimension of groups, and one of the channels of a group."""
    n, channels = array.shape[:2]
    return array.reshape(n, groups, channels // groups, *array.shape[2:])


def _group(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    groups, x = attributes["groups"], inputs["input"]
    split = {name: _grouped(inputs[name], groups) for name in ("input", "scale", "bias")}
    found = _forward(_space)({**split, "epsilon": inputs["epsilon"]}, {}, outputs)
    shape = (x.shape[0], groups, *(1 for _ in x.shape[2:]))
    return {
        "y": found["y"].reshape(x.shape),
        "mean": found["mean"].reshape(shape),
        "inv_variance": found["inv_variance"].reshape(shape),
    }


def _group_backward(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del outputs
    groups, x = attributes["groups"], inputs["input"]
    split = {name: _grouped(inputs[name], groups) for name in ("input", "scale", "grad")}
    shape = (x.shape[0], groups, *(1 for _ in range(x.ndim - 1)))
    kept = {name: inputs[name].reshape(shape) for name in ("mean", "inv_variance")}
    found = _gradients(_space, {**split, **kept}, (0, *range(3, x.ndim + 1)))
    across = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    return {
        "dx": found["dx"].reshape(x.shape),
        "dscale": found["dscale"].reshape(across),
        "dbias": found["dbias"].reshape(across),
    }


FUNCTIONS: Final[dict[str, Any]] = {
    "layernorm": _forward(_varying),
    "layernorm_backward": _backward(_varying),
    "rmsnorm": _forward(_varying, centred=False),
    "rmsnorm_backward": _backward(_varying, centred=False),
    "instancenorm": _forward(_space),
    "instancenorm_backward": _backward(_space),
    "groupnorm": _group,
    "groupnorm_backward": _group_backward,
    "batchnorm": _forward(_batch),
    "batchnorm_backward": _backward(_batch),
    "batchnorm_inference": _inference,
}
