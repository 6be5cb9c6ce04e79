"""Checks of draws' arguments, made in the caller as ``numpy.random.Generator`` makes them."""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._dtypes import DTYPES, NAMES, REAL_KINDS, as_dtype, number_kind
from ..._errors import Unsupported
from ...arrays import as_shape, ref_error
from ...arrays.expressions import Operand
from ...ops import require_ref, require_shape, require_writable
from ...wire.options import LARGEST, real, whole
from .wire._distributions import FLOATS, WHOLE, GeneratorKind, bounds

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from ...arrays import GpuRef
    from ...memory import MemoryMap

Size = int | tuple[int, ...] | list[int] | None

MOST_QUASI_LAM: Final = 400_000.0
"""Above that cuRAND's Poisson distribution does not go either."""

WHOLE_AND_FLAGS: Final = (*WHOLE, "bool")

_MOST_VARIANCE: Final = 1e8
_MOST_LAM: Final = 2.0**63 - 10 * 2.0**31.5
_SUM_TOLERANCE: Final = float(np.sqrt(np.finfo(np.float64).eps))


def number(value: Any, name: str, _dtype: str = "") -> float:
    """Return a scalar."""
    return real(value, name, finite=False)


def not_negative(value: Any, name: str, _dtype: str = "") -> float:
    """Return a scalar that is zero or more."""
    converted = real(value, name, finite=False)
    if not converted >= 0:
        raise ValueError(f"{name} must be at least 0, not {converted}")
    return converted


def shape_parameter(value: Any, name: str, dtype: str) -> float:
    """Return a parameter of a gamma variate that is computed for a dtype.

    Raises:
        ValueError: it is negative, NaN, or infinite in the dtype of the computation, with which
            drawing would not end.
    """
    converted = not_negative(value, name)
    most = float(np.finfo(np.float64 if dtype == "float64" else np.float32).max)
    if converted > most:
        raise ValueError(f"{name} must be at most {most} for {dtype}, not {converted}")
    return converted


def positive_shape(value: Any, name: str, _dtype: str) -> float:
    """Return a parameter of a beta variate, which is computed in double for all dtypes."""
    converted = real(value, name, finite=False)
    if not converted > 0:
        raise ValueError(f"{name} must be more than 0, not {converted}")
    return shape_parameter(converted, name, "float64")


def interval(low: Any, high: Any, dtype: str) -> tuple[float, float]:
    """Return an interval of a dtype as its start and its length.

    Raises:
        OverflowError: an end is infinite in the dtype, or NaN; or the length is infinite in the
            dtype of the computation, float64 or float32.
    """
    start, end = real(low, "low", finite=False), real(high, "high", finite=False)
    computed = np.float64 if dtype == "float64" else np.float32
    with np.errstate(over="ignore"):
        ends = np.array([start, end]).astype(DTYPES[dtype]).astype(computed)
        length = computed(end - start)
    if not (np.isfinite(ends).all() and np.isfinite(length)):
        raise OverflowError(
            f"high - low range exceeds valid bounds of {dtype}: low={start}, high={end}"
        )
    if end < start:
        raise ValueError(f"high must not be less than low: low={start}, high={end}")
    return start, end - start


def event_rate(lam: Any, dtype: str, kind: GeneratorKind) -> float:
    """Return the mean of a Poisson distribution."""
    rate = real(lam, "lam", finite=False)
    if not rate >= 0:
        raise ValueError(f"lam must be at least 0, not {rate}")
    most = min(_MOST_LAM, float(bounds(dtype)[1]))
    if rate + 10 * math.sqrt(rate) > most:
        raise ValueError(f"lam is too large for {dtype}: {rate}")
    if kind.quasi and rate > MOST_QUASI_LAM:
        raise Unsupported(
            f"quasi-random Poisson numbers go up to lam={MOST_QUASI_LAM:.0f}, not {rate}"
        )
    return rate


def integer_range(low: Any, high: Any, dtype: str, *, endpoint: bool) -> tuple[int, int]:
    """Return the least integer of a range, and the number of integers."""
    first, last = (0, operator.index(low)) if high is None else map(operator.index, (low, high))
    if not endpoint:
        last -= 1
    least, most = bounds(dtype)
    if first < least:
        raise ValueError(f"low is out of bounds for {dtype}: {first} is less than {least}")
    if last > most:
        raise ValueError(f"high is out of bounds for {dtype}: {last} is more than {most}")
    if first > last:
        comparison = "low > high" if endpoint else "low >= high"
        raise ValueError(f"{comparison}: there is no integer from {first} to {last}")
    return first, last - first + 1


def item_count(thing: object, name: str, memory: MemoryMap) -> int:
    """Return the number of items, for a caller that passes no ref of items."""
    array = isinstance(thing, np.ndarray) and thing.ndim
    if array or isinstance(thing, (list, tuple, Operand)):
        raise ref_error(thing, memory, name)
    return whole(thing, name, most=LARGEST)


def probabilities(
    p: ArrayLike, items: int, name: str = "p"
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the probabilities of ``items`` items."""
    given = np.asarray(p)
    if number_kind(given.dtype) not in REAL_KINDS:
        raise TypeError(f"{name} must be made of real numbers, not of {given.dtype}")
    chances = given.astype(np.float64)
    if chances.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, not of shape {chances.shape}")
    if len(chances) != items:
        raise ValueError(f"a and p must have same size: a has {items} items, p has {len(chances)}")
    if np.isnan(chances).any():
        raise ValueError(f"probabilities contain NaN, at {int(np.isnan(chances).argmax())}")
    if (chances < 0).any():
        worst = int(chances.argmin())
        raise ValueError(f"probabilities are not non-negative: {name}[{worst}] is {chances[worst]}")
    total = float(chances.sum())
    if abs(total - 1) > _SUM_TOLERANCE:
        raise ValueError(f"probabilities must sum to 1, not to {total}")
    return chances


def shape_of(size: Size, out: GpuRef | None, dimensions: int) -> tuple[int, ...]:
    """The shape of a result.

    Args:
        size: as in NumPy; None gives one value, one point, or what ``out`` takes.
        out: where to put it, or None.
        dimensions: coordinates of a quasi-random point; 1 for other generators.
    """
    one = () if dimensions == 1 else (dimensions,)
    made = one if out is None else out.shape
    shape = made if size is None else as_shape(size)
    if dimensions != 1 and (not shape or shape[-1] != dimensions):
        raise ValueError(
            f"size must end with the {dimensions} dimensions of each point, not {shape}"
        )
    return shape


def dtype_of(
    dtype: DTypeLike | None,
    out: GpuRef | None,
    default: str,
    *,
    whole: bool = False,
    flags: bool = False,
) -> np.dtype[Any]:
    """The dtype of a result.

    ``whole`` wants an integer type rather than a floating one, and ``flags`` allows bool, too.
    """
    if out is not None:
        require_ref(out, "out")
    usual = DTYPES[default] if out is None else out.dtype
    chosen = usual if dtype is None else as_dtype(dtype)
    name = NAMES[chosen]
    allowed = (WHOLE_AND_FLAGS if flags else WHOLE) if whole else FLOATS
    if name not in allowed:
        raise TypeError(f"dtype must be one of {', '.join(allowed)}, not {name}")
    return chosen


def check_out(out: GpuRef, memory: MemoryMap, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise where ``out`` cannot take a result."""
    require_writable(out, memory, "out")
    require_shape(out, shape, "out")
    if out.dtype is not dtype:
        raise TypeError(f"out must have dtype {dtype.name}, not {out.dtype.name}")


def whole_trials(n: Any, name: str = "n") -> int:
    """Return a number of trials."""
    count = whole(n, name)
    if count < 0:
        raise ValueError(f"{name} must be at least 0, not {count}")
    return count


def trials(n: Any, p: Any, dtype: str) -> tuple[int, float]:
    """The parameters of a binomial distribution."""
    count, chance = whole_trials(n), real(p, "p", finite=False)
    if not 0 <= chance <= 1:
        raise ValueError(f"p must be from 0 to 1, not {chance}")
    if count > bounds(dtype)[1]:
        raise ValueError(f"n is out of bounds for {dtype}: {count}")
    if count * chance * (1 - chance) > _MOST_VARIANCE:
        raise Unsupported(
            f"binomial numbers go up to a variance n * p * (1 - p) of {_MOST_VARIANCE:.0f}, "
            f"and not {count * chance * (1 - chance):.0f}"
        )
    return count, chance


_MOST_ENTRIES: Final = 1 << 21
"""Largest number of entries of a table that is sent with a call: 16 MiB."""


@lru_cache(8)
def binomial_table(n: int, p: float) -> tuple[int, np.ndarray[Any, np.dtype[np.float64]]]:
    """The least number of successes worth a mention, and the distribution function from there.

    By the ratios of neighbours, whose logarithms are summed: the functions of libraries lose
    digits, or all, where ``n`` is large.
    """
    mean, spread = n * p, 12 * math.sqrt(n * p * (1 - p)) + 20
    first, last = max(0, math.floor(mean - spread)), min(n, math.ceil(mean + spread))
    if p in (0, 1):
        return n * int(p), np.ones(1)
    k = np.arange(first, last, dtype=np.float64)
    return first, _summed(np.log((n - k) / (k + 1)) + (math.log(p) - math.log1p(-p)))


def most_failures(n: float, p: float) -> float:
    """Return the largest number of failures before the n-th success worth a mention."""
    return n * (1 - p) / p + 12 * math.sqrt(n * (1 - p)) / p + 40 / p + 20


@lru_cache(8)
def failures_table(n: float, p: float) -> tuple[int, np.ndarray[Any, np.dtype[np.float64]]] | None:
    """The distribution function of failures before the n-th success, and where it begins.

    Its tail is that of a geometric distribution, so it takes more room than others: None, if that
    is too much.
    """
    if p == 1 or n == 0:
        return 0, np.ones(1)
    first = n * (1 - p) / p - 12 * math.sqrt(n * (1 - p)) / p - 20
    if not most_failures(n, p) - max(0, first) <= _MOST_ENTRIES:
        return None
    first, last = max(0, math.floor(first)), math.ceil(most_failures(n, p))
    k = np.arange(first, last, dtype=np.float64)
    return first, _summed(np.log((n + k) / (k + 1)) + math.log1p(-p))


@lru_cache(8)
def hypergeometric_table(
    good: int, bad: int, sample: int
) -> tuple[int, np.ndarray[Any, np.dtype[np.float64]]]:
    """The distribution function of good ones in a sample, and where it begins."""
    least, most = max(0, sample - bad), min(good, sample)
    items = good + bad
    mean = sample * good / items if items else 0.0
    variance = mean * (bad / items) * ((items - sample) / max(1, items - 1)) if items else 0.0
    spread = 12 * math.sqrt(variance) + 20
    first, last = max(least, math.floor(mean - spread)), min(most, math.ceil(mean + spread))
    _require_room(last - first)
    k = np.arange(first, last, dtype=np.float64)
    ratio = (good - k) / (k + 1) * ((sample - k) / (bad - sample + k + 1))
    return first, _summed(np.log(ratio))


def _summed(logs: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A distribution function, from logarithms of the ratios of neighbours."""
    logs = np.concatenate(([0.0], np.cumsum(logs)))
    table = np.cumsum(np.exp(logs - logs.max()))
    return np.asarray(table / table[-1], np.float64)


def covariance_factor(
    mean: ArrayLike, cov: ArrayLike, method: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A mean, and the matrix that rows of independent normal numbers are multiplied by."""
    centre, matrix = np.asarray(mean, np.float64), np.asarray(cov, np.float64)
    if centre.ndim != 1 or matrix.shape != (len(centre), len(centre)):
        raise ValueError(
            f"mean and cov must have shapes (d,) and (d, d), not {centre.shape} and {matrix.shape}"
        )
    if method not in ("svd", "eigh", "cholesky"):
        raise ValueError(f"method must be 'svd', 'eigh' or 'cholesky', not {method!r}")
    near = max(1e-300, float(np.abs(matrix).max(initial=0))) * _SUM_TOLERANCE
    if not np.isfinite(matrix).all() or (np.abs(matrix - matrix.T) > near).any():
        raise ValueError("cov must be symmetric and finite")
    if method == "cholesky":
        try:
            return centre, np.ascontiguousarray(np.linalg.cholesky(matrix).T)
        except np.linalg.LinAlgError:
            raise ValueError("cov must have eigenvalues above 0 for method='cholesky'") from None
    values, vectors = np.linalg.eigh(matrix)
    if (values < -near).any():
        raise ValueError("cov must have no negative eigenvalues")
    if method == "svd":  # of such matrices the same, in another order
        values, vectors = values[::-1], vectors[:, ::-1]
    roots = np.sqrt(np.maximum(values, 0))
    return centre, np.ascontiguousarray((vectors * roots).T)


def _require_room(entries: int) -> None:
    if entries > _MOST_ENTRIES:
        raise Unsupported(
            f"these parameters take a table of {entries} entries; the most is {_MOST_ENTRIES}"
        )


def chance(p: Any, name: str = "p") -> float:
    """Return a probability that is not 0."""
    value = real(p, name, finite=False)
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, not {value}")
    return value


@lru_cache(8)
def poisson_table(rate: float) -> tuple[int, np.ndarray[Any, np.dtype[np.float64]]]:
    """The least number of events worth a mention, and the distribution function from there."""
    from scipy.special import pdtr

    spread = 12 * math.sqrt(rate) + 20
    first = max(0, math.floor(rate - spread))
    table = np.asarray(pdtr(np.arange(first, math.ceil(rate + spread)), rate), np.float64)
    table[-1] = 1.0
    return first, table
