"""Gradients of expressions: reductions, views, products of matrices, and NumPy's ufuncs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy import special

from .._dtypes import is_float
from .._errors import Unsupported
from ..arrays.expressions import Expression, Operand, broadcast, cast, parts_of
from ..arrays.expressions.expression import view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..arrays import GpuRef

_KEPT: Final = ("reduce", "matmul")
"""Kinds of nodes whose values the forward pass keeps, because they are dear to compute again."""


def with_args(part: Expression, args: tuple[Operand, ...]) -> Expression:
    """Return an expression's outermost function of other operands, which have the same forms."""
    return Expression(part.kind, part.name, args, part.params, part.shape, part.dtype)


def kept_nodes(root: Expression) -> list[Expression]:
    """Return the inner nodes of an expression whose values its gradient needs."""
    return [
        part
        for part in parts_of(root)
        if part is not root and isinstance(part, Expression) and part.kind in _KEPT
    ]


def unbroadcast(grad: Operand, shape: tuple[int, ...]) -> Operand:
    """Add up a gradient over the axes along which an operand of a shape was repeated."""
    if grad.shape == shape:
        return grad
    extra = len(grad.shape) - len(shape)
    if extra:
        grad = grad.sum(axis=tuple(range(extra)))
    repeated = tuple(
        at
        for at, (one, other) in enumerate(zip(shape, grad.shape, strict=True))
        if one == 1 and other != 1
    )
    return grad.sum(axis=repeated, keepdims=True) if repeated else grad


def gradients(
    root: Expression,
    grad: Operand,
    wanted: Iterable[Operand],
    kept: dict[int, GpuRef],
    evaluate: Callable[[Expression], GpuRef],
) -> list[Operand | None]:
    """Return the gradients of an expression with respect to some of the refs that it is made of."""
    goals = list(wanted)
    ids = {id(goal) for goal in goals}
    parts = list(parts_of(root))
    values: dict[int, Operand] = {}
    depends: set[int] = set()
    for part in parts:
        values[id(part)] = part
        if id(part) in ids:
            depends.add(id(part))
        elif isinstance(part, Expression):
            if is_float(part.dtype) and any(id(arg) in depends for arg in part.args):
                depends.add(id(part))
            if id(part) in kept:
                values[id(part)] = kept[id(part)]
            elif part.args:
                values[id(part)] = with_args(part, tuple(values[id(arg)] for arg in part.args))
    slopes: dict[int, Operand] = {id(root): grad}
    for part in reversed(parts):
        slope = slopes.get(id(part)) if id(part) in ids else slopes.pop(id(part), None)
        if slope is None or not isinstance(part, Expression) or id(part) not in depends:
            continue
        if part.kind in _KEPT and isinstance(slope, Expression):
            slope = evaluate(slope)
        args = tuple(values[id(arg)] for arg in part.args)
        for arg, slope_of_arg in zip(
            part.args, _through(part, args, values[id(part)], slope), strict=True
        ):
            if slope_of_arg is None or id(arg) not in depends:
                continue
            made = cast(unbroadcast(slope_of_arg, arg.shape), arg.dtype)
            before = slopes.get(id(arg))
            slopes[id(arg)] = made if before is None else before + made
    return [slopes.get(id(goal)) for goal in goals]


def _through(
    part: Expression, args: tuple[Any, ...], value: Any, slope: Any
) -> tuple[Operand | None, ...]:
    """Return the gradients with respect to the operands of one node."""
    kind = part.kind
    if kind == "ufunc":
        partial = _PARTIALS.get(part.name)
        if partial is None:
            if part.name in _FLAT:
                return (None,) * len(args)
            raise Unsupported(
                f"numpy's {part.name} has no gradient rule; write it with functions that have "
                "one, or give it one: atomr_accel.train.custom(function, gradient)"
            )
        made: tuple[Operand | None, ...] = partial(slope, value, *args)
        return made
    if kind == "cast":
        return (slope,)
    if kind == "where":
        chosen: Any = np.where  # which makes expressions here
        return None, chosen(args[0], slope, 0), chosen(args[0], 0, slope)
    if kind == "view":
        return (_seen_back(slope, part.params[0], args[0].shape),)
    if kind == "matmul":
        return _product_back(slope, *args)
    if kind == "reduce":
        return (_reduced_back(part.name, slope, value, args[0], *part.params),)
    return (None,) * len(args)  # indices of the largest, which do not move


def _seen_back(slope: Operand, axes: tuple[int | None, ...], shape: tuple[int, ...]) -> Operand:
    repeated = tuple(at for at, axis in enumerate(axes) if axis is None)
    if repeated:
        slope = slope.sum(axis=repeated)
    left = [axis for axis in axes if axis is not None]
    places = tuple(left.index(axis) if axis in left else None for axis in range(len(shape)))
    return view(slope, places, shape)


def _reduced_back(
    name: str, slope: Any, value: Any, x: Any, axes: tuple[int, ...], keepdims: bool
) -> Operand:
    def spread(reduced: Operand) -> Operand:
        if keepdims:
            return broadcast(reduced, x.shape)
        left = [axis for axis in range(len(x.shape)) if axis not in axes]
        places = tuple(None if axis in axes else left.index(axis) for axis in range(len(x.shape)))
        return view(reduced, places, x.shape)

    if name == "add":
        return spread(slope)
    if name in ("maximum", "minimum"):
        # Where several are the largest, each gets an equal share.
        hits = cast(x == spread(value), x.dtype)
        share = hits / spread(hits.sum(axis=axes, keepdims=keepdims))
        return spread(slope) * share
    raise Unsupported(
        f"the reduction numpy.{name} has no gradient rule; write it with sums, or give it one: "
        "atomr_accel.train.custom(function, gradient)"
    )


def _product_back(slope: Any, a: Any, b: Any) -> tuple[Operand, Operand]:
    if len(a.shape) == 1 and len(b.shape) == 1:
        return slope * b, slope * a
    if len(a.shape) == 1:
        slope = np.expand_dims(slope, -2)
        row = slope @ _transposed(b)
        return np.squeeze(row, -2), np.expand_dims(a, -1) @ slope
    if len(b.shape) == 1:
        slope = np.expand_dims(slope, -1)
        column = _transposed(a) @ slope
        return slope @ np.expand_dims(b, 0), np.squeeze(column, -1)
    return slope @ _transposed(b), _transposed(a) @ slope


def _transposed(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


_FLAT: Final = frozenset(
    {
        *("sign", "floor", "ceil", "trunc", "rint", "heaviside", "floor_divide"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_and", "logical_or", "logical_xor", "logical_not"),
        *("isnan", "isinf", "isfinite", "signbit"),
    }
)
"""Functions that are constant wherever they have a slope."""


def _chosen(name: str) -> Callable[..., tuple[Any, Any]]:
    better: Any = np.greater if name in ("maximum", "fmax") else np.less
    choose: Any = np.where

    def partial(g: Any, _y: Any, a: Any, b: Any) -> tuple[Any, Any]:
        # Equal ones get half each.
        first = choose(better(a, b), 1.0, choose(a == b, 0.5, 0.0))
        return g * cast(first, g.dtype), g * cast(1.0 - first, g.dtype)

    return partial


def _power(g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    base = np.where(b == 0, 0, b * np.power(a, np.where(b == 0, 1, b - 1)))
    positive = a > 0
    return g * base, g * np.where(positive, y * np.log(np.where(positive, a, 1)), 0)


def _log_where(a: Any, b: Any) -> Any:
    """Return log(b), and 0 where ``a`` is 0."""
    xlogy: Any = special.xlogy
    return xlogy(cast(a != 0, a.dtype), b)


_ROOT_PI: Final = math.sqrt(math.pi)

_PARTIALS: Final[dict[str, Any]] = {
    "add": lambda g, _y, _a, _b: (g, g),
    "subtract": lambda g, _y, _a, _b: (g, -g),
    "multiply": lambda g, _y, a, b: (g * b, g * a),
    "divide": lambda g, y, _a, b: (g / b, -g * y / b),
    "remainder": lambda g, _y, a, b: (g, -g * np.floor(a / b)),
    "fmod": lambda g, _y, a, b: (g, -g * np.trunc(a / b)),
    "power": _power,
    "float_power": _power,
    "negative": lambda g, _y, _x: (-g,),
    "positive": lambda g, _y, _x: (g,),
    "conjugate": lambda g, _y, _x: (g,),
    "absolute": lambda g, _y, x: (g * np.sign(x),),
    "fabs": lambda g, _y, x: (g * np.sign(x),),
    "copysign": lambda g, _y, a, b: (
        g * np.sign(a) * np.copysign(1.0, b),
        None,
    ),
    "reciprocal": lambda g, y, _x: (-g * y * y,),
    "square": lambda g, _y, x: (g * 2 * x,),
    "sqrt": lambda g, y, _x: (g / (2 * y),),
    "cbrt": lambda g, y, _x: (g / (3 * y * y),),
    "exp": lambda g, y, _x: (g * y,),
    "exp2": lambda g, y, _x: (g * y * math.log(2),),
    "expm1": lambda g, y, _x: (g * (y + 1),),
    "log": lambda g, _y, x: (g / x,),
    "log2": lambda g, _y, x: (g / (x * math.log(2)),),
    "log10": lambda g, _y, x: (g / (x * math.log(10)),),
    "log1p": lambda g, _y, x: (g / (1 + x),),
    "logaddexp": lambda g, y, a, b: (g * np.exp(a - y), g * np.exp(b - y)),
    "logaddexp2": lambda g, y, a, b: (g * np.exp2(a - y), g * np.exp2(b - y)),
    "sin": lambda g, _y, x: (g * np.cos(x),),
    "cos": lambda g, _y, x: (-g * np.sin(x),),
    "tan": lambda g, y, _x: (g * (1 + y * y),),
    "arcsin": lambda g, _y, x: (g / np.sqrt(1 - x * x),),
    "arccos": lambda g, _y, x: (-g / np.sqrt(1 - x * x),),
    "arctan": lambda g, _y, x: (g / (1 + x * x),),
    "arctan2": lambda g, _y, a, b: (g * b / (a * a + b * b), -g * a / (a * a + b * b)),
    "hypot": lambda g, y, a, b: (g * a / y, g * b / y),
    "sinh": lambda g, _y, x: (g * np.cosh(x),),
    "cosh": lambda g, _y, x: (g * np.sinh(x),),
    "tanh": lambda g, y, _x: (g * (1 - y * y),),
    "arcsinh": lambda g, _y, x: (g / np.sqrt(x * x + 1),),
    "arccosh": lambda g, _y, x: (g / np.sqrt(x * x - 1),),
    "arctanh": lambda g, _y, x: (g / (1 - x * x),),
    "deg2rad": lambda g, _y, _x: (g * (math.pi / 180),),
    "radians": lambda g, _y, _x: (g * (math.pi / 180),),
    "rad2deg": lambda g, _y, _x: (g * (180 / math.pi),),
    "degrees": lambda g, _y, _x: (g * (180 / math.pi),),
    "maximum": _chosen("maximum"),
    "minimum": _chosen("minimum"),
    "fmax": _chosen("fmax"),
    "fmin": _chosen("fmin"),
    "erf": lambda g, _y, x: (g * (2 / _ROOT_PI) * np.exp(-x * x),),
    "erfc": lambda g, _y, x: (-g * (2 / _ROOT_PI) * np.exp(-x * x),),
    "expit": lambda g, y, _x: (g * y * (1 - y),),
    "logit": lambda g, _y, x: (g / (x * (1 - x)),),
    "ndtr": lambda g, _y, x: (g * np.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi)),),
    "xlogy": lambda g, _y, a, b: (
        g * _log_where(a, b),
        g * np.where(a == 0, 0, a / b),
    ),
    "xlog1py": lambda g, _y, a, b: (
        g * _log_where(a, 1 + b),
        g * np.where(a == 0, 0, a / (1 + b)),
    ),
    "entr": lambda g, _y, x: (g * (-1 - np.log(x)),),
    "rel_entr": lambda g, _y, a, b: (g * (np.log(a / b) + 1), -g * a / b),
}
"""Gradients of ufuncs: from that of the result, the result, and the operands."""


def differentiable_ufuncs() -> tuple[str, ...]:
    """Return the names of the ufuncs that have a gradient rule."""
    return tuple(_PARTIALS)
