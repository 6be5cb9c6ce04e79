"""RNG on the CPU, with NumPy's generators and SciPy's Sobol sequences.

Every draw has its own generator, whose counter is the position in the sequence. Numbers therefore
depend on seed and position alone, as on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....host.host import IMPORTS
from ..wire._distributions import KINDS, digits
from ..wire._messages import Draw, Pick, Points, Take, UploadTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire._messages import Distribution

_Array = np.ndarray[Any, np.dtype[Any]]

_STREAM: Final = {kind: number for number, kind in enumerate(KINDS)}
_MASK: Final = 2**64 - 1
_BITS: Final = 32


@final
class CpuRng:
    """Executes RNG messages."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self.handlers: Final = {
            Draw: self._draw,
            Points: self._points,
            Pick: self._pick,
            Take: self._take,
            UploadTable: self._table,
        }

    def close(self) -> None:
        """Nothing is held."""

    def _draw(self, message: Draw) -> None:
        self._context.check()
        distribution, count = message.distribution, message.count
        target = self._context.array(message.target, (count,), DTYPES[distribution.dtype])
        rng = _generator(message.kind, message.key, message.position, message.rejection_offset)
        with np.errstate(all="ignore"):
            target[...] = _sample(distribution, count, rng, self._table_of(distribution))

    def _points(self, message: Points) -> None:
        self._context.check()
        distribution, shape = message.distribution, (message.count, message.dimensions)
        target = self._context.array(message.target, shape, DTYPES[distribution.dtype])
        if not target.size:
            return
        u = _sobol(message)
        with np.errstate(all="ignore"):
            target[...] = _quantile(distribution, u, self._table_of(distribution))

    def _pick(self, message: Pick) -> None:
        self._context.check()
        target = self._context.array(message.target, (message.count,), DTYPES["int64"])
        weights = None
        if message.weights:
            weights = self._context.array(message.weights, (message.items,), DTYPES["float64"])
            weights = weights / weights.sum()
        rng = _generator(message.kind, message.key, message.position, message.rejection_offset)
        target[...] = rng.choice(message.items, message.count, replace=False, p=weights)

    def _take(self, message: Take) -> None:
        self._context.check()
        index = self._context.array(message.index, (message.count,), DTYPES["int64"])
        if not len(index) or not message.nbytes:
            return
        context, nbytes = self._context, message.nbytes
        rows = context.bytes_at(message.rows, (int(index.max()) + 1) * nbytes)
        target = context.bytes_at(message.target, len(index) * nbytes)
        target.reshape(-1, nbytes)[...] = rows.reshape(-1, nbytes)[index]

    def _table(self, message: UploadTable) -> None:
        self._context.check()
        data = np.frombuffer(message.data, np.uint8)
        self._context.bytes_at(message.target, len(data))[...] = data

    def _table_of(self, distribution: Distribution) -> _Array:
        if not distribution.table:
            return np.empty(0)
        return self._context.array(distribution.table, (distribution.extent,), DTYPES["float64"])


def _generator(kind: str, key: int, position: int, rejection_offset: int) -> np.random.Generator:
    # Every draw moves one of the two places on, so no two of a sequence have the same words.
    counter = np.array([0, position & _MASK, rejection_offset & _MASK, _STREAM[kind]], np.uint64)
    seeds = np.array([key, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=seeds, counter=counter))


def _sample(
    distribution: Distribution, count: int, rng: np.random.Generator, table: _Array
) -> _Array:
    """Values of a distribution, in a dtype that converts to the distribution's."""
    if distribution.name.startswith("integers"):
        drawn = rng.integers(0, distribution.span or 2**64, count, np.uint64)
        return _lifted(drawn, distribution)
    if distribution.name == "search":
        return _found(rng.random(count), distribution, table)
    a, b = (*distribution.floats, 0.0, 0.0)[:2]
    if distribution.name == "geometric":
        return _first_successes(np.log1p(-rng.random(count)), a)
    in_double: dict[str, Callable[[], _Array]] = {
        "poisson": lambda: rng.poisson(a, count),
        "negative_binomial": lambda: rng.poisson(rng.gamma(a, b, count)),
        "gamma": lambda: rng.gamma(a, b, count),
        "beta": lambda: rng.beta(a, b, count),
        "cauchy": lambda: a + b * rng.standard_cauchy(count),
    }
    if distribution.name in in_double:
        return in_double[distribution.name]()
    kind: Any = np.float32 if DTYPES[distribution.dtype].itemsize < 8 else np.float64
    if distribution.name == "uniform":
        return np.asarray(kind(a) + kind(b) * _units(distribution.dtype, count, rng))
    if distribution.name == "exponential":
        return np.asarray(kind(a) * rng.standard_exponential(count, kind))
    values: _Array = kind(a) + kind(b) * rng.standard_normal(count, kind)
    return np.exp(values) if distribution.name == "lognormal" else values


def _units(dtype: str, count: int, rng: np.random.Generator) -> _Array:
    """Uniform numbers in [0, 1) that do not round up to 1 in their dtype."""
    if dtype == "float64":
        return rng.random(count)
    if dtype == "float32":
        return rng.random(count, np.float32)
    steps = 1 << digits(dtype)
    return rng.integers(0, steps, count).astype(np.float32) / np.float32(steps)


def _lifted(drawn: _Array, distribution: Distribution) -> _Array:
    """Integers from zero on as those from ``low`` on; signed ones wrap around."""
    return (drawn + np.uint64(distribution.low)).astype(DTYPES[distribution.dtype])


def _found(u: _Array, distribution: Distribution, table: _Array) -> _Array:
    index = np.searchsorted(table, u, side="right")
    return np.minimum(index, distribution.extent - 1) + distribution.low


def _first_successes(logs: _Array, each: float) -> _Array:
    """Return the first successes from logarithms of chances; ``each`` is that of a failure."""
    return np.maximum(1.0, np.ceil(logs / each)).astype(np.uint64)


# --- quasi-random points ------------------------------------------------------------------


def _sobol(message: Points) -> _Array:
    """Points in [0, 1), of 32 bits."""
    with IMPORTS.late():
        from scipy.stats import qmc

    first, count = message.first, message.count
    if first + count > 2**_BITS:
        raise Unsupported(
            f"on the CPU backend {message.kind} ends with point 2**{_BITS}, "
            f"before point {first + count}"
        )
    # The first 2**32 points of the sequence of 64 bits have no others than these 32.
    scramble = message.kind.startswith("scrambled")
    sequence = qmc.Sobol(message.dimensions, scramble=scramble, bits=_BITS, seed=0)
    if first:
        sequence.fast_forward(first)
        return sequence.random(count)
    # The first one by itself, because SciPy warns of first draws other than powers of two.
    start = sequence.random(1)
    return np.concatenate((start, sequence.random(count - 1))) if count > 1 else start


def _quantile(distribution: Distribution, u: _Array, table: _Array) -> _Array:
    """Return the arguments at which a distribution function has the values ``u``."""
    if distribution.name.startswith("integers"):
        return _lifted(
            np.floor(u * float(distribution.span or 2**64)).astype(np.uint64), distribution
        )
    if distribution.name == "search":
        return _found(u, distribution, table)
    a, b = (*distribution.floats, 0.0)[:2]
    if distribution.name == "uniform":
        steps = 2.0 ** min(digits(distribution.dtype), _BITS)
        return a + b * (np.floor(u * steps) / steps)
    middle = u + 2.0 ** -(_BITS + 1)  # of what each point stands for: never 0 or 1
    if distribution.name == "geometric":
        return _first_successes(np.log1p(-middle), a)
    if distribution.name == "exponential":
        return a * -np.log1p(-middle)
    if distribution.name == "cauchy":
        return a + b * np.tan(np.pi * (middle - 0.5))
    with IMPORTS.late():
        from scipy.special import ndtri

    values: _Array = a + b * ndtri(middle)
    return np.exp(values) if distribution.name == "lognormal" else values
