"""Random cases: shapes, dtypes, values, views and outputs, and how results are compared.

Shapes come from small pools, because kernels and plans are compiled and kept for each: a run of
thousands of cases reuses them. Values include what a dtype's arithmetic finds odd, if asked for.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import ml_dtypes
import numpy as np

from atomr_accel import Device, GpuRef

from ..libraries.conformance import dtype_of, eps_of, wide

Array = np.ndarray[Any, Any]
Random = np.random.Generator
T = TypeVar("T")

SIGNED: Final = ("int8", "int16", "int32", "int64")
UNSIGNED: Final = ("uint8", "uint16", "uint32", "uint64")
INTEGERS: Final = (*SIGNED, *UNSIGNED)
HALF: Final = ("float16", "bfloat16")
REAL: Final = ("float32", "float64")
FLOATS: Final = (*HALF, *REAL)
COMPLEX: Final = ("complex64", "complex128")
NUMBERS: Final = (*INTEGERS, *FLOATS, *COMPLEX)
DTYPES: Final = ("bool", *NUMBERS)

SIDES: Final = (0, 1, 2, 3, 5, 8, 17, 33)
"""Lengths of an axis, except for the last one of some arrays."""

LONG: Final = (64, 129, 257, 1000, 4099)
"""Lengths of one axis of some arrays."""

MOST: Final = 20_000
"""Elements of an array."""

POISON: Final = 0xFF
"""A byte that makes a NaN of every float type, and the largest number of unsigned integers."""

_finfo: Final[Callable[..., Any]] = ml_dtypes.finfo

LAYOUTS: Final = ("plain", "plain", "transposed", "gaps", "reversed", "offset", "gaps of rows")


class Structured(np.random.Generator):
    """Chance for the structure of a case, which kernels are compiled for, and for its values."""

    def __init__(self, structure: int, content: int) -> None:
        super().__init__(np.random.PCG64(structure))
        self.content: Final = np.random.default_rng(content)


def choose(random: Random, items: Sequence[T]) -> T:
    """One of some."""
    return items[int(random.integers(len(items)))]


def chance(random: Random, probability: float) -> bool:
    """True, this often."""
    return bool(random.random() < probability)


def shape(random: Random, least: int = 0, most: int = 4, *, empty: bool = True) -> tuple[int, ...]:
    """The shape of an array.

    Args:
        random: chance.
        least: of axes.
        most: of axes.
        empty: whether an axis may be 0.
    """
    sides = SIDES if empty and chance(random, 0.1) else SIDES[1:]
    found = [choose(random, sides) for _ in range(int(random.integers(least, most + 1)))]
    if found and chance(random, 0.25):
        found[int(random.integers(len(found)))] = choose(random, LONG)
    while math.prod(found) > MOST:
        found[found.index(max(found))] = 2
    return tuple(found)


def axis(random: Random, ndim: int, *, none: bool = True, several: bool = False) -> Any:
    """An axis, counted from either side; or None, or several of them."""
    if none and (not ndim or chance(random, 0.2)):
        return None
    if several and ndim > 1 and chance(random, 0.3):
        count = int(random.integers(1, ndim + 1))
        return tuple(map(int, random.permutation(ndim)[:count]))
    return int(random.integers(-ndim, ndim))


def values(
    random: Random, of: Sequence[int], dtype: str, *, odd: float = 0.0, largest: bool = False
) -> Array:
    """Numbers whose sums and products fit the smallest types.

    Args:
        random: chance.
        of: the shape.
        dtype: its name.
        odd: how many of the elements are NaN, infinite, denormal, or zeros with a sign.
        largest: whether the largest number is among these; two of them have no sum.
    """
    if isinstance(random, Structured):
        random = random.content
    kind = dtype_of(dtype)
    of = tuple(of)
    if kind.kind == "b":
        return random.integers(0, 2, of).astype(bool)
    if kind.kind in "iu":
        low = 0 if kind.kind == "u" else -9
        made: Array = random.integers(low, 10, of).astype(kind)
        if odd and chance(random, 0.5):
            info = np.iinfo(kind)
            edges = np.array([info.min, info.max, info.max - 1, 0], kind)
            made = np.where(random.random(of) < odd, random.choice(edges, of), made)
        return np.asarray(made, kind)
    plain = random.uniform(-2, 2, of)
    if chance(random, 0.3):
        plain = np.round(plain * 4)  # sums are exact, and values come several times
    if kind.kind == "c":
        plain = plain + 1j * random.uniform(-2, 2, of)
    made = np.asarray(plain).astype(kind)
    if odd:
        if kind.kind == "c":
            parts = [values(random, of, {8: "float32", 16: "float64"}[kind.itemsize], odd=odd)] * 2
            return np.asarray(parts[0] + made.imag * 1j).astype(kind)
        limits = _finfo(kind)
        strange = [np.nan, np.inf, -np.inf, 0.0, -0.0, limits.smallest_subnormal]
        strange += [limits.max] * largest
        made = np.where(random.random(of) < odd, random.choice(np.array(strange, kind), of), made)
    return np.asarray(made, kind)


def viewed(random: Random, array: Array) -> tuple[Array, Callable[[Any], Any], str]:
    """A buffer that has an array inside, how to view that, and its name."""
    if not array.ndim:
        return array, lambda ref: ref, "plain"
    layout = choose(random, LAYOUTS)
    last, filler = array.shape[-1], garbage(array.shape, array.dtype)
    if layout == "transposed" and array.ndim > 1:
        order = tuple(map(int, random.permutation(array.ndim)))
        back = tuple(map(int, np.argsort(order)))
        buffer = np.ascontiguousarray(array.transpose(order))
        return buffer, lambda ref: ref.transpose(back), f"transposed {back}"
    if layout == "gaps":
        buffer = np.stack((array, filler), -1).reshape(*array.shape[:-1], 2 * last)
        return buffer, lambda ref: ref[..., ::2], layout
    if layout == "reversed":
        buffer = np.ascontiguousarray(array[::-1])
        return buffer, lambda ref: ref[::-1], layout
    if layout == "offset":
        buffer = np.concatenate((filler[:1], array))
        skip = len(filler[:1])
        return buffer, lambda ref: ref[skip:], layout
    if layout == "gaps of rows":
        buffer = np.concatenate((filler, array, filler), -1)
        return buffer, lambda ref: ref[..., last : 2 * last], layout
    return np.ascontiguousarray(array), lambda ref: ref, "plain"


def garbage(of: Sequence[int], dtype: Any) -> Array:
    """An array of NaN, or of integers of ones alone."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.ones(tuple(of), kind)
    raw: Array = np.full(math.prod(of) * kind.itemsize, POISON, np.uint8)
    made: Array = raw.view(kind).reshape(tuple(of))
    return made


@dataclass
class Case:
    """State of one case, with a description for its repetition.

    Attributes:
        device: the device that runs it.
        random: the source of random choices.
        told: the arguments, for the report.
        sent: the arrays on the device, and the content that they must keep.
    """

    device: Device
    random: Random
    told: dict[str, Any] = field(default_factory=dict)
    sent: list[tuple[GpuRef, Array]] = field(default_factory=list)

    def tell(self, **words: Any) -> None:
        """Add to the description."""
        self.told.update(words)

    async def put(self, array: Array, *, views: bool = True, kept: bool = True) -> GpuRef:
        """Send an array, perhaps as a view of a larger buffer.

        Args:
            array: the values.
            views: whether the ref may be a view.
            kept: whether ``finish`` checks that the array is unchanged.
        """
        name = f"x{len(self.sent)}"
        buffer, view, layout = viewed(self.random, array) if views else (array, _same, "plain")
        whole = await self.device.put(buffer)
        self.tell(**{name: f"{array.dtype}{list(array.shape)} {layout}"})
        if kept:
            self.sent.append((whole, buffer.copy()))
        ref: GpuRef = view(whole)
        return ref

    async def output(self, of: Sequence[int], dtype: Any, *, views: bool = True) -> GpuRef:
        """An array of garbage, perhaps a view, for ``out=``."""
        self.tell(out=True)
        return await self.put(garbage(of, dtype), views=views, kept=False)

    async def poison(self, *sizes: int) -> None:
        """Fill the free memory that buffers of these many bytes will be made of."""
        await poisoned(self.device, *sizes)

    async def fetch(self, made: Any) -> Any:
        """Return the result of a call on the host."""
        if isinstance(made, tuple | list):
            return tuple([await self.fetch(each) for each in made])
        return await self.device.get(made) if isinstance(made, GpuRef) else np.asarray(made)

    async def finish(self) -> None:
        """Check that inputs, and the bytes between their elements, are unchanged."""
        for ref, array in self.sent:
            got = await self.device.get(ref)
            assert got.tobytes() == array.tobytes(), "an input was changed"

    @contextmanager
    def described(self) -> Iterator[None]:
        """Have errors say which case it was."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                yield
        except Exception as error:
            error.add_note(", ".join(f"{name}={_short(word)}" for name, word in self.told.items()))
            raise


async def checked(
    device: Device, random: Random, ops: Sequence[Callable[[Case], Awaitable[str | None]]]
) -> str | None:
    """Run one of the ops with a case of its own; return why it was refused, if it was."""
    case = Case(device, random)
    with case.described():
        refused = await choose(random, ops)(case)
        await case.finish()
    return refused


def _same(ref: Any) -> Any:
    return ref


def _short(word: Any) -> str:
    text = repr(word)
    return text if len(text) < 200 else f"{text[:200]}..."


async def poisoned(device: Device, *sizes: int) -> None:
    """Fill the free memory that buffers of these many bytes will be made of."""
    refs = [await device.full((max(1, size),), POISON, np.uint8) for size in sizes]
    for ref in reversed(refs):  # the allocator hands out first what came back last
        await device.free(ref)


def same(got: Any, expected: Any, *, dtype: Any = None) -> None:
    """Hold a result against an exact one: shape, dtype and values; any NaN is like any other."""
    got, expected = np.asarray(got), np.asarray(expected)
    dtype = expected.dtype if dtype is None else np.dtype(dtype)
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    assert got.dtype == dtype, f"dtype {got.dtype}, expected {dtype}"
    if got.tobytes() == np.asarray(expected, dtype).tobytes():
        return
    one, other = wide(got), wide(np.asarray(expected, dtype))
    equal = one == other
    if one.dtype.kind in "fc":
        equal |= np.isnan(one) & np.isnan(other)
    _report(~equal, one, other)


def close(
    got: Any,
    expected: Any,
    *,
    dtype: Any = None,
    factor: float = 8.0,
    magnitude: Any = 0.0,
    slack: Any = 0.0,
) -> None:
    """Hold a result against one computed in a wider type.

    Args:
        got: the result.
        expected: the reference.
        dtype: of the result; not checked if None.
        factor: how many units of the last place the error may be.
        magnitude: of the terms that were summed up: what cancels costs precision.
        slack: an absolute error besides.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    if dtype is not None:
        assert got.dtype == np.dtype(dtype), f"dtype {got.dtype}, expected {np.dtype(dtype)}"
    if got.dtype.kind in "iub" and expected.dtype.kind in "iub":
        same(got, expected.astype(got.dtype))
        return
    number = np.clongdouble if "c" in (got.dtype.kind, expected.dtype.kind) else np.longdouble
    actual, exact = _long(got).astype(number), _long(expected).astype(number)
    if number is np.clongdouble:
        parts = [(actual.real, exact.real), (actual.imag, exact.imag)]
        size = np.abs(np.where(np.isfinite(exact), exact, 0))
    else:
        parts = [(actual, exact)]
        size = np.zeros(())
    eps = eps_of(got.dtype) or 2.0**-40
    info = _finfo(got.dtype) if got.dtype.kind not in "iub" else None
    most, least = (float(info.max), float(info.smallest_normal)) if info else (np.inf, 0.0)
    terms = np.nan_to_num(np.asarray(magnitude, np.longdouble), posinf=0.0)
    for one, other in parts:
        finite = np.isfinite(other)
        base = np.where(finite, other, 0)
        allowed = factor * eps * (np.maximum(np.abs(base), size) + terms) + slack + least
        with np.errstate(invalid="ignore"):
            right = np.abs(one - base) <= allowed
            # What rounds to infinity, or nearly, may be it.
            right |= (np.abs(base) + allowed >= most) & ~np.isnan(one)
        right = np.where(finite, right, (one == other) | (np.isnan(one) & np.isnan(other)))
        _report(~right, actual, exact)


def _long(array: Array) -> Array:
    """An array as long as there is, of narrow floats too."""
    if array.dtype.kind in "iub":
        return array.astype(np.longdouble)
    return array if array.dtype.char in "gG" else wide(array)


def _report(bad: Array, one: Array, other: Array) -> None:
    if bad.any():
        where = tuple(map(int, np.argwhere(bad)[0]))
        raise AssertionError(
            f"{int(bad.sum())} of {bad.size} elements are wrong; the first at {where}: "
            f"{one[where]} instead of {other[where]}"
        )
