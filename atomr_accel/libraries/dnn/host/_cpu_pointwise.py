"""Pointwise operations, reductions and products with NumPy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....host.host import IMPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..wire._graph import DnnTensor

Array = np.ndarray[Any, Any]

_SLOPE: Final = math.sqrt(2 / math.pi)
_CUBIC: Final = 0.044715
_FURTHEST: Final = 64.0
"""Beyond, GELU is 0 or its argument, in every type."""

_FURTHEST_GATE: Final = 2048.0
"""Beyond, the sigmoid is 0 or 1, in every type."""


def special(name: str) -> Callable[..., Any]:
    """A function of ``scipy.special``, imported when it is first called.

    That takes as long as all else that a host imports, and rebuilds wait for it.
    """

    def function(*args: Any, **kwargs: Any) -> Any:
        with IMPORTS.late():
            from scipy import special

        return getattr(special, name)(*args, **kwargs)

    return function


expit: Final = special("expit")
_erfc: Final = special("erfc")


def _relu(x: Array, negative_slope: Any, lower_clip: Any, upper_clip: Any) -> Any:
    low = x.dtype.type(lower_clip or 0.0)
    # Without a slope nothing is multiplied, because 0 times infinity is NaN.
    below = low + negative_slope * (x - low) if negative_slope else np.maximum(x, low)
    y = np.where(x > low, x, below)
    return y if upper_clip is None else np.minimum(y, x.dtype.type(upper_clip))


def _relu_backward(
    loss: Array, x: Array, negative_slope: Any, lower_clip: Any, upper_clip: Any
) -> Any:
    flat = np.where(np.isnan(loss), loss, 0)
    below = loss * x.dtype.type(negative_slope) if negative_slope else flat
    gradient = np.where(x > (lower_clip or 0.0), loss, below)
    if upper_clip is not None:
        gradient = np.where(x < upper_clip, gradient, flat)
    return np.where(np.isnan(x), x, gradient)


def _within(x: Array, most: float) -> Array:
    """Clip values to ``most``, at which a function has already reached its limit.

    Beyond it the function would be a product of 0 and infinity. NaN stays NaN.
    """
    return np.clip(x, -most, most)


def _gate(x: Array, swish_beta: float) -> Array:
    """Return ``swish_beta * x``, clipped to the range in which the sigmoid varies."""
    if not swish_beta:
        return np.where(np.isnan(x), x, 0)
    return _within(x.dtype.type(swish_beta) * x, _FURTHEST_GATE)


def _swish(x: Array, swish_beta: float) -> Any:
    s = expit(_gate(x, swish_beta))
    return np.where(s == 0, 0, x) * s


def _swish_slope(x: Array, swish_beta: float) -> Any:
    gate = _gate(x, swish_beta)
    s = expit(gate)
    return s + gate * s * (1 - s)


def _normal(x: Array) -> Any:
    """The normal distribution function; 1 + erf would lose its digits below zero."""
    return 0.5 * _erfc(x / -math.sqrt(2))


def _gelu(x: Array) -> Any:
    x = np.maximum(x, x.dtype.type(-_FURTHEST))
    return x * _normal(x)


def _gelu_slope(x: Array) -> Any:
    x = _within(x, _FURTHEST)
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return _normal(x) + x * density


def _gelu_tanh(x: Array) -> Any:
    x = np.maximum(x, x.dtype.type(-_FURTHEST))
    near = _within(x, _FURTHEST)
    return 0.5 * x * (1 + np.tanh(_SLOPE * (near + _CUBIC * near**3)))


def _gelu_tanh_slope(x: Array) -> Any:
    x = _within(x, _FURTHEST)
    t = np.tanh(_SLOPE * (x + _CUBIC * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * _SLOPE * (1 + 3 * _CUBIC * x * x)


def _elu(x: Array) -> Any:
    return np.where(x > 0, x, np.expm1(x))


def _elu_slope(x: Array) -> Any:
    return np.where(x > 0, 1.0, np.exp(x))


def _sigmoid_slope(x: Array) -> Any:
    s = expit(x)
    return s * (1 - s)


def _tanh_slope(x: Array) -> Any:
    return 1 - np.square(np.tanh(x))


def _softplus(x: Array) -> Any:
    return np.logaddexp(x, x.dtype.type(0))


_UNARY: Final[dict[str, Callable[..., Any]]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "elu": _elu,
    "erf": special("erf"),
    "exp": np.exp,
    "floor": np.floor,
    "gelu": _gelu,
    "gelu_approx_tanh": _gelu_tanh,
    "identity": lambda x: x,
    "log": np.log,
    "logical_not": np.logical_not,
    "neg": np.negative,
    "reciprocal": lambda x: 1 / x,
    "relu": _relu,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": expit,
    "sin": np.sin,
    "softplus": _softplus,
    "sqrt": np.sqrt,
    "swish": _swish,
    "tan": np.tan,
    "tanh": np.tanh,
}
_SLOPES: Final[dict[str, Callable[..., Any]]] = {
    "elu_backward": _elu_slope,
    "gelu_backward": _gelu_slope,
    "gelu_approx_tanh_backward": _gelu_tanh_slope,
    "sigmoid_backward": _sigmoid_slope,
    "softplus_backward": expit,
    "swish_backward": _swish_slope,
    "tanh_backward": _tanh_slope,
}
_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": np.add,
    "add_square": lambda a, b: a + b * b,
    "cmp_eq": np.equal,
    "cmp_ge": np.greater_equal,
    "cmp_gt": np.greater,
    "cmp_le": np.less_equal,
    "cmp_lt": np.less,
    "cmp_neq": np.not_equal,
    "div": np.divide,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "mul": np.multiply,
    "pow": np.power,
    "sub": np.subtract,
}


def _of_inputs(function: Callable[..., Any]) -> Any:
    """Return the operation that is a function of its inputs, in their order, and attributes."""

    def compute(
        inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
    ) -> dict[str, Array]:
        del outputs
        return {"y": function(*inputs.values(), **attributes)}

    return compute


def _slope(function: Callable[..., Any]) -> Any:
    def compute(
        inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
    ) -> dict[str, Array]:
        del outputs
        loss = inputs["loss"]
        return {"y": loss * function(inputs["input"], **attributes).astype(loss.dtype)}

    return compute


def _gen_index(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    shape, axis = outputs["y"].shape, attributes["axis"]
    places = np.arange(shape[axis], dtype=np.int32)
    along = [1] * len(shape)
    along[axis] = -1
    del inputs
    return {"y": np.broadcast_to(places.reshape(along), shape)}


def _matmul(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del attributes, outputs
    return {"c": inputs["A"] @ inputs["B"]}


_REDUCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "ADD": np.sum,
    "AMAX": lambda x, **where: np.abs(x).max(**where),
    "AVG": np.mean,
    "MAX": np.max,
    "MIN": np.min,
    "MUL": np.prod,
    "NORM1": lambda x, **where: np.abs(x).sum(**where),
    "NORM2": lambda x, **where: np.sqrt(np.square(x).sum(**where)),
}


def _reduction(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del outputs
    function = _REDUCTIONS[attributes["mode"]]
    return {"y": function(inputs["input"], axis=tuple(attributes["axes"]), keepdims=True)}


def _genstats(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del attributes, outputs
    x = inputs["input"]
    axes = (0, *range(2, x.ndim))
    return {
        "sum": x.sum(axes, keepdims=True),
        "sq_sum": (x * x).sum(axes, keepdims=True),
    }


FUNCTIONS: Final[dict[str, Any]] = {
    **{op: _of_inputs(function) for op, function in (*_UNARY.items(), *_BINARY.items())},
    **{op: _slope(function) for op, function in _SLOPES.items()},
    "relu_backward": _of_inputs(_relu_backward),
    "binary_select": _of_inputs(lambda x, y, mask: np.where(mask != 0, x, y)),
    "gen_index": _gen_index,
    "matmul": _matmul,
    "reduction": _reduction,
    "genstats": _genstats,
}
