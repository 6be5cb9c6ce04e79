"""Cases of expressions: random trees of NumPy's functions, as one kernel, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import scipy.special

from atomr_accel import Device

from .cases import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    REAL,
    Case,
    axis,
    chance,
    choose,
    close,
    same,
    shape,
    values,
)

Array = np.ndarray[Any, Any]
Random = np.random.Generator

EXACT: Final[tuple[Any, ...]] = (
    np.negative, np.absolute, np.sign, np.square, np.logical_not, np.isnan, np.isfinite,
    np.isinf, np.floor, np.ceil, np.trunc, np.rint, np.signbit,
)  # fmt: skip
"""Functions of one array whose results are NumPy's to the last bit, of real numbers."""

SMOOTH: Final[tuple[Any, ...]] = (
    np.exp, np.exp2, np.expm1, np.log, np.log2, np.log10, np.log1p, np.sin, np.cos, np.tan,
    np.arcsin, np.arccos, np.arctan, np.sinh, np.cosh, np.tanh, np.arcsinh, np.arccosh,
    np.arctanh, np.sqrt, np.cbrt, np.reciprocal, np.deg2rad, np.rad2deg,
    scipy.special.erf, scipy.special.erfc, scipy.special.expit, scipy.special.ndtr,
    scipy.special.ndtri, scipy.special.psi, scipy.special.i0, scipy.special.i1,
    scipy.special.j0, scipy.special.j1, scipy.special.y0, scipy.special.y1,
)  # fmt: skip

PAIRS: Final[tuple[Any, ...]] = (
    np.add, np.subtract, np.multiply, np.maximum, np.minimum, np.fmax, np.fmin, np.equal,
    np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.logical_and,
    np.logical_or, np.logical_xor,
)  # fmt: skip

QUOTIENTS: Final[tuple[Any, ...]] = (
    np.divide, np.floor_divide, np.remainder, np.fmod, np.hypot, np.arctan2, np.copysign,
    np.logaddexp, np.power, np.float_power, scipy.special.beta, scipy.special.betaln,
)  # fmt: skip

BITS: Final[tuple[Any, ...]] = (
    np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift, np.gcd, np.lcm,
)  # fmt: skip


async def evaluate(case: Case, function: Callable[..., Any], *arrays: Array, **how: Any) -> Any:
    """Return a function's result on refs, and its result on arrays."""
    refs = [await case.put(array) for array in arrays]
    expected = np.asarray(function(*arrays))
    options = {}
    if chance(case.random, 0.15):
        options["out"] = await case.output(expected.shape, expected.dtype)
    await case.poison(expected.nbytes)
    if chance(case.random, 0.2):
        case.tell(fused=True)
        made = await case.device.fuse(function)(*refs)
    else:
        made = await case.device.evaluate(function(*refs), **options)
    return await case.fetch(made), expected


async def single(case: Case) -> str | None:
    """One function of one array, odd values too."""
    random = case.random
    if chance(random, 0.4):
        function = choose(random, EXACT)
        dtype = choose(random, (*FLOATS, *INTEGERS, "bool"))
    else:
        function = choose(random, SMOOTH)
        dtype = choose(random, FLOATS)
    odd = choose(random, (0.0, 0.2))
    array = values(random, shape(random, 0, 3), dtype, odd=odd, largest=True)
    case.tell(op=function.__name__, dtype=dtype)
    try:
        function(array)
    except TypeError:
        return "NumPy refuses: TypeError"
    got, expected = await evaluate(case, function, array)
    if function in EXACT:
        same(got, expected)
        return None
    large = array.astype(np.float64)
    exact = function(large)
    # Near zeros of a function the error is that of its argument, rounded; SciPy's functions of
    # float16 are computed and given in float32, with errors that grow where they fall steeply.
    factor = 64.0 if array.itemsize < expected.itemsize else 8.0
    terms = np.abs(large) * (array.itemsize > 2)
    close(got, exact, dtype=expected.dtype, factor=factor, magnitude=terms)
    return None


async def pair(case: Case) -> str | None:
    """One function of two arrays that broadcast, or of an array and a number."""
    random = case.random
    kind = choose(random, ("exact", "exact", "quotient", "bits"))
    of = shape(random, 0, 3)
    other = tuple(
        1 if chance(random, 0.2) else side for side in of[int(random.integers(len(of) + 1)) :]
    )
    functions = {"exact": PAIRS, "quotient": QUOTIENTS, "bits": BITS}[kind]
    kinds = {"exact": (*FLOATS, *INTEGERS), "quotient": REAL, "bits": INTEGERS}[kind]
    function, dtype = choose(random, functions), choose(random, kinds)
    odd = choose(random, (0.0, 0.2)) if kind == "exact" else 0.0
    one, two = values(random, of, dtype, odd=odd), values(random, other, dtype, odd=odd)
    if kind == "bits":
        two = np.abs(two) % 8
    elif kind == "quotient":
        two = np.where(np.abs(two) < 0.25, two.dtype.type(0.5), two)
        if function in (np.power, np.float_power):
            one = np.abs(one)
        if function in (np.floor_divide, np.remainder, np.fmod):
            one, two = np.round(one * 4), np.round(two * 4) + (np.round(two * 4) == 0)
        one, two = one.astype(dtype), two.astype(dtype)
    case.tell(op=function.__name__, dtype=dtype, other=other)
    try:
        function(one, two)
    except TypeError:
        return "NumPy refuses: TypeError"
    got, expected = await evaluate(case, function, one, two)
    if kind == "quotient":
        exact = function(one.astype(np.float64), two)
        # The logarithm of a sum near 1 is small, and as precise as its arguments are.
        terms = np.maximum(abs(one), abs(two)) if function is np.logaddexp else 0.0
        close(got, exact, dtype=expected.dtype, factor=16.0, magnitude=terms)
    else:
        same(got, expected)
    return None


async def chain(case: Case) -> str | None:
    """A tree of exact functions, and what sums over it, in one kernel."""
    random = case.random
    dtype = choose(random, (*REAL, "int32", "int64"))
    of = shape(random, 1, 3)
    arrays = [np.round(values(random, of, dtype)).astype(dtype) for _ in range(2)]
    arrays.append(np.round(values(random, of[1:], dtype)).astype(dtype))
    steps = [
        (
            choose(random, (np.add, np.subtract, np.multiply, np.maximum, np.minimum)),
            int(random.integers(3)),
        )
        for _ in range(int(random.integers(1, 5)))
    ]
    ends = choose(random, (None, "sum", "max", "min", "mean", "where"))
    along = axis(random, len(of), several=True)
    if 0 in of and ends in ("max", "min", "mean"):
        ends = "sum"
    case.tell(op="chain", steps=[(step.__name__, at) for step, at in steps], ends=ends, axis=along)

    def function(*given: Any) -> Any:
        made = given[0] * 2 + 1
        for step, at in steps:
            made = step(made, given[at])
        if ends == "where":
            return np.where(made > 0, made, given[0])
        return made if ends is None else getattr(np, ends)(made, axis=along)

    got, expected = await evaluate(case, function, *arrays)
    if ends in ("sum", "mean"):
        large = function(*[array.astype(np.float64) for array in arrays])
        terms = np.abs(function(*arrays[:0], *[array.astype(np.float64) for array in arrays]))
        most = 20.0 * 4.0 ** len(steps) * max(1, arrays[0].size) ** 0.5
        del terms
        close(
            got,
            expected if expected.dtype.kind in "iu" else large,
            dtype=expected.dtype,
            factor=8.0,
            magnitude=most,
        )
    else:
        same(got, expected)
    return None


async def complexes(case: Case) -> str | None:
    """Functions of complex numbers."""
    random = case.random
    dtype = choose(random, COMPLEX)
    functions: tuple[Any, ...] = (
        np.conj, np.real, np.imag, np.absolute, np.exp, np.log, np.sqrt, np.sin, np.cos, np.tanh,
        np.angle, np.square, np.negative,
    )  # fmt: skip
    function = choose(random, functions)
    array = values(random, shape(random, 0, 3), dtype)
    case.tell(op=function.__name__, dtype=dtype)
    got, expected = await evaluate(case, function, array)
    exact = function(array.astype(np.complex128))
    close(got, exact, dtype=expected.dtype, factor=32.0, magnitude=1.0)
    return None


OPS: Final[tuple[Any, ...]] = (single, single, pair, pair, chain, complexes)


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    case = Case(device, random)
    with case.described():
        refused: str | None = await choose(random, OPS)(case)
        await case.finish()
    return refused
