"""Cases of ``device.array``: reductions, scans, statistics, elementwise functions, and creation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np

from atomr_accel import Device

from ..libraries.conformance import dtype_of, wide
from .cases import (
    COMPLEX,
    DTYPES,
    FLOATS,
    INTEGERS,
    NUMBERS,
    REAL,
    SIGNED,
    UNSIGNED,
    Case,
    axis,
    chance,
    checked,
    choose,
    close,
    same,
    shape,
    values,
)

Random = np.random.Generator

ORDERED: Final = ("bool", *INTEGERS, *FLOATS)
FOLDS: Final = {
    "sum": NUMBERS, "prod": NUMBERS, "max": ORDERED, "min": ORDERED, "ptp": (*SIGNED, *FLOATS),
    "mean": NUMBERS, "var": NUMBERS, "std": NUMBERS, "any": DTYPES, "all": DTYPES,
    "count_nonzero": DTYPES, "argmax": ORDERED, "argmin": ORDERED,
}  # fmt: skip
WITHOUT_NAN: Final = ("sum", "prod", "max", "min", "mean", "var", "std", "argmax", "argmin")
EXACT: Final = frozenset({"max", "min", "any", "all", "count_nonzero", "argmax", "argmin"})


def expected_dtype(function: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """Return the dtype of NumPy's result for the given arrays."""
    return np.asarray(function(*arrays, **options)).dtype


async def reduce(case: Case) -> str | None:
    """Sums and their like, over axes, where a mask says, into ``out``."""
    random = case.random
    name = choose(random, list(FOLDS))
    dtype = choose(random, FOLDS[name])
    without = name in WITHOUT_NAN and chance(random, 0.3)
    if without:
        dtype = choose(random, FLOATS)
    single = name.startswith("arg")
    of = shape(random, empty=name not in ("max", "min", "ptp", "argmax", "argmin", "mean"))
    # Products of complex infinities depend on their order.
    odd = 0.0 if dtype in COMPLEX and name == "prod" else choose(random, (0.0, 0.05, 0.5))
    array = values(random, of, dtype, odd=odd)
    if name == "prod" and array.size > 16 and array.dtype.kind not in "iub":
        # A partial product that overflows or underflows makes the result infinite, 0 or NaN,
        # depending on the order of the factors.
        size = np.abs(wide(array))
        with np.errstate(invalid="ignore"):
            array = (array / np.where((size == 0) | np.isinf(size), 1, size)).astype(array.dtype)
    options: dict[str, Any] = {"axis": axis(random, len(of), several=not single)}
    if chance(random, 0.3):
        options["keepdims"] = True
    if name in ("var", "std") and chance(random, 0.3):
        options["ddof"] = 1
    masked = not without and name in ("sum", "prod", "mean", "any", "all") and chance(random, 0.2)
    if name in ("sum", "prod") and not without and chance(random, 0.2):
        options["initial"] = 2
    long = name == "prod" and array.size > 16
    if name in ("sum", "prod", "mean") and not (without or long) and chance(random, 0.15):
        wider = {"c": COMPLEX, "i": (*REAL, "int64"), "u": (*REAL, "uint64")}
        options["dtype"] = np.dtype(choose(random, wider.get(array.dtype.kind, REAL)))
    name = f"nan{name}" if without else name
    case.tell(op=name, **options)
    function = getattr(np, name)
    where = values(random, of, "bool") if masked else None
    given = {} if where is None else {"where": where}
    try:
        result = expected_dtype(function, array, **options, **given)
        if without and single:  # NumPy sees a slice of NaNs alone only in dtypes of its own
            function(array.astype(np.float32), **options)
    except (ValueError, TypeError) as error:
        return f"NumPy refuses: {type(error).__name__}"
    x = await case.put(array)
    if where is not None:
        options["where"] = await case.put(where)
    exact = name.removeprefix("nan") in EXACT
    large = array if exact else wide(array)
    if exact and array.dtype.name == "bfloat16":
        large = array.astype(np.float32)
    plain = {key: value for key, value in options.items() if key not in ("where", "dtype")}
    if array.dtype.kind in "iub" and name == "ptp":
        large = array
    elif array.dtype.kind in "iub" and not exact:
        # NumPy's own sums of integers are exact, and wrap as they should.
        if result.kind in "iub":
            large, plain["dtype"] = array, result
        else:
            large = array.astype(np.complex128 if result.kind == "c" else np.longdouble)
    expected = np.asarray(function(large, **plain, **given))
    if chance(random, 0.2) and "where" not in options and name != "count_nonzero":
        options["out"] = await case.output(expected.shape, result)
    await case.poison(expected.size * result.itemsize)
    got = await case.fetch(await getattr(case.device.array, name)(x, **options))
    if exact or result.kind in "iub":
        same(got, expected.astype(result), dtype=result)
        return None
    # Integers as they are: ``wide`` takes large ones of uint64 for negative ones, whose float64s,
    # as those of NumPy, are further apart.
    whole = array.astype(np.longdouble) if array.dtype.kind in "iub" else wide(array)
    sizes = np.nan_to_num(np.abs(whole).astype(np.longdouble), posinf=0.0)
    most = sizes.max(initial=0.0)
    base = name.removeprefix("nan")
    if base == "prod":
        magnitude, factor = 0.0, 8.0 + array.size
    elif base in ("var", "std"):
        magnitude, factor = most**2 if base == "var" else most, 16.0
        if base == "std":  # near 0 a root makes much of little
            slack = np.sqrt(64 * float(np.finfo(np.float32 if result.itemsize <= 4 else float).eps))
            close(got, expected, dtype=result, factor=factor, magnitude=most, slack=slack * most)
            return None
    else:
        count = array.size if base == "sum" else 1
        magnitude, factor = most * max(1, count) ** 0.5, 16.0
    if (array.dtype.kind not in "iub" and array.dtype.itemsize == 2) or "dtype" in options:
        factor *= 4
    close(got, expected, dtype=result, factor=factor, magnitude=magnitude)
    return None


async def scan(case: Case) -> str | None:
    """Running sums and products."""
    random = case.random
    name = choose(random, ("cumsum", "cumprod"))
    dtype = choose(random, DTYPES)
    of = shape(random, 1, 3)
    array = values(random, of, dtype)
    if name == "cumprod" and array.dtype.kind not in "iub":
        array = np.sign(array.real).astype(array.dtype)  # exact, and far from both limits
    along = axis(random, len(of))
    case.tell(op=name, axis=along)
    result = expected_dtype(getattr(np, name), array, axis=along)
    x = await case.put(array)
    options: dict[str, Any] = {"axis": along}
    large = array if result.kind in "iub" else wide(array)
    expected = getattr(np, name)(large, axis=along)
    if chance(random, 0.2):
        options["out"] = await case.output(expected.shape, result)
    await case.poison(expected.size * result.itemsize)
    got = await case.fetch(await getattr(case.device.array, name)(x, **options))
    if result.kind in "iub":
        same(got, expected, dtype=result)
    else:
        magnitude = np.cumsum(np.abs(wide(array)), axis=along) if array.size else 0.0
        close(got, expected, dtype=result, factor=32.0, magnitude=magnitude)
    return None


async def order(case: Case) -> str | None:
    """Medians and quantiles."""
    random = case.random
    name = choose(random, ("median", "quantile", "percentile"))
    dtype = choose(random, (*REAL, "float16", *INTEGERS))
    of = shape(random, 1, 3, empty=False)
    array = values(random, of, dtype, odd=choose(random, (0.0, 0.0, 0.02)))
    if array.dtype.kind == "f":
        array = np.where(np.isinf(array), array.dtype.type(1), array)
        array = np.clip(array, -100, 100).astype(array.dtype)
    options: dict[str, Any] = {"axis": axis(random, len(of), several=True)}
    if chance(random, 0.3):
        options["keepdims"] = True
    arguments: tuple[Any, ...] = ()
    if name != "median":
        scale = 1.0 if name == "quantile" else 100.0
        q = np.round(random.uniform(0, 1, choose(random, ((), (3,)))), 3) * scale
        arguments = (float(q) if q.ndim == 0 else q,)
        methods = ("linear", "lower", "higher", "nearest", "midpoint")
        options["method"] = choose(random, methods)
        if options["method"] == "nearest":
            return "the nearest of two is a matter of rounding"
    case.tell(op=name, arguments=arguments, **options)
    function = getattr(np, name)
    result = expected_dtype(function, array, *arguments, **options)
    expected = function(np.asarray(array, np.float64), *arguments, **options)
    if options.get("method") in ("lower", "higher"):
        expected = function(array, *arguments, **options)
    x = await case.put(array)
    got = await case.fetch(await getattr(case.device.array, name)(x, *arguments, **options))
    most = np.nanmax(np.abs(np.asarray(array, np.float64)), initial=0.0)
    close(got, expected, dtype=result, factor=16.0, magnitude=most)
    return None


async def count(case: Case) -> str | None:
    """Bins and histograms."""
    random = case.random
    if chance(random, 0.5):
        array = random.integers(0, 20, shape(random, 1, 1)).astype(
            choose(random, ("int64", "int32", "uint8"))
        )
        options: dict[str, Any] = {"minlength": int(random.integers(0, 30))}
        weights = values(random, array.shape, choose(random, REAL)) if chance(random, 0.5) else None
        case.tell(op="bincount", weighted=weights is not None, **options)
        expected = np.bincount(array, weights, **options)
        x = await case.put(array)
        w = None if weights is None else await case.put(weights)
        if chance(random, 0.5):
            options["length"] = max(options["minlength"], 20)
            expected = np.concatenate(
                (expected, np.zeros(options["length"] - len(expected), expected.dtype))
            )
        got = await case.fetch(await case.device.array.bincount(x, w, **options))
        result = np.dtype(np.int64 if weights is None else np.float64)
        close(
            got, expected.astype(result), dtype=result, factor=64.0, magnitude=2 * array.size**0.5
        )
        return None
    array = values(random, shape(random, 1, 2), choose(random, (*REAL, *INTEGERS)))
    bins: Any = int(random.integers(1, 12))
    options = {"range": (-3.0, 3.0)} if chance(random, 0.5) else {}
    if chance(random, 0.3):
        bins, options = np.sort(np.round(random.uniform(-5, 5, 6), 2)), {}
    if array.dtype.kind == "f":
        array = np.round(array * 7) / 8 + array.dtype.type(0.03125)  # far from most edges
    case.tell(op="histogram", bins=bins, **options)
    if array.dtype == np.float32 and not options:
        return "edges of float32 are a matter of rounding"
    expected, edges = np.histogram(array, bins, **options)
    x = await case.put(array)
    got, where = await case.fetch(await case.device.array.histogram(x, bins, **options))
    close(where, edges, factor=8.0, magnitude=10.0)
    assert got.sum() == expected.sum(), f"{got.sum()} in all, expected {expected.sum()}"
    if abs(got - expected).sum() > 2:
        same(got, expected)
    return None


async def elementwise(case: Case) -> str | None:
    """Check elementwise functions with options."""
    random = case.random
    name = choose(random, ("astype", "where", "clip", "round", "isclose", "ascontiguousarray"))
    dtype = choose(random, DTYPES)
    of = shape(random)
    library = case.device.array
    case.tell(op=name)
    if name == "astype":
        to = choose(random, DTYPES)
        array = np.abs(values(random, of, dtype)).astype(dtype)
        if array.dtype.kind == "c" and dtype_of(to).kind != "c":
            array = array.real.astype(array.dtype)
        case.tell(to=to)
        x = await case.put(array)
        await case.poison(array.size * dtype_of(to).itemsize)
        made = await case.fetch(await library.astype(x, dtype_of(to)))
        source = array.real if array.dtype.kind == "c" and dtype_of(to).kind != "c" else array
        same(made, source.astype(dtype_of(to)))
    elif name == "where":
        one, other = values(random, of, dtype, odd=0.1), values(random, of[1:], dtype, odd=0.1)
        mask = values(random, of, "bool")
        m, x, y = await case.put(mask), await case.put(one), await case.put(other)
        options = {"out": await case.output(of, one.dtype)} if chance(random, 0.3) else {}
        await case.poison(one.nbytes)
        same(await case.fetch(await library.where(m, x, y, **options)), np.where(mask, one, other))
    elif name == "clip":
        array = values(random, of, choose(random, (*SIGNED, *REAL)), odd=0.1)
        low, high = choose(random, ((-1, 1), (None, 2), (0, None), (-3, 3)))
        case.tell(low=low, high=high)
        x = await case.put(array)
        same(await case.fetch(await library.clip(x, low, high)), np.clip(array, low, high))
    elif name == "round":
        array = values(random, of, choose(random, (*REAL, "float16", *INTEGERS)), odd=0.1)
        decimals = choose(random, (0, 0, 1, 3)) if array.dtype.kind == "f" else 0
        case.tell(decimals=decimals)
        x = await case.put(array)
        got = await case.fetch(await library.round(x, decimals))
        close(got, np.round(array, decimals), dtype=array.dtype, factor=2.0)
    elif name == "isclose":
        one = values(random, of, choose(random, REAL), odd=0.2)
        other = np.where(random.random(of) < 0.5, one, one * 1.001).astype(one.dtype)
        nan = chance(random, 0.5)
        x, y = await case.put(one), await case.put(other)
        got = await case.fetch(await library.isclose(x, y, equal_nan=nan))
        same(got, np.isclose(one, other, equal_nan=nan))
    else:
        array = values(random, of, dtype, odd=0.1)
        x = await case.put(array)
        same(await case.fetch(await library.ascontiguousarray(x)), np.ascontiguousarray(array))
    return None


async def build(case: Case) -> str | None:
    """Check arrays that are made from nothing, or from an array's shape."""
    random = case.random
    dtype = dtype_of(choose(random, (*SIGNED, *UNSIGNED, *FLOATS)))
    n, m, k = (int(each) for each in random.integers(0, 40, 3))
    k -= 20
    library: Any = case.device.array
    low, high = np.round(random.uniform(-5, 5, 2), 2)
    step = 1 + n % 3
    rows: dict[str, tuple[Any, Any, float]] = {
        "eye": (library.eye(n, m, k, dtype), lambda: np.eye(n, m, k, dtype), 0),
        "identity": (library.identity(n, dtype), lambda: np.identity(n, dtype), 0),
        "tri": (library.tri(n, m, k, dtype), lambda: np.tri(n, m, k, dtype), 0),
        "arange": (library.arange(k, k + n, step), lambda: np.arange(k, k + n, step), 0),
        "linspace": (library.linspace(low, high, n), lambda: np.linspace(low, high, n), 8),
        "logspace": (library.logspace(low, high, n), lambda: np.logspace(low, high, n), 512),
        "indices": (library.indices((3, m)), lambda: np.indices((3, m)), 0),
        "full": (library.full((n, 3), 7, dtype), lambda: np.full((n, 3), 7, dtype), 0),
    }
    name = choose(random, list(rows))
    case.tell(op=name, n=n, m=m, k=k, low=low, high=high, dtype=dtype)
    call, reference, factor = rows[name]
    expected = np.asarray(reference())
    await case.poison(expected.nbytes)
    got = await case.fetch(await call)
    if factor:
        close(got, expected, dtype=expected.dtype, factor=factor, magnitude=5.0)
    else:
        same(got, expected)
    return None


async def norm(case: Case) -> str | None:
    """Norms of vectors and matrices."""
    random = case.random
    of = shape(random, 1, 3, empty=False)
    array = values(random, of, choose(random, (*REAL, *COMPLEX)))
    ordinary: Any = choose(random, (None, 1, 2, np.inf, -np.inf, 3))
    along: Any = axis(random, len(of), none=False)
    if len(of) > 1 and chance(random, 0.4):
        ordinary, along = choose(random, ("fro", None)), (0, len(of) - 1)
    options = {"ord": ordinary, "axis": along, "keepdims": chance(random, 0.3)}
    case.tell(op="norm", **options)
    expected = np.linalg.norm(
        wide(array).astype(np.complex128 if array.dtype.kind == "c" else np.float64), **options
    )
    x = await case.put(array)
    got = await case.fetch(await case.device.array.norm(x, **options))
    result = {"complex64": "float32", "complex128": "float64"}.get(array.dtype.name, array.dtype)
    close(got, expected, dtype=result, factor=32.0)
    return None


OPS: Final[list[Callable[[Case], Awaitable[str | None]]]] = [
    reduce, reduce, reduce, reduce, scan, order, count, elementwise, elementwise, build, norm,
]  # fmt: skip


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    return await checked(device, random, OPS)
