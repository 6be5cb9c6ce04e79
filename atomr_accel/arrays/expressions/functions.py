"""NumPy's functions for refs and expressions, except ufuncs."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import ml_dtypes
import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..._dtypes import HALVES, as_dtype, is_float, is_inexact
from ..._other_names import add_other_name
from ._methods import FUNCTIONS
from ._numbers import Number
from ._ufuncs import masked
from .axes import axes_of
from .expression import (
    Expression,
    Operand,
    Value,
    _kinds,
    arg_reduce,
    broadcast,
    broadcast_constant,
    cast,
    constant,
    converted,
    ufunc,
    values_of,
    view,
    where,
)
from .promotion import FLOAT32, MANY, clipped, common, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from .axes import Axis

__all__ = ["Number", "Operand", "Value"]

_F = TypeVar("_F", bound="Callable[..., Any]")
_FLOAT64: Final = as_dtype(np.float64)


def _stands_for(*functions: Callable[..., Any]) -> Callable[[_F], _F]:
    """The function is what those of NumPy do with refs."""

    def register(function: _F) -> _F:
        FUNCTIONS.update(dict.fromkeys(functions, function))
        return function

    return register


def _operand(value: Any) -> Operand:
    (known,) = values_of((value,))
    return known if isinstance(known, Operand) else constant(known)


def _dtype(dtype: DTypeLike | None) -> np.dtype[Any] | None:
    return None if dtype is None else as_dtype(dtype)


# --- reductions -----------------------------------------------------------------------------


def _reduction(name: str, *functions: Callable[..., Any]) -> None:
    def reduction(
        a: Any,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Operand:
        return masked(
            name,
            _operand(a),
            axis,
            _dtype(dtype),
            keepdims=keepdims,
            initial=None if initial is np._NoValue else initial,
            mask=values_of((where,))[0],
        )

    def without_dtype(
        a: Any,
        axis: Axis = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Operand:
        return reduction(a, axis, None, out, keepdims, initial, where)

    typed = name in ("add", "multiply")
    _stands_for(*functions)(reduction if typed else without_dtype)


_reduction("add", np.sum)
_reduction("multiply", np.prod)
_reduction("maximum", np.max, np.amax)
_reduction("minimum", np.min, np.amin)
_reduction("logical_or", np.any)
_reduction("logical_and", np.all)


@_stands_for(np.nanmax)
def _nanmax(a: Any, axis: Axis = None, out: None = None, *, keepdims: bool = False) -> Operand:
    return masked("fmax", _operand(a), axis, None, keepdims=keepdims)


@_stands_for(np.nanmin)
def _nanmin(a: Any, axis: Axis = None, out: None = None, *, keepdims: bool = False) -> Operand:
    return masked("fmin", _operand(a), axis, None, keepdims=keepdims)


def _without_nan(x: Operand, value: float) -> Operand:
    if not is_inexact(x.dtype):
        return x
    return where(ufunc("isnan", x), constant(value, x.dtype), x)


@_stands_for(np.nansum)
def _nansum(
    a: Any, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
) -> Operand:
    return _without_nan(_operand(a), 0).sum(axis, dtype, keepdims=keepdims)


@_stands_for(np.nanprod)
def _nanprod(
    a: Any, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
) -> Operand:
    return _without_nan(_operand(a), 1).prod(axis, dtype, keepdims=keepdims)


@_stands_for(np.nanmean)
def _nanmean(
    a: Any, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
) -> Operand:
    require_inexact(_operand(a), dtype)
    return _mean(a, axis, dtype, keepdims=keepdims, where=~ufunc("isnan", _operand(a)))


def require_inexact(x: Operand, dtype: DTypeLike | None) -> None:
    """Refuse to compute an inexact array, which may hold NaN, in integers."""
    if dtype is not None and is_inexact(x.dtype) and not is_inexact(as_dtype(dtype)):
        raise TypeError("If a is inexact, then dtype must be inexact")


@_stands_for(np.count_nonzero)
def _count_nonzero(a: Any, axis: Axis = None, *, keepdims: bool = False) -> Operand:
    return cast(_operand(a), as_dtype(np.bool_)).sum(axis, np.int64, keepdims=keepdims)


@_stands_for(np.argmax)
def _argmax(a: Any, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> Any:
    return arg_reduce("argmax", _operand(a), axis, keepdims=keepdims)


@_stands_for(np.argmin)
def _argmin(a: Any, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> Any:
    return arg_reduce("argmin", _operand(a), axis, keepdims=keepdims)


@_stands_for(np.ptp)
def _ptp(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False) -> Operand:
    x = _operand(a)
    return x.max(axis, keepdims=keepdims) - x.min(axis, keepdims=keepdims)


def _divisor(x: Operand, axis: Axis, mask: Any, dtype: np.dtype[Any]) -> Value:
    """Return the number of elements that go into each result."""
    if mask is not True:
        counted = broadcast(_operand(mask), x.shape)
        return cast(counted.sum(axis, np.int64, keepdims=True), dtype)
    return math.prod([x.shape[at] for at in axes_of(axis, len(x.shape))])


def _computed_in(x: Operand, dtype: np.dtype[Any] | None) -> np.dtype[Any]:
    if dtype is not None:
        return dtype
    if x.dtype.kind in "biu":
        return _FLOAT64
    return FLOAT32 if x.dtype in HALVES else x.dtype


def _squeezed(x: Operand, axis: Axis, *, keepdims: bool) -> Operand:
    return x if keepdims else _squeeze(x, axes_of(axis, len(x.shape)))


@lru_cache(MANY)
def _real_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return as_dtype(np.empty((), dtype).real.dtype)


@_stands_for(np.mean)
def _mean(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> Operand:
    x = _operand(a)
    wanted = _dtype(dtype)
    kind = _computed_in(x, wanted)
    total = masked("add", cast(x, kind), axis, kind, keepdims=True, mask=values_of((where,))[0])
    made = _divided(total, _divisor(x, axis, where, _real_of(kind)))
    result = x.dtype if wanted is None and x.dtype in HALVES else kind
    return _squeezed(cast(made, result), axis, keepdims=keepdims)


def _divided(x: Operand, divisor: Value) -> Operand:
    # By a number of its own dtype, so that neither changes.
    if not isinstance(divisor, Operand):
        divisor = constant(divisor, _real_of(x.dtype))
    return cast(ufunc("divide", x, divisor), x.dtype)


def _spread(function: Callable[..., Any], *, root: bool) -> None:
    @_stands_for(function)
    def spread(
        a: Any,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        where: Any = True,
        correction: float | None = None,
    ) -> Operand:
        x = _operand(a)
        wanted = _dtype(dtype)
        made = _squared_spread(x, axis, wanted, ddof if correction is None else correction, where)
        result = x.dtype if wanted is None and x.dtype in HALVES else made.dtype
        made = ufunc("sqrt", made) if root else made
        return _squeezed(cast(made, result), axis, keepdims=keepdims)


_spread(np.var, root=False)
_spread(np.std, root=True)


def _squared_spread(
    x: Operand, axis: Axis, wanted: np.dtype[Any] | None, less: float, where: Any
) -> Operand:
    """The variance, before it is rounded; axes that are reduced stay."""
    kind = _computed_in(x, wanted)
    (mask,) = values_of((where,))
    count = _divisor(x, axis, where, _real_of(kind))
    mean = _divided(masked("add", cast(x, kind), axis, kind, keepdims=True, mask=mask), count)
    # Only sums are made in a dtype that was asked for: NumPy takes elements as they are.
    apart = (cast(x, kind) if wanted is None or kind.kind == "c" else x) - mean
    if apart.dtype.kind == "c":
        squares: Operand = apart.real * apart.real + apart.imag * apart.imag
    else:
        squares = apart * apart
    summed = squares.dtype if wanted is None or kind.kind == "c" else kind
    total = masked("add", squares, axis, summed, keepdims=True, mask=mask)
    if isinstance(count, Operand):
        free: Value = ufunc("maximum", count - less, 0)
    else:
        free = max(float(count.real) - less, 0)
    return _divided(total, free)


@_stands_for(np.linalg.norm)
def _norm(
    x: Any,
    ord: float | str | None = None,  # noqa: A002 - NumPy's name
    axis: Axis = None,
    keepdims: bool = False,
) -> Operand:
    given = _operand(x)
    if given.dtype.kind in "biu":
        given = cast(given, _FLOAT64)
    axes = axes_of(axis, len(given.shape))
    if ord is not None and len(axes) not in (1, 2):
        raise ValueError("Improper number of dimensions to norm.")
    whole = ord is None or (len(axes) == 2 and ord in ("f", "fro"))
    if len(axes) == 2 and not whole:
        raise TypeError(
            f"norms of matrices with ord={ord!r} are not computed by expressions; use "
            "device.linalg.norm"
        )
    if isinstance(ord, str) and not whole:
        raise ValueError(f"Invalid norm order '{ord}' for vectors")
    size = abs(given)
    if whole or ord == 2:
        square = given.real**2 + given.imag**2 if given.dtype.kind == "c" else size * size
        return ufunc("sqrt", square.sum(axes, keepdims=keepdims))
    if ord == math.inf:
        return size.max(axes, keepdims=keepdims, initial=0)  # of nothing, too
    if ord == -math.inf:
        return size.min(axes, keepdims=keepdims)
    if ord == 1:
        return size.sum(axes, keepdims=keepdims)
    if ord == 0:
        return cast(ufunc("not_equal", given, 0), size.dtype).sum(axes, keepdims=keepdims)
    power: Any = ord
    made: Operand = (size**power).sum(axes, keepdims=keepdims) ** (1 / power)
    return made


# --- elementwise ----------------------------------------------------------------------------


@_stands_for(np.where)
def _where(condition: Any, x: Any = None, y: Any = None, /) -> Expression:
    if x is None or y is None:
        raise TypeError(
            "where(condition) alone has a result whose size only the device can tell; give "
            "where(condition, x, y)"
        )
    return where(*values_of((condition, x, y)))


@_stands_for(np.clip)
def _clip(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: None = None,
    *,
    min: Any = None,  # noqa: A002 - NumPy's names
    max: Any = None,  # noqa: A002
) -> Operand:
    x: Operand = _operand(a)
    low: Any = _bound(a_min if min is None else min)
    high: Any = _bound(a_max if max is None else max)
    if x.dtype.kind in "iu":
        # Python integers that bound nothing, as all elements are within them.
        ends = np.iinfo(x.dtype)
        low = None if type(low) is int and low <= ends.min else low
        high = None if type(high) is int and high >= ends.max else high
    if low is not None and high is not None:
        dtype = clipped((x.dtype, *_kinds((low, high))))
        x, low, high = (converted(each, dtype) for each in (x, low, high))
    if low is not None:
        x = ufunc("maximum", x, low)
    if high is not None:
        x = ufunc("minimum", x, high)
    return x


def _bound(value: Any) -> Value | None:
    return None if value is None or value is np._NoValue else values_of((value,))[0]


_MOST_DECIMALS: Final = 308
"""Ten to the power of more is infinite."""


@_stands_for(np.round, np.around)
def _round(a: Any, decimals: int = 0, out: None = None) -> Operand:
    x = _operand(a)
    if x.dtype.kind == "c":
        raise TypeError(
            "a must be real numbers in an expression, not complex ones; await "
            "device.array.round(a), or round a.real and a.imag"
        )
    if x.dtype.kind in "iu" and decimals >= 0:
        return x
    if x.dtype.kind == "b":
        np.round(np.zeros((), np.bool_), decimals)  # which raises what it has to say
        return cast(x, as_dtype(np.float16))
    if decimals == 0:
        return ufunc("rint", x)
    if abs(decimals) > _MOST_DECIMALS:
        raise ValueError(f"decimals must be from -308 to 308, not {decimals}")
    scale = constant(10.0 ** abs(decimals), _FLOAT64 if x.dtype.kind in "iu" else x.dtype)
    if decimals > 0:
        return ufunc("divide", ufunc("rint", ufunc("multiply", x, scale)), scale)
    return cast(ufunc("multiply", ufunc("rint", ufunc("divide", x, scale)), scale), x.dtype)


@_stands_for(np.fix)
def _fix(x: Any, out: None = None) -> Operand:
    return ufunc("trunc", _operand(x))


@_stands_for(np.isclose)
def _isclose(
    a: Any,
    b: Any,
    rtol: Any = 1.0e-5,
    atol: Any = 1.0e-8,
    equal_nan: bool = False,
) -> Expression:
    x, y, relative, absolute = values_of((a, b, rtol, atol))
    if isinstance(y, Operand):
        other = y
    else:  # a number of Python's takes the dtype of the array, as in operators
        number: Any = float(y) if isinstance(y, int) else y
        kind = kind_of(number)
        weak = isinstance(kind, type) and isinstance(x, Operand) and common((x.dtype, kind))
        other = constant(number, weak or None)
    if other.dtype.kind in "biu":
        other = cast(other, _FLOAT64)
    bound = ufunc("add", absolute, ufunc("multiply", relative, ufunc("absolute", other)))
    apart = ufunc("absolute", ufunc("subtract", x, other))
    near = ufunc("less_equal", apart, bound) & ufunc("isfinite", other)
    close = near | ufunc("equal", x, other)
    if equal_nan:
        first = x if isinstance(x, Operand) else constant(x)
        close = close | (ufunc("isnan", first) & ufunc("isnan", other))
    return close


@_stands_for(np.allclose)
def _allclose(
    a: Any,
    b: Any,
    rtol: Any = 1.0e-5,
    atol: Any = 1.0e-8,
    equal_nan: bool = False,
) -> Operand:
    return _isclose(a, b, rtol, atol, equal_nan).all()


@_stands_for(np.nan_to_num)
def _nan_to_num(
    x: Any,
    copy: bool = True,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Operand:
    given = _operand(x)
    if not is_float(given.dtype):
        if given.dtype.kind == "c":
            raise TypeError("nan_to_num of complex numbers: take .real and .imag")
        return given
    limits: Any = ml_dtypes.finfo  # which knows NumPy's, too
    most = float(limits(given.dtype).max)
    infinite = ufunc("isinf", given)
    negative = ufunc("signbit", given)
    high = constant(most if posinf is None else posinf, given.dtype)
    low = constant(-most if neginf is None else neginf, given.dtype)
    finite = where(infinite, where(negative, low, high), given)
    return where(ufunc("isnan", given), constant(nan, given.dtype), finite)


@_stands_for(np.real)
def _real(val: Any) -> Operand:
    return _operand(val).real


@_stands_for(np.imag)
def _imag(val: Any) -> Operand:
    return _operand(val).imag


@_stands_for(np.angle)
def _angle(z: Any, deg: bool = False) -> Operand:
    x = _operand(z)
    angle = ufunc("arctan2", x.imag if x.dtype.kind == "c" else 0, x.real)
    return ufunc("rad2deg", angle) if deg else angle


@_stands_for(np.sinc)
def _sinc(x: Any) -> Operand:
    given = _operand(x)
    scaled = given * np.pi
    limits: Any = ml_dtypes.finfo  # which knows NumPy's, too
    tiny = 1.0e-20 if scaled.dtype.kind == "c" else float(limits(scaled.dtype).eps)
    safe = where(ufunc("equal", scaled, 0), constant(tiny, scaled.dtype), scaled)
    return ufunc("divide", ufunc("sin", safe), safe)


@_stands_for(np.isposinf)
def _isposinf(x: Any, out: None = None) -> Expression:
    return ufunc("isinf", _operand(x)) & ~ufunc("signbit", _operand(x))


@_stands_for(np.isneginf)
def _isneginf(x: Any, out: None = None) -> Expression:
    return ufunc("isinf", _operand(x)) & ufunc("signbit", _operand(x))


@_stands_for(np.astype)
def _astype(x: Any, dtype: DTypeLike, /, *, copy: bool = True) -> Operand:
    return cast(_operand(x), as_dtype(dtype))


@_stands_for(np.copy)
def _copy(a: Any, order: str = "K", subok: bool = False) -> Operand:
    return ufunc("positive", _operand(a)) if _operand(a).dtype.kind != "b" else _operand(a)


# --- one number everywhere --------------------------------------------------------------------


@_stands_for(np.full_like)
def _full_like(
    a: Any, fill_value: Any, dtype: DTypeLike | None = None, **options: Any
) -> Expression:
    like = _operand(a)
    shape = options.get("shape") or like.shape
    (value,) = values_of((fill_value,))
    assert not isinstance(value, Operand)
    return broadcast_constant(shape, as_dtype(dtype or like.dtype), value)


@_stands_for(np.zeros_like)
def _zeros_like(a: Any, dtype: DTypeLike | None = None, **options: Any) -> Expression:
    return _full_like(a, 0, dtype, **options)


@_stands_for(np.ones_like)
def _ones_like(a: Any, dtype: DTypeLike | None = None, **options: Any) -> Expression:
    return _full_like(a, 1, dtype, **options)


# --- axes in other places -----------------------------------------------------------------------


@_stands_for(np.transpose, np.permute_dims)
def _transpose(a: Any, axes: Any = None) -> Operand:
    x = _operand(a)
    ndim = len(x.shape)
    order = tuple(range(ndim))[::-1] if axes is None else normalize_axis_tuple(axes, ndim)
    if len(order) != ndim:
        raise ValueError("axes don't match array")
    return view(x, order, tuple(x.shape[at] for at in order))


@_stands_for(np.swapaxes)
def _swapaxes(a: Any, axis1: int, axis2: int) -> Operand:
    x = _operand(a)
    order = [*range(len(x.shape))]
    one, other = (normalize_axis_index(axis, len(order)) for axis in (axis1, axis2))
    order[one], order[other] = order[other], order[one]
    return _transpose(x, order)


@_stands_for(np.moveaxis)
def _moveaxis(a: Any, source: Any, destination: Any) -> Operand:
    x = _operand(a)
    from_, to = (normalize_axis_tuple(each, len(x.shape)) for each in (source, destination))
    order = [at for at in range(len(x.shape)) if at not in from_]
    for place, at in sorted(zip(to, from_, strict=True)):
        order.insert(place, at)
    return _transpose(x, order)


@_stands_for(np.expand_dims)
def _expand_dims(a: Any, axis: Any) -> Operand:
    x = _operand(a)
    ndim = len(x.shape) + (1 if isinstance(axis, int) else len(axis))
    new = normalize_axis_tuple(axis, ndim)
    rest = iter(range(len(x.shape)))
    axes = tuple(None if at in new else next(rest) for at in range(ndim))
    return view(x, axes, tuple(1 if at is None else x.shape[at] for at in axes))


@_stands_for(np.squeeze)
def _squeeze(a: Any, axis: Any = None) -> Operand:
    x = _operand(a)
    if axis is None:
        gone: tuple[int, ...] = tuple(at for at, extent in enumerate(x.shape) if extent == 1)
    else:
        gone = normalize_axis_tuple(axis, len(x.shape))
        if any(x.shape[at] != 1 for at in gone):
            raise ValueError("an axis to squeeze must have size one")
    axes = tuple(at for at in range(len(x.shape)) if at not in gone)
    return view(x, axes, tuple(x.shape[at] for at in axes))


@_stands_for(np.broadcast_to)
def _broadcast_to(array: Any, shape: Any, subok: bool = False) -> Operand:
    return broadcast(_operand(array), (shape,) if isinstance(shape, int) else tuple(shape))


# --- what needs no device ---------------------------------------------------------------------


@_stands_for(np.shape)
def _shape(a: Any) -> tuple[int, ...]:
    return _operand(a).shape


@_stands_for(np.ndim)
def _ndim(a: Any) -> int:
    return len(_operand(a).shape)


@_stands_for(np.size)
def _size(a: Any, axis: int | None = None) -> int:
    shape = _operand(a).shape
    return math.prod(shape) if axis is None else shape[axis]


@_stands_for(np.iscomplexobj)
def _iscomplexobj(x: Any) -> bool:
    return _operand(x).dtype.kind == "c"


@_stands_for(np.isrealobj)
def _isrealobj(x: Any) -> bool:
    return _operand(x).dtype.kind != "c"


@_stands_for(np.result_type)
def _result_type(*values: Any) -> np.dtype[Any]:
    kinds = [
        each.dtype
        if isinstance(each, Operand)
        else each
        if isinstance(each, np.dtype | type)
        else kind_of(each)
        for each in values
    ]
    return np.result_type(*[kind(0) if isinstance(kind, type) else kind for kind in kinds])


for _function in FUNCTIONS:
    if not isinstance(_function, type):
        _module = _function.__module__.replace("numpy", "np")
        add_other_name(_function.__name__, f"{_module}.{_function.__name__}(x)")
