"""Cases of functions of ``device.array`` that are made of others, each beside NumPy's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import scipy.special

from atomr_accel import Device, GpuRef

from .cases import COMPLEX, INTEGERS, REAL, SIGNED, Case, axis, chance, choose, close, same, values
from .cases import shape as drawn_shape

Random = np.random.Generator

NUMBERS: Final = (*INTEGERS, "float16", *REAL, *COMPLEX)
ORDERED: Final = ("bool", *INTEGERS, "float16", *REAL)


@dataclass
class FunctionCall:
    """Arguments of one call, and how exact its result is.

    Attributes:
        args: the arguments; arrays go to the device.
        options: the arguments by name.
        magnitude: of the terms that are summed up.
        factor: how many units of the last place the error may be.
        views: the function returns views and is not awaited.
    """

    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    magnitude: float = 0.0
    factor: float = 16.0
    views: bool = False


def _array(
    random: Random, least: int = 1, most: int = 3, dtypes: Any = NUMBERS, *, empty: bool = True
) -> Any:
    return values(random, drawn_shape(random, least, most, empty=empty), choose(random, dtypes))


def _option(random: Random, **options: Any) -> dict[str, Any]:
    """Some of the options."""
    return {name: value for name, value in options.items() if chance(random, 0.4)}


def _ones(random: Random) -> FunctionCall:
    return FunctionCall((drawn_shape(random),), {"dtype": np.dtype(choose(random, NUMBERS))})


def _products(name: str) -> Callable[[Random], FunctionCall]:
    def draw(random: Random) -> FunctionCall:
        k, n, m = (int(each) for each in random.integers(1, 9, 3))
        kinds = choose(random, NUMBERS), choose(random, NUMBERS)
        shapes: Any = ((n, k), (m, k))
        if name == "dot":
            shapes = choose(
                random, (((n, k), (k, m)), ((k,), (k,)), ((2, n, k), (3, k, m)), ((n, k), (k,)))
            )
        elif name == "vdot":
            shapes = choose(random, (((n, k), (n, k)), ((n, k), (n * k,))))
        elif name in ("outer", "kron"):
            shapes = drawn_shape(random, 0, 2), choose(random, ((n,), (n, k), ()))
        one, other = (values(random, of, kind) for of, kind in zip(shapes, kinds, strict=True))
        terms = 0.0 if name in ("outer", "kron") else 4.0 * k * n
        return FunctionCall((one, other), magnitude=terms)

    return draw


def _tensordot(random: Random) -> FunctionCall:
    sizes = [int(each) for each in random.integers(0, 6, 5)]
    i, j, k, n, m = sizes
    kind, other = choose(random, NUMBERS), choose(random, NUMBERS)
    axes, one, two = choose(
        random,
        (
            (2, (n, i, j), (i, j, m)),
            (((0, 2), (1, 0)), (i, n, j), (j, i, k)),
            ((1, -1), (n, i, k), (m, j, i)),
            (0, (i, n), (j,)),
            (1, (n, i), (i, m, k)),
        ),
    )
    return FunctionCall(
        (values(random, one, kind), values(random, two, other)), {"axes": axes}, 4.0 * i * j
    )


def _trace(random: Random) -> FunctionCall:
    x = _array(random, 2, 4)
    one, two = (int(each) for each in random.permutation(x.ndim)[:2])
    options = {"offset": int(random.integers(-4, 5)), "axis1": one, "axis2": two - x.ndim}
    return FunctionCall((x,), options, 2.0 * max(x.shape))


def _cross(random: Random) -> FunctionCall:
    n = int(random.integers(1, 6))
    shapes = choose(random, (((n, 3), (3,)), ((2, n, 3), (n, 3)), ((3,), (3,))))
    x, y = (values(random, of, choose(random, NUMBERS)) for of in shapes)
    options: dict[str, Any] = {}
    if len(shapes[0]) == 2 and chance(random, 0.5):
        x, options = np.moveaxis(x, -1, 0).copy(), {"axisa": 0, "axisc": choose(random, (0, 1, -1))}
    return FunctionCall((x, y), options, 8.0)


def _diff(random: Random) -> FunctionCall:
    x = _array(random, dtypes=("bool", *NUMBERS))
    along = axis(random, x.ndim, none=False)
    options: dict[str, Any] = {"n": choose(random, (0, 1, 1, 2, 3)), "axis": along}
    ends = [
        2,
        x,
        values(
            random,
            tuple(1 if at == along % x.ndim else n for at, n in enumerate(x.shape)),
            x.dtype.name,
        ),
    ]
    options |= _option(random, prepend=choose(random, ends), append=choose(random, ends))
    return FunctionCall((x,), options, 32.0)


def _gradient(random: Random) -> FunctionCall:
    x = _array(random, dtypes=(*SIGNED, *REAL, *COMPLEX))
    spaces: list[Any] = [np.sort(random.uniform(0, 4, n)) + np.arange(n) for n in x.shape]
    args: list[Any] = choose(random, ([], [2.0], spaces, [*spaces[:-1], 0.5]))
    return FunctionCall((x, *args), {"edge_order": choose(random, (1, 2))}, 16.0)


def _trapezoid(random: Random) -> FunctionCall:
    y = _array(random, dtypes=(*SIGNED, *REAL, *COMPLEX))
    along = axis(random, y.ndim, none=False)
    x = values(random, (y.shape[along],), "float32" if y.dtype in ("f4", "c8") else "float64")
    return FunctionCall((y,), {"axis": along, **_option(random, x=x, dx=0.25)}, 16.0 * y.size)


def _interp(random: Random) -> FunctionCall:
    n = choose(random, (1, 2, 5, 33))
    places = np.unique(np.round(random.uniform(-2, 2, n), 2))
    heights = values(random, places.shape, choose(random, ("int32", *REAL, *COMPLEX)))
    x = np.round(random.uniform(-3, 3, drawn_shape(random, 0, 2)), 2)
    x = np.where(random.random(x.shape) < 0.1, np.nan, x)
    options = _option(random, left=-7.0, right=9)
    if chance(random, 0.3):
        x, options = np.asarray(np.nan_to_num(x)), {"period": choose(random, (3.0, -5.0))}
    x = x.astype(choose(random, ("float32", "float64")))
    return FunctionCall((x, places, heights), options, 64.0, 64.0)


def _convolve(random: Random) -> FunctionCall:
    a, v = (
        values(random, (int(random.integers(1, 40)),), choose(random, ("bool", *NUMBERS)))
        for _ in range(2)
    )
    return FunctionCall(
        (a, v), {"mode": choose(random, ("full", "same", "valid"))}, 4.0 * min(a.size, v.size)
    )


def _stacked(random: Random) -> FunctionCall:
    n, m = (int(each) for each in random.integers(0, 9, 2))
    shapes = choose(random, (((n,), (n, m), (n,)), ((n, m), (n, 2)), ((), ())))
    return FunctionCall(([values(random, of, choose(random, NUMBERS)) for of in shapes],))


def _dstacked(random: Random) -> FunctionCall:
    of = drawn_shape(random, 0, 3)
    return FunctionCall(([values(random, of, choose(random, NUMBERS)) for _ in range(3)],))


def _append(random: Random) -> FunctionCall:
    x = _array(random)
    along = axis(random, x.ndim)
    y = x if along is not None else choose(random, (3, 2.5, values(random, (2, 3), "float32")))
    return FunctionCall((x, y), {"axis": along})


def _places(random: Random, n: int, past: int) -> Any:
    whole = int(random.integers(-n, n + past))
    several = [int(each) for each in random.integers(-n, n + past, int(random.integers(0, 5)))]
    start, stop = (int(each) for each in random.integers(-n, n + 1, 2))
    steps = slice(start, stop, choose(random, (1, 2, -1)))
    mask = random.random(n) < 0.5
    return choose(random, (whole, [whole], several, np.array(several, np.int64), steps, mask))


def _delete(random: Random) -> FunctionCall:
    x = _array(random, empty=False)
    along = axis(random, x.ndim)
    n = x.size if along is None else x.shape[along]
    if chance(random, 0.2):
        return FunctionCall((x, values(random, (n,), "bool")), {"axis": along})
    return FunctionCall((x, _Here(_places(random, n, 0))), {"axis": along})


def _insert(random: Random) -> FunctionCall:
    x = _array(random, empty=False)
    along = axis(random, x.ndim)
    n = x.size if along is None else x.shape[along]
    value = choose(
        random, (3, values(random, (2,), "int8"), values(random, x.shape[1:], x.dtype.name))
    )
    return FunctionCall((x, _Here(_places(random, n, 1)), value), {"axis": along})


def _select(random: Random) -> FunctionCall:
    of = drawn_shape(random, 0, 3)
    count = int(random.integers(1, 5))
    masks = [values(random, of, "bool") for _ in range(count)]
    kinds = ("int8", "int32", *REAL, *COMPLEX)
    picked = [
        choose(random, (values(random, of, choose(random, kinds)), 3, 2.5)) for _ in range(count)
    ]
    return FunctionCall((masks, picked), _option(random, default=7))


def _halves(x: Any) -> Any:
    return (x * x).sum() / 2


def _rises(x: Any) -> Any:
    return x[1:] - x[:-1]


def _applied(random: Random) -> FunctionCall:
    x = values(
        random, tuple(random.integers(1, 5, int(random.integers(1, 4)))), choose(random, REAL)
    )
    along = axis(random, x.ndim, none=False)
    return FunctionCall(
        (_Here(choose(random, (_halves, _rises, np.exp))), along, x), {}, 64.0, 64.0
    )


def _split(random: Random) -> FunctionCall:
    x = _array(random, 3, 3)
    return FunctionCall((x, choose(random, (1, 2, _Here([1, 3])))), views=True)


def _several(random: Random) -> FunctionCall:
    return FunctionCall(
        tuple(_array(random, 0, 4) for _ in range(int(random.integers(1, 3)))), views=True
    )


def _broadcast(random: Random) -> FunctionCall:
    of = drawn_shape(random, 1, 3)
    return FunctionCall((values(random, of, "int8"), values(random, of[1:], "float32")), views=True)


def _equal(random: Random) -> FunctionCall:
    x = values(
        random,
        drawn_shape(random),
        choose(random, ("bool", *NUMBERS)),
        odd=choose(random, (0, 0.1)),
    )
    y = choose(random, (x.copy(), values(random, x.shape, x.dtype.name), x[..., None]))
    return FunctionCall((x, y), _option(random, equal_nan=True))


def _close(random: Random) -> FunctionCall:
    x = values(random, drawn_shape(random), choose(random, REAL), odd=choose(random, (0.0, 0.1)))
    return FunctionCall(
        (x, choose(random, (x, x * x.dtype.type(1.001)))),
        _option(random, equal_nan=True, rtol=0.01),
    )


def _isin(random: Random) -> FunctionCall:
    kind = choose(random, ("bool", *NUMBERS))
    x = values(random, drawn_shape(random), kind, odd=choose(random, (0.0, 0.1)))
    y = values(random, (choose(random, (0, 3, 16, 17, 100)),), kind, odd=choose(random, (0.0, 0.1)))
    return FunctionCall(
        (x, choose(random, (y, _Here(y.tolist()) if y.size else y))), _option(random, invert=True)
    )


def _set(random: Random) -> FunctionCall:
    kind = choose(random, ORDERED)
    return FunctionCall((_row(random, kind), _row(random, kind)))


def _difference(random: Random) -> FunctionCall:
    x = random.permutation(np.arange(-8, 8))[: int(random.integers(0, 16))].astype("int16")
    return (
        FunctionCall((x, _row(random, "int8")), {"assume_unique": True})
        if chance(random, 0.5)
        else _set(random)
    )


def _row(random: Random, kind: str) -> Any:
    return values(random, drawn_shape(random, 1, 2), kind)


def _common(random: Random) -> FunctionCall:
    made = _set(random)
    made.options = _option(random, return_indices=True)
    return made


def _lexsort(random: Random) -> FunctionCall:
    of = drawn_shape(random, 1, 2)
    keys = [
        values(random, of, choose(random, ("int8", "uint8", "bool")))
        for _ in range(int(random.integers(1, 4)))
    ]
    if chance(random, 0.2):
        return FunctionCall((np.stack([each.astype(np.int16) for each in keys]),))
    return FunctionCall((keys,), {"axis": axis(random, len(of), none=False)})


def _unravel(random: Random) -> FunctionCall:
    sizes = tuple(int(each) for each in random.integers(1, 9, int(random.integers(1, 4))))
    flat = random.integers(0, math.prod(sizes), drawn_shape(random, 0, 2)).astype(
        choose(random, ("int64", "int32", "uint32"))
    )
    return FunctionCall((flat, _Here(sizes)), {"order": choose(random, "CF")})


def _ravel(random: Random) -> FunctionCall:
    sizes = tuple(int(each) for each in random.integers(1, 9, int(random.integers(1, 4))))
    of = drawn_shape(random, 0, 2)
    mode = choose(random, ("raise", "wrap", "clip"))
    far = 0 if mode == "raise" else 5
    given = tuple(np.asarray(random.integers(-far, n + far, of)) for n in sizes)
    return FunctionCall((given, _Here(sizes)), {"mode": mode, "order": choose(random, "CF")})


def _average(random: Random) -> FunctionCall:
    x = _array(random, empty=False)
    along = axis(random, x.ndim, several=True)
    options: dict[str, Any] = {"axis": along, **_option(random, keepdims=True)}
    if chance(random, 0.7):
        of = x.shape
        if along is not None and chance(random, 0.5):
            of = tuple(x.shape[at] for at in (along if isinstance(along, tuple) else (along,)))
        options["weights"] = np.abs(values(random, of, choose(random, ("int8", *REAL)))) + 1
    options |= _option(random, returned=True)
    return FunctionCall((x,), options, 4.0 * x.size, 32.0)


def _cov(random: Random) -> FunctionCall:
    n, m = int(random.integers(2, 20)), int(random.integers(1, 5))
    kinds = ("int16", *REAL, *COMPLEX)
    x = values(random, choose(random, ((m, n), (n,))), choose(random, kinds))
    options: dict[str, Any] = _option(
        random, bias=True, ddof=2, dtype=np.complex128 if chance(random, 0.5) else None
    )
    if options.get("dtype", 0) is None:
        del options["dtype"]
    if x.ndim == 2 and chance(random, 0.3):
        x, options = x.T.copy(), {**options, "rowvar": False}
    elif chance(random, 0.3):
        options["y"] = values(random, x.shape, choose(random, kinds))
    options |= _option(
        random, fweights=random.integers(1, 4, n), aweights=random.uniform(0.5, 2, n)
    )
    return FunctionCall((x,), options, 64.0, 64.0)


def _corrcoef(random: Random) -> FunctionCall:
    made = _cov(random)
    made.options = {key: value for key, value in made.options.items() if key in ("y", "rowvar")}
    noise = np.random.default_rng(3).uniform(0, 1, made.args[0].shape)
    made.args = (made.args[0] + noise,)  # no variable is constant
    if "y" in made.options:
        made.options["y"] = made.options["y"] + noise[::-1] ** 2
    made.factor = 2.0**14
    return made


METHODS: Final = (
    "linear", "lower", "higher", "midpoint", "inverted_cdf", "hazen", "weibull", "median_unbiased",
    "normal_unbiased", "interpolated_inverted_cdf", "averaged_inverted_cdf",
)  # fmt: skip


def _without_nan(name: str) -> Callable[[Random], FunctionCall]:
    def draw(random: Random) -> FunctionCall:
        x = _array(random, dtypes=("int16", "float16", *REAL), empty=False)
        if x.dtype.kind == "f":
            x = np.where(random.random(x.shape) < choose(random, (0.1, 0.6)), np.nan, x).astype(
                x.dtype
            )
        options: dict[str, Any] = {
            "axis": axis(random, x.ndim, several=True),
            **_option(random, keepdims=True),
        }
        if name == "nanmedian":
            return FunctionCall((x,), options, 2.0)
        q = np.round(random.uniform(0, 1, choose(random, ((), (3,)))), 2) * (
            1 if name.endswith("tile") and "per" not in name else 100
        )
        options["method"] = choose(random, METHODS)
        if q.ndim and x.dtype.kind == "f":
            x = x.astype(np.float64)  # NumPy's dtype depends on whether the first row is NaN
        return FunctionCall((x, float(q) if not q.ndim else _Here(q)), options, 4.0)

    return draw


def _weighted(random: Random) -> FunctionCall:
    x = _array(random, dtypes=("int16", *REAL), empty=False)
    along = axis(random, x.ndim)
    weights = random.integers(
        0, 4, x.shape if along is None else choose(random, (x.shape, (x.shape[along],)))
    )
    weights[(slice(1),) * weights.ndim] = 1
    if (weights.sum(None if weights.ndim < x.ndim else along) == 0).any():
        weights = weights + 1
    q = choose(random, (0.0, 0.37, 1.0, _Here([0.13, 0.61])))
    return FunctionCall(
        (x, q),
        {
            "axis": along,
            "weights": weights,
            "method": "inverted_cdf",
            **_option(random, keepdims=True),
        },
    )


def _nancum(random: Random) -> FunctionCall:
    x = _array(random, dtypes=("int8", "float32", "float64", *COMPLEX))
    if x.dtype.kind in "fc":
        x = np.where(random.random(x.shape) < 0.3, np.nan, np.sign(x.real)).astype(x.dtype)
    return FunctionCall((x,), {"axis": axis(random, x.ndim)}, float(x.size), 32.0)


def _histogram2d(random: Random) -> FunctionCall:
    n = choose(random, (0, 1, 50, 400))
    x, y = (
        np.round(values(random, (n,), choose(random, (*REAL, "int16"))) * 7) / 8 for _ in range(2)
    )
    edges = _Here(np.arange(-2, 3) * 0.51)
    bins = choose(random, (3, _Here([4, 2]), [5, edges], edges))
    options: dict[str, Any] = {
        "bins": bins,
        **_option(random, range=_Here([[-1.1, 1.3], [-2, 1.7]]), density=True),
    }
    if "density" in options:  # of edges in single precision it is less exact
        x, y = x.astype(np.float64), y.astype(np.float64)
    if chance(random, 0.4):
        options["weights"] = values(random, (n,), choose(random, REAL))
    return FunctionCall((x, y), options, 2.0 * n**0.5, 64.0)


def _pad(random: Random) -> FunctionCall:
    x = _array(random, empty=False)
    widths = random.integers(0, 5, choose(random, ((), (2,), (x.ndim, 2)))).tolist()
    modes = ["constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "mean"]
    modes += [] if x.dtype.kind == "c" else ["maximum", "minimum", "median"]
    mode = choose(random, modes)
    options: dict[str, Any] = {"mode": mode}
    if mode in ("mean", "maximum", "minimum", "median"):
        options |= _option(random, stat_length=choose(random, (1, 2, (1, 3))))
    elif mode in ("reflect", "symmetric") and x.dtype.kind != "b":
        options |= _option(random, reflect_type="odd")
    elif mode == "linear_ramp":
        options |= _option(random, end_values=3)
    return FunctionCall((x, _Here(widths)), options, 8.0)


def _unique(random: Random) -> FunctionCall:
    x = values(random, drawn_shape(random, 1, 3, empty=False)[:3], "bool")
    x = x[..., :3].astype(choose(random, ORDERED))
    along = axis(random, x.ndim, none=False)
    flags = _option(random, return_index=True, return_inverse=True, return_counts=True)
    return FunctionCall((x,), {"axis": along, **flags})


def _stable(random: Random) -> FunctionCall:
    x = _array(random, dtypes=ORDERED)
    return FunctionCall((x,), {"axis": axis(random, x.ndim), "stable": True})


def _spread(random: Random) -> FunctionCall:
    x = _array(random, dtypes=("int16", *REAL, *COMPLEX), empty=False)
    along = axis(random, x.ndim, several=True)
    return FunctionCall((x,), {"axis": along, "correction": choose(random, (0, 0.5))}, 8.0, 32.0)


def _exponentials(name: str) -> Callable[[Random], FunctionCall]:
    def draw(random: Random) -> FunctionCall:
        odd = choose(random, (0.0, 0.1))
        kind = choose(random, ("int32", "float16", *REAL))
        odd *= kind != "int32"  # of which SciPy's differences overflow
        x = values(random, drawn_shape(random, 1, 3, empty=False), kind, odd=odd)
        options: dict[str, Any] = {"axis": axis(random, x.ndim, several=True)}
        if name == "logsumexp":
            options |= _option(random, keepdims=True, return_sign=True)
            if chance(random, 0.4):  # with floats that do not overflow before they are summed
                x = x.astype(np.float64)
                factors = values(random, x.shape[-1:], choose(random, REAL))
                # Of 0 SciPy makes NaN beside what is not finite; here such a term adds nothing.
                options["b"] = np.where(factors == 0, factors.dtype.type(1), factors)
                options["return_sign"] = True
        # What is summed is rounded, and so is the largest element.
        return FunctionCall((x,), options, 4.0 * np.abs(np.nan_to_num(x, posinf=0, neginf=0)).max())

    return draw


@dataclass
class _Here:
    """An argument that stays in the program."""

    value: Any


CALLS: Final[dict[str, Callable[[Random], FunctionCall]]] = {
    "ones": _ones, "dot": _products("dot"), "inner": _products("inner"),
    "vdot": _products("vdot"), "outer": _products("outer"), "kron": _products("kron"),
    "tensordot": _tensordot, "trace": _trace, "cross": _cross, "diff": _diff,
    "gradient": _gradient, "trapezoid": _trapezoid, "interp": _interp, "convolve": _convolve,
    "correlate": _convolve, "column_stack": _stacked, "dstack": _dstacked, "append": _append,
    "delete": _delete, "insert": _insert, "select": _select, "apply_along_axis": _applied,
    "hsplit": _split, "vsplit": _split, "atleast_1d": _several,
    "atleast_2d": _several, "atleast_3d": _several, "broadcast_arrays": _broadcast,
    "array_equal": _equal, "allclose": _close, "isin": _isin, "union1d": _set,
    "intersect1d": _common, "setdiff1d": _difference, "lexsort": _lexsort,
    "unravel_index": _unravel,
    "ravel_multi_index": _ravel, "average": _average, "cov": _cov, "corrcoef": _corrcoef,
    "nanmedian": _without_nan("nanmedian"), "nanquantile": _without_nan("nanquantile"),
    "quantile": _weighted,
    "logsumexp": _exponentials("logsumexp"), "softmax": _exponentials("softmax"),
    "log_softmax": _exponentials("log_softmax"),
    "pad": _pad, "unique": _unique, "sort": _stable, "argsort": _stable, "var": _spread,
    "std": _spread, "nanvar": _spread, "nancumsum": _nancum, "histogram2d": _histogram2d,
}  # fmt: skip


def _wide(value: Any) -> Any:
    """An argument in double precision, if it is of floats."""
    if isinstance(value, _Here):
        return value.value
    if isinstance(value, list | tuple):
        return type(value)([_wide(each) for each in value])
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_plain(each) for each in value])
    return value.value if isinstance(value, _Here) else value


async def _put(case: Case, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return await case.put(value)
    if isinstance(value, list | tuple):
        return type(value)([await _put(case, each) for each in value])
    return _plain(value)


def _each(found: Any) -> list[Any]:
    return [*found] if isinstance(found, list | tuple) else [found]


async def check_call(case: Case, name: str, call: FunctionCall) -> str | None:
    """Run a call, and compare it with NumPy's."""
    case.tell(
        op=name,
        **{key: value for key, value in call.options.items() if not isinstance(value, np.ndarray)},
    )
    function = getattr(np, name, None) or getattr(scipy.special, name)
    refused: str | None = None
    try:
        with np.errstate(all="ignore"):
            expected = _each(function(*_plain(call.args), **_plain_options(call)))
            options = {key: _wide(value) for key, value in call.options.items()}
            exact = _each(function(*_wide(call.args), **options))
    except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
        refused = f"NumPy refuses: {name}: {type(error).__name__}"
        expected = exact = []
    args = [await _put(case, each) for each in call.args]
    named = {key: await _put(case, value) for key, value in call.options.items()}
    await case.poison(*[np.asarray(each).nbytes for each in expected])
    method = getattr(case.device.array, name)
    try:
        made = method(*args, **named) if call.views else await method(*args, **named)
    except (ValueError, TypeError, IndexError) as error:
        if refused is not None:
            return f"{refused}, and {type(error).__name__}"
        raise
    if refused is not None:
        return f"{refused} alone"
    got = _each(made)
    assert len(got) == len(expected), f"{len(got)} results, expected {len(expected)}"
    for place, (ref, one, other) in enumerate(zip(got, expected, exact, strict=True)):
        assert isinstance(ref, GpuRef)
        case.tell(result=place)
        found, like = await case.device.get(ref), np.asarray(one)
        if like.dtype.kind in "iub":
            same(found, like)
        else:
            close(found, other, dtype=like.dtype, factor=call.factor, magnitude=call.magnitude)
    return None


def _plain_options(call: FunctionCall) -> dict[str, Any]:
    return {key: _plain(value) for key, value in call.options.items()}


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    case = Case(device, random)
    name = choose(random, list(CALLS))
    with case.described():
        refused = await check_call(case, name, CALLS[name](random))
        await case.finish()
    return refused
