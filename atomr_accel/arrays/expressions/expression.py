"""Expressions: immutable and typed values that a device computes on request."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn, final

import msgspec
import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import as_dtype, is_inexact
from ..._errors import Unsupported, said_of
from ..._other_names import WRITE, said
from ._methods import ELSEWHERE, FUNCTIONS, PLAIN, Methods
from ._numbers import Number, number_of, with_words
from ._text import text_of
from .axes import Axis, kept_of, reduced_axes, reduction, whole, whole_number
from .promotion import Form, common, joint, kind_of, resolve, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Kind = Literal["ufunc", "cast", "where", "reduce", "arg", "view", "constant", "index", "matmul"]

_INT64: Final = as_dtype(np.int64)
_BOOL: Final = as_dtype(np.bool_)

_COMPARISONS: Final = {
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}


class Operand(Methods):
    """Base of refs and expressions, with Python's operators, NumPy's ufuncs and functions.

    Each operation makes an expression, by NumPy's rules for shapes and dtypes. Nothing is computed
    before ``await device.evaluate(expression)``, or ``batch.evaluate(expression)``.

    Attributes:
        shape: as in NumPy.
        dtype: a ``numpy.dtype``.
    """

    __slots__ = ()

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    if TYPE_CHECKING:

        def __hash__(self) -> int:
            """Hash by identity, because ``==`` makes an expression."""

    else:
        __hash__ = object.__hash__

        def __await__(self) -> NoReturn:
            raise TypeError(self.NOT_AWAITED)

    NOT_AWAITED: ClassVar[str] = (
        "an expression is not awaited itself; write: ref = await device.evaluate(expression), or "
        "array = await device.get(expression)"
    )

    # --- operators ------------------------------------------------------------------------

    def __add__(self, other: Value) -> Expression:
        return _operator("add", self, other)

    def __radd__(self, other: Number) -> Expression:
        return _operator("add", other, self)

    def __sub__(self, other: Value) -> Expression:
        return _operator("subtract", self, other)

    def __rsub__(self, other: Number) -> Expression:
        return _operator("subtract", other, self)

    def __mul__(self, other: Value) -> Expression:
        return _operator("multiply", self, other)

    def __rmul__(self, other: Number) -> Expression:
        return _operator("multiply", other, self)

    def __truediv__(self, other: Value) -> Expression:
        return _operator("divide", self, other)

    def __rtruediv__(self, other: Number) -> Expression:
        return _operator("divide", other, self)

    def __floordiv__(self, other: Value) -> Expression:
        return _operator("floor_divide", self, other)

    def __rfloordiv__(self, other: Number) -> Expression:
        return _operator("floor_divide", other, self)

    def __mod__(self, other: Value) -> Expression:
        return _operator("remainder", self, other)

    def __rmod__(self, other: Number) -> Expression:
        return _operator("remainder", other, self)

    def __divmod__(self, other: Value) -> tuple[Expression, Expression]:
        return _operator("floor_divide", self, other), _operator("remainder", self, other)

    def __rdivmod__(self, other: Number) -> tuple[Expression, Expression]:
        return _operator("floor_divide", other, self), _operator("remainder", other, self)

    def __pow__(self, other: Value) -> Expression:
        return power(self, other)

    def __rpow__(self, other: Number) -> Expression:
        return power(other, self)

    def __lshift__(self, other: Value) -> Expression:
        return _operator("left_shift", self, other)

    def __rlshift__(self, other: Number) -> Expression:
        return _operator("left_shift", other, self)

    def __rshift__(self, other: Value) -> Expression:
        return _operator("right_shift", self, other)

    def __rrshift__(self, other: Number) -> Expression:
        return _operator("right_shift", other, self)

    def __and__(self, other: Value) -> Expression:
        return _operator("bitwise_and", self, other)

    def __rand__(self, other: Number) -> Expression:
        return _operator("bitwise_and", other, self)

    def __or__(self, other: Value) -> Expression:
        return _operator("bitwise_or", self, other)

    def __ror__(self, other: Number) -> Expression:
        return _operator("bitwise_or", other, self)

    def __xor__(self, other: Value) -> Expression:
        return _operator("bitwise_xor", self, other)

    def __rxor__(self, other: Number) -> Expression:
        return _operator("bitwise_xor", other, self)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override] # as ndarray has it
        return _operator("equal", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _operator("not_equal", self, other)

    def __lt__(self, other: Value) -> Expression:
        return _operator("less", self, other)

    def __le__(self, other: Value) -> Expression:
        return _operator("less_equal", self, other)

    def __gt__(self, other: Value) -> Expression:
        return _operator("greater", self, other)

    def __ge__(self, other: Value) -> Expression:
        return _operator("greater_equal", self, other)

    def __neg__(self) -> Expression:
        return ufunc("negative", self)

    def __pos__(self) -> Expression:
        return ufunc("positive", self)

    def __abs__(self) -> Expression:
        return ufunc("absolute", self)

    def __invert__(self) -> Expression:
        return ufunc("invert", self)

    def __matmul__(self, other: Value) -> Expression:
        return _product(self, other)

    def __rmatmul__(self, other: Number) -> Expression:
        return _product(other, self)

    # --- what would have to look at values --------------------------------------------------

    def __bool__(self) -> bool:
        what = _what(self)
        raise TypeError(
            f"{what} cannot be true or false, because its elements are on the device; "
            "choose elements with np.where(condition, x, y), or fetch it first: "
            f"bool({_fetched(self)})"
        )

    def __float__(self) -> float:
        raise _not_here(self, "float")

    def __int__(self) -> int:
        raise _not_here(self, "int")

    def __complex__(self) -> complex:
        raise _not_here(self, "complex")

    def __index__(self) -> int:
        # As an index in Python, or as the length of a range.
        raise _not_here(self, "int")

    def __contains__(self, _value: object) -> bool:
        raise TypeError(
            f"whether {_what(self)} contains something only the device can tell: "
            "await device.evaluate((x == value).any())"
        )

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError(
            f"{_what(self)} is not changed by assignment; write: await device.array.setitem(x, "
            "index, value), or for a slice await device.copy(y, x[...]), await device.fill("
            "x[...], number) or await device.put(array, out=x[...])"
        )

    def __array__(self, *_args: object, **_kwargs: object) -> np.ndarray[Any, Any]:
        raise TypeError(
            f"{_what(self)} does not turn into an array by itself, because computing and fetching "
            f"take time; write: host = {_fetched(self)}, or compute with functions of "
            "NumPy itself, which make expressions"
        )

    # --- NumPy ------------------------------------------------------------------------------

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Make an expression of a NumPy ufunc's call."""
        name = PLAIN.get(function)
        if name is not None and method == "__call__" and not options:
            return ufunc(name, *values_of(inputs))
        return FUNCTIONS[np.ufunc](function, method, inputs, options)

    def __array_function__(
        self,
        function: Callable[..., Any],
        _types: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make an expression of the call of another NumPy function."""
        found = FUNCTIONS.get(function)
        if found is None:
            raise TypeError(
                f"{function.__module__}.{function.__name__} cannot be part of an "
                f"expression; {_instead(function)}"
            )
        if kwargs.get("out") is not None:
            raise no_out(function.__name__)
        return found(*args, **kwargs)

    # --- parts ------------------------------------------------------------------------------

    def conj(self) -> Expression:
        """``numpy.ndarray.conj``."""
        return ufunc("conjugate", self)

    @property
    def real(self) -> Operand:
        """The real part; the operand itself if it is real."""
        return self if self.dtype.kind != "c" else _part("real", self)

    @property
    def imag(self) -> Operand:
        """The imaginary part; zeros if the operand is real."""
        return (
            cast(_part("imag", self), self.dtype) if self.dtype.kind != "c" else _part("imag", self)
        )


Value = Operand | Number
"""A value that an expression can have as an operand."""


def _instead(function: Callable[..., Any]) -> str:
    """Return the call to write instead of one of NumPy's functions."""
    call = ELSEWHERE.get(function.__module__, {}).get(function.__name__)
    if call is not None:
        return f"write: await device.{call}(...)"
    if function.__name__ in WRITE:
        return said(function.__name__)
    return "fetch the arrays first: host = await device.get(x)"


def _what(x: Operand) -> str:
    return f"an {type(x).__name__}" if isinstance(x, Expression) else f"a {type(x).__name__}"


def _fetched(x: Operand) -> str:
    """Return the code that fetches the values."""
    if isinstance(x, Expression):
        return "await device.get(await device.evaluate(expression))"
    return "await device.get(ref)"


def _not_here(x: Operand, name: str) -> TypeError:
    return TypeError(
        f"{name}() of {_what(x)}: the number is on the device; write: {name}({_fetched(x)})"
    )


def no_out(name: str) -> TypeError:
    """Return the error about an ``out=`` of an expression."""
    return TypeError(
        f"{name}(..., out=...) makes an expression, which computes nothing yet; leave out= away "
        "and give it to what computes: await device.evaluate(expression, out=ref)"
    )


def _in_place(_self: Operand, _other: object) -> NoReturn:
    raise TypeError(
        "refs and expressions are not changed in place; write x = x + y, and to have the "
        "result in the buffer of x: await device.evaluate(x + y, out=x)"
    )


for _name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow"):
    setattr(Operand, f"__i{_name}__", _in_place)
for _name in ("lshift", "rshift", "and", "or", "xor"):
    setattr(Operand, f"__i{_name}__", _in_place)


@final
class Expression(Operand, msgspec.Struct, eq=False, weakref=True):
    """A value that a device can compute, made from refs by operators and NumPy's functions.

    It has shape and dtype as NumPy's result would have; ``await device.evaluate(expression)``
    gives it. Nothing is computed before, and an expression can be part of several others.

    Attributes:
        shape: as in NumPy.
        dtype: a ``numpy.dtype``, by NumPy's rules of promotion.
    """

    # A struct, because each operator makes one and those are made fastest.
    kind: Kind
    name: str
    args: tuple[Operand, ...]
    params: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> Operand:  # noqa: N802 - NumPy's name
        """The expression with its axes in reverse order."""
        return self.transpose()

    def transpose(self, *axes: int | tuple[int, ...] | None) -> Operand:
        """``numpy.ndarray.transpose``."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        made: Operand = FUNCTIONS[np.transpose](self, given or None)
        return made

    def swapaxes(self, axis1: int, axis2: int) -> Operand:
        """``numpy.ndarray.swapaxes``."""
        made: Operand = FUNCTIONS[np.swapaxes](self, axis1, axis2)
        return made

    def squeeze(self, axis: Axis = None) -> Operand:
        """``numpy.ndarray.squeeze``."""
        made: Operand = FUNCTIONS[np.squeeze](self, axis)
        return made

    def reshape(self, *_shape: object, **_options: object) -> NoReturn:
        """Raise `Unsupported`. Reshape the refs in the expression, or its result.

        Raises:
            Unsupported: always.
        """
        raise _no_view("reshape")

    def ravel(self, *_order: object) -> NoReturn:
        """Raise `Unsupported`, like ``reshape``."""
        raise _no_view("ravel")

    def flatten(self, *_order: object) -> NoReturn:
        """Raise `Unsupported`, like ``reshape``."""
        raise _no_view("flatten")

    def diagonal(self, *_axes: object, **_options: object) -> NoReturn:
        """Raise `Unsupported`, like ``reshape``."""
        raise _no_view("diagonal")

    def view(self, *_dtype: object) -> NoReturn:
        """Raise `Unsupported`, like ``reshape``."""
        raise _no_view("view")

    def __getitem__(self, key: object) -> Operand:
        """Add new axes, as in ``expression[:, None]``. To take a part, index the refs instead.

        Raises:
            IndexError: the key has more axes than the expression.
            Unsupported: another index.
        """
        return _indexed(self, key if isinstance(key, tuple) else (key,))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an Expression of no dimensions")
        return self.shape[0]

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "an Expression is not iterable; compute it first: ref = await device.evaluate(...)"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Expression is made of handles of this program and cannot be pickled or copied; "
            "evaluate it first"
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Expression's {name} cannot be set; make another expression")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an Expression's {name} cannot be deleted")

    def __repr__(self) -> str:
        return f"<Expression {text_of(self)}: {self.dtype.name}{list(self.shape)}>"


def constant(value: Number, dtype: np.dtype[Any] | None = None) -> Expression:
    """Return a number as an expression without dimensions.

    Args:
        value: the number.
        dtype: the dtype of the expression; by default the one that NumPy gives the number.
    """
    number, kind = number_of(value, dtype)
    return Expression("constant", "", (), number, (), kind)


def index(shape: tuple[int, ...], axis: int) -> Expression:
    """Return each element's index along an axis, as int64."""
    axis = normalize_axis_index(axis, len(shape))
    return Expression("index", "", (), (axis,), shape, _INT64)


def cast(x: Operand, dtype: np.dtype[Any]) -> Operand:
    """``x`` with another dtype, rounded and wrapped as ``astype`` does."""
    if x.dtype is dtype:
        return x
    if isinstance(x, Expression) and x.kind == "constant":
        with np.errstate(all="ignore"):
            number = with_words(x.params[0].astype(dtype))
        return Expression("constant", "", (), number, (), dtype)
    return Expression("cast", "", (x,), (), x.shape, dtype)


def converted(value: Operand | Number, dtype: np.dtype[Any]) -> Operand:
    """Return an operand or a number with a dtype."""
    return cast(value, dtype) if isinstance(value, Operand) else constant(value, dtype)


def _kinds(values: Sequence[Operand | Number]) -> tuple[Any, ...]:
    return tuple(value.dtype if isinstance(value, Operand) else kind_of(value) for value in values)


def _forms(values: Sequence[Operand | Number]) -> tuple[Form, ...]:
    return tuple(
        [
            (value.shape, value.dtype) if isinstance(value, Operand) else kind_of(value)
            for value in values
        ]
    )


def ufunc(
    name: str,
    *values: Operand | Number,
    dtype: np.dtype[Any] | None = None,
    casting: str = "same_kind",
) -> Expression:
    """Return a ufunc's expression. A ufunc with two results has one name for each."""
    shape, result, takes, as_given = typed(name, _forms(values), dtype, casting)
    if as_given:
        given: Any = values
        return Expression("ufunc", name, given, (), shape, result)
    if name in _COMPARISONS:
        far = [_side(value, each) for value, each in zip(values, takes, strict=True)]
        if any(far):
            return broadcast_constant(shape, _BOOL, _COMPARISONS[name](*far))
    args = tuple([converted(value, each) for value, each in zip(values, takes, strict=True)])
    return Expression("ufunc", name, args, (), shape, result)


def _side(value: Any, dtype: np.dtype[Any]) -> int:
    """Return 1 or -1 if a Python integer is above or below a dtype's range, else 0."""
    if type(value) is not int or dtype.kind not in "iu":
        return 0
    bounds = np.iinfo(dtype)
    return (value > bounds.max) - (value < bounds.min)


def where(condition: Operand | Number, x: Operand | Number, y: Operand | Number) -> Expression:
    """``numpy.where``."""
    dtype = common(_kinds((x, y)))
    shape = joint(_forms((condition, x, y)))
    args = converted(condition, _BOOL), _branch(x, dtype), _branch(y, dtype)
    return Expression("where", "", args, (), shape, dtype)


def _branch(value: Any, dtype: np.dtype[Any]) -> Operand:
    """Return one of the two values that ``where`` chooses from.

    This is like ``converted``, but integers out of bounds go through ``numpy.where``. It wraps them
    before NumPy 2.5, and raises ``OverflowError`` since then.
    """
    if _side(value, dtype):
        value = int(np.where(True, value, np.zeros((), dtype)))
    return cast(constant(value), dtype) if type(value) is int else converted(value, dtype)


def reduce(
    name: str,
    x: Operand,
    axis: Axis = None,
    *,
    dtype: np.dtype[Any] | None = None,
    keepdims: bool = False,
) -> Operand:
    """A ufunc's reduction. Sums and products of narrow floats are made in float32."""
    made = reduction(name, x.shape, x.dtype, whole(axis), dtype, bool(keepdims))
    params, shape, compute, result = made
    return cast(Expression("reduce", name, (cast(x, compute),), params, shape, compute), result)


def arg_reduce(name: str, x: Operand, axis: int | None, *, keepdims: bool) -> Expression:
    """``argmax`` or ``argmin``: the index of the first; of all elements if ``axis`` is None."""
    axes = reduced_axes(None if axis is None else whole_number(axis), len(x.shape))
    if any(not x.shape[at] for at in axes) or (axis is None and 0 in x.shape):
        raise ValueError(f"attempt to get {name} of an empty sequence")
    if x.dtype.kind == "c":
        raise TypeError(f"{name} of complex numbers is not computed on devices; take real parts")
    shape = kept_of(x.shape, axes, keepdims=keepdims)
    return Expression("arg", name, (x,), (axes, bool(keepdims)), shape, _INT64)


def view(x: Operand, axes: tuple[int | None, ...], shape: tuple[int, ...]) -> Operand:
    """``x`` with its axes in other places.

    Args:
        x: the operand to view.
        axes: the axis of ``x`` for each axis of the view; None for an axis that repeats all of
            ``x``. Axes of ``x`` that are left out have one element.
        shape: the shape of the view.
    """
    if axes == tuple(range(len(x.shape))) and shape == x.shape:
        return x
    if isinstance(x, Expression) and x.kind == "view":
        inner = x.params[0]
        axes = tuple(None if at is None else inner[at] for at in axes)
        return view(x.args[0], axes, shape)
    return Expression("view", "", (x,), (axes,), shape, x.dtype)


def broadcast(x: Operand, shape: tuple[int, ...]) -> Operand:
    """``numpy.broadcast_to``."""
    extra = len(shape) - len(x.shape)
    if extra < 0 or any(
        one not in (1, other) for one, other in zip(x.shape, shape[max(0, extra) :], strict=False)
    ):
        raise ValueError(
            "operands could not be broadcast together with remapped shapes "
            f"[original->remapped]: {x.shape} and requested shape {shape}"
        )
    axes = tuple(
        None if at < extra or x.shape[at - extra] != extent else at - extra
        for at, extent in enumerate(shape)
    )
    return view(x, axes, shape)


def _indexed(x: Expression, key: tuple[object, ...]) -> Operand:
    whole = slice(None)
    taken = sum(part is not None and part is not Ellipsis for part in key)
    if taken > len(x.shape):
        raise IndexError(
            f"too many indices for array: there must be at most {len(x.shape)}, not {taken}"
        )
    axes: list[int | None] = []
    at = 0
    rest = len(x.shape) - taken
    for part in key:
        if part is None:
            axes.append(None)
        elif part is Ellipsis:
            axes += range(at, at + rest)
            at, rest = at + rest, 0
        elif isinstance(part, slice) and part == whole:
            axes.append(at)
            at += 1
        else:
            raise Unsupported(
                f"an expression takes no index such as {part!r}, only None, ':' and '...'; take "
                "the part of the refs that it is made of, or evaluate it first"
            )
    axes += range(at, len(x.shape))
    shape = tuple(1 if each is None else x.shape[each] for each in axes)
    return view(x, tuple(axes), shape)


def _no_view(name: str) -> Unsupported:
    return Unsupported(
        f"an expression has no {name}; take that of the refs that it is made of, or evaluate it "
        f"first: (await device.evaluate(expression)).{name}(...)"
    )


def _part(name: str, x: Operand) -> Expression:
    """Return the real or imaginary parts of complex numbers; zeros for real ones."""
    if x.dtype.kind != "c":
        return broadcast_constant(x.shape, x.dtype)
    dtype = as_dtype(np.float32 if x.dtype.itemsize == 8 else np.float64)
    return Expression("ufunc", name, (x,), (), x.shape, dtype)


def broadcast_constant(
    shape: tuple[int, ...], dtype: np.dtype[Any], value: Number = 0
) -> Expression:
    """Return a constant broadcast to a shape."""
    number = constant(value, dtype)
    return Expression("view", "", (number,), ((None,) * len(shape),), shape, dtype)


def power(x: Value, exponent: Value) -> Expression:
    """``x ** exponent``; a square where NumPy's operator computes one."""
    if isinstance(x, Operand) and type(exponent) in (int, float):
        kind = x.dtype.kind
        if kind == "b" and exponent == 2 and isinstance(exponent, int):
            return ufunc("square", x)  # int8, where a power is int64
        as_given = is_inexact(x.dtype) and resolve("power", _kinds((x, exponent)))[2] is x.dtype
        if as_given and exponent in (2, 0.5):
            return ufunc("square" if exponent == 2 else "sqrt", x)
    return _operator("power", x, exponent)


_VALUES: Final = (Operand, int, float, complex, np.generic)


def _is_value(value: object) -> bool:
    return isinstance(value, _VALUES) or (isinstance(value, np.ndarray) and not value.shape)


def _operator(name: str, x: Any, y: Any) -> Expression:
    if isinstance(x, _VALUES) and isinstance(y, _VALUES):
        return ufunc(name, x, y)
    return _combined(partial(ufunc, name), x, y)


def _product(x: Any, y: Any) -> Expression:
    return _combined(FUNCTIONS[np.matmul], x, y)


def _combined(make: Callable[..., Expression], x: Any, y: Any) -> Expression:
    if _is_value(x) and _is_value(y):
        return make(*values_of((x, y)))
    for value in (x, y):
        if isinstance(value, np.ndarray | list):
            raise _not_there(value)
    unknown: Any = NotImplemented
    return unknown  # type: ignore[no-any-return] # as operators say that


def _not_there(value: object) -> TypeError:
    return TypeError(
        f"{said_of(value)} meets an array on the device; put it there first: "
        "await device.put(array)"
    )


def values_of(values: Sequence[Any]) -> tuple[Value, ...]:
    """Return a function's arguments as values of expressions."""
    plain = True
    for value in values:
        if isinstance(value, _VALUES):
            continue
        plain = False
        if not _is_value(value):
            if isinstance(value, np.ndarray | list | tuple):
                raise _not_there(value)
            raise TypeError(
                f"expressions are made of refs, expressions and numbers, not {said_of(value)}"
            )
    if plain:
        return tuple(values)
    given: Any = [value[()] if isinstance(value, np.ndarray) else value for value in values]
    return tuple(given)
