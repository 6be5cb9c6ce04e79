"""Generators: everything that can be drawn."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final

from ..._dtypes import DTYPES, NAMES
from ..._errors import Unsupported
from ...arrays import GpuRef
from ...ops import D, Request, Submission, op, op_family
from ...wire.options import flag
from ._arguments import (
    Size,
    binomial_table,
    chance,
    dtype_of,
    event_rate,
    failures_table,
    hypergeometric_table,
    integer_range,
    most_failures,
    poisson_table,
    positive_shape,
    trials,
    whole_trials,
)
from ._distributions import continuous, integers, search
from ._draws import LANE
from ._laws import DerivedLaws
from ._state import GeneratorState, GeneratorStatistics, new_state
from .wire._distributions import MOST_DIMENSIONS, bounds
from .wire._messages import Distribution

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import DTypeLike

    from ...ops import Preparer
    from ._draws import Entries

_RACE: Final = 1 << 16
"""Largest number of items whose places are found by counting, in time that grows with its square.
"""

_MOST_WEIGHED: Final = 1 << 17
_MOST_EVENTS: Final = 2**63 - 2**36
"""Largest whole number that distributions reach."""
_INT64: Final = DTYPES["int64"]
_FLOAT64: Final = DTYPES["float64"]


class Generator(DerivedLaws[D]):
    """Random numbers, drawn on the device. Made by ``device.rng.default_rng``.

    Methods are named as in ``numpy.random.Generator``. Those that draw return ``out``, or a new
    buffer. ``size`` is its shape; without it that is (), or that of ``out``. Continuous
    distributions have dtype float16, bfloat16, float32 or float64 (the default), those of integers
    any integer dtype (int64 by default). Parameters are numbers, not arrays. Vendor function:
    ``curandGenerate``, or a Philox kernel of this package, unless a method says otherwise.

    The numbers depend only on the seed and on earlier draws, not on concurrent ops or rebuilds of
    the device. The state is in the program; ``state`` saves and restores it. Backends have
    different sequences, except for ``sobol32`` and ``sobol64``.

    Quasi-random generators make points: the last axis of ``size`` holds the dimensions. They have
    no ``gamma``, ``beta`` or ``choice(replace=False)``, which take varying numbers of words, and no
    ``permutation``, ``shuffle`` or ``multinomial``. Other generators draw ``poisson``, and methods
    that take varying numbers of words, from a Philox sequence of the same seed.

    A recording draws the same numbers in every replay; for new ones, draw into a buffer that
    it reads, with ``out=``, before the replay.

    All methods raise:
        ValueError: parameters or sizes out of range, ``out`` of another shape, a ref of another
            device.
        TypeError: another dtype than listed, parameters that are not numbers.
        Unsupported: a distribution that the kind of generator cannot make.
        GpuRefStale, GpuRefSealed: ``out`` may not be written.
        OutOfMemory: no room for the result.
        LibraryError: cuRAND refuses, such as an ordering it has not on this device.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.kind} at {self._state.position}>"

    # --- the sequence --------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """Which generator it is, by cuRAND's name."""
        return self._state.kind

    @property
    def state(self) -> dict[str, Any]:
        """The position in the sequence, as plain values; setting it goes back to that position.

        It can be stored as JSON. A generator takes states of its own kind.
        """
        return self._state.save()

    @state.setter
    def state(self, saved: Mapping[str, Any]) -> None:
        self._state.restore(saved)

    def advance(self, delta: int) -> None:
        """Skip a part of the sequence.

        Args:
            delta: words of 32 bits, rounded up to a multiple of four; points of
                quasi-random generators.
        """
        self._state.move(self._state.position + operator.index(delta))

    def spawn(self, n_children: int) -> list[Generator[D]]:
        """Independent generators of the same kind; as ``numpy.random.Generator.spawn``.

        Args:
            n_children: how many; another call gives others.

        Raises:
            Unsupported: a quasi-random generator, of which there is only one.
        """
        state = self._state
        if state.seeds is None:
            raise Unsupported(f"{state.kind} is one fixed sequence, without independent ones")
        if operator.index(n_children) < 0:
            raise ValueError(f"n_children must be at least 0, not {n_children}")
        return [
            Generator(self.home, GeneratorState(state.kind, state.ordering, 1, seeds), self._known)
            for seeds in state.seeds.spawn(n_children)
        ]

    def statistics(self) -> GeneratorStatistics:
        """Return the position, and the numbers of draws and values."""
        state = self._state
        return GeneratorStatistics(state.kind, state.position, state.draws, state.values)

    # --- continuous distributions ----------------------------------------------------------

    @op
    def random(
        self, size: Size = None, dtype: DTypeLike | None = None, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """Uniform numbers in [0, 1); as ``numpy.random.Generator.random``.

        Each dtype has as many random bits as it holds exactly.
        """
        return self._continuous("random", "uniform", (0.0, 1.0), size, dtype, out)

    @op
    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Uniform numbers in [low, high), up to rounding, which may give ``high``.

        ``high`` is not less than ``low``. Dtypes narrower than float64 are computed in float32.

        Raises:
            OverflowError: the dtype does not hold an end, or that of the computation not
                ``high - low``.
        """
        return self._continuous("uniform", "uniform", (low, high), size, dtype, out)

    @op_family
    def normal(
        self,
        _name: str,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Normal numbers, by the method of Box and Muller.

        Those of quasi-random generators come from the inverse distribution function.

        ``loc`` is the mean, and ``scale`` the standard deviation, which is not negative. Dtypes
        narrower than float64 are computed in float32.
        """
        return self._continuous(_name, _name, (loc, scale), size, dtype, out)

    @op
    def lognormal(
        self,
        mean: float = 0.0,
        sigma: float = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Numbers whose logarithm is normal.

        The logarithm has the mean ``mean`` and the standard deviation ``sigma``, which is not
        negative.
        """
        return self._continuous("lognormal", "lognormal", (mean, sigma), size, dtype, out)

    @op
    def exponential(
        self,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Exponential numbers, by the inverse distribution function.

        ``scale`` is the mean, which is not negative.
        """
        return self._continuous("exponential", "exponential", (scale,), size, dtype, out)

    cauchy: Final = normal.like(
        """Cauchy numbers, by the inverse distribution function.

        ``loc`` is the median, and ``scale`` half of the interquartile range, which is not negative.
        """
    )

    @op
    def gamma(
        self,
        shape: float,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gamma numbers, by the method of Marsaglia and Tsang.

        Computed by kernels of this package. ``shape`` and ``scale`` are not negative, and ``shape``
        is finite in the dtype of the computation: float32 for dtypes up to float32.
        """
        return self._continuous("gamma", "gamma", (shape, scale), size, dtype, out)

    @op
    def beta(
        self,
        a: float,
        b: float,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Beta numbers, from two gamma numbers each.

        Computed by kernels of this package. ``a`` and ``b`` are more than 0, and not infinite.
        """
        return self._continuous("beta", "beta", (a, b), size, dtype, out)

    # --- integers --------------------------------------------------------------------------

    @op
    def integers(
        self,
        low: int,
        high: int | None = None,
        size: Size = None,
        dtype: DTypeLike | None = None,
        endpoint: bool = False,
        *,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Integers, all equally likely; as ``numpy.random.Generator.integers``.

        Args:
            low: the least; without ``high`` it is 0, and ``low`` is the end.
            high: the end, which is not drawn itself.
            size: shape of the result.
            dtype: int64 by default, or bool.
            endpoint: whether the end is drawn, too.
            out: where to put the result.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            kind = NAMES[dtype_of(dtype, out, "int64", whole=True, flags=True)]
            closed = flag(endpoint, "endpoint")
            least, span = integer_range(low, high, kind, endpoint=closed)
            return self._draw(preparer, "integers", integers(kind, least, span), size, out)

        return Request(LANE, "rng.integers", prepare)

    @op
    def poisson(
        self,
        lam: float = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Numbers of events of a Poisson process; as ``numpy.random.Generator.poisson``.

        By multiplication for few events, by Hörmann's PTRS for many; by the inverse distribution
        function for quasi-random generators. Computed by kernels of this package. ``lam`` is the
        expected number of events, which is not negative.

        Raises:
            Unsupported: ``lam`` above 400,000 from a quasi-random generator.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            kind = NAMES[dtype_of(dtype, out, "int64", whole=True)]
            rate = event_rate(lam, kind, self._state.spec)
            if not self._state.spec.quasi:
                events = Distribution("poisson", kind, (rate,))
                return self._draw(preparer, "poisson", events, size, out)
            first, table = poisson_table(rate)
            return self._draw(preparer, "poisson", search(kind, first), size, out, table)

        return Request(LANE, "rng.poisson", prepare)

    @op
    def binomial(
        self,
        n: int,
        p: float,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Count the successes of ``n`` trials; as ``numpy.random.Generator.binomial``.

        It uses the inverse distribution function, from a table that is sent with the call: 24
        numbers for each unit of the standard deviation. Computed by kernels of this package. Each
        of ``n`` trials succeeds with the probability ``p``. The dtype must hold ``n``.

        Raises:
            Unsupported: a variance, ``n * p * (1 - p)``, above 10**8.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            kind = NAMES[dtype_of(dtype, out, "int64", whole=True)]
            first, table = binomial_table(*trials(n, p, kind))
            return self._draw(preparer, "binomial", search(kind, first), size, out, table)

        return Request(LANE, "rng.binomial", prepare)

    @op
    def geometric(
        self,
        p: float,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The first trial that succeeds; as ``numpy.random.Generator.geometric``.

        By a table as ``negative_binomial``; of a small ``p`` by the inverse distribution function,
        from a logarithm. Each trial succeeds with the probability ``p``, which is above 0.

        Raises:
            ValueError: the dtype does not hold the numbers.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            each = chance(p)
            found = failures_table(1.0, each)
            if found is not None:
                return self._looked_up(preparer, "geometric", 1, found[1], size, dtype, out)
            kind = _holding("geometric", most_failures(1.0, each), dtype, out)
            law = Distribution("geometric", kind, (math.log1p(-each),))
            return self._draw(preparer, "geometric", law, size, out)

        return Request(LANE, "rng.geometric", prepare)

    @op
    def negative_binomial(
        self,
        n: float,
        p: float,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Failures before the n-th success; as ``numpy.random.Generator.negative_binomial``.

        By the inverse distribution function, from a table that goes along with the call. If that
        would have more than 2**21 entries, as Poisson numbers whose means are gamma variates.
        Computed by kernels of this package. ``n`` is the number of successes, above 0, which need
        not be whole. Each trial succeeds with the probability ``p``, which is above 0.

        Raises:
            ValueError: the dtype does not hold the numbers.
            Unsupported: of a quasi-random generator, a table of more than 2**21 entries.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            name = "negative_binomial"
            count, each = positive_shape(n, "n", "float64"), chance(p)
            found = failures_table(count, each)
            if found is not None:
                return self._looked_up(preparer, name, *found, size, dtype, out)
            kind = _holding(name, most_failures(count, each), dtype, out)
            law = Distribution(name, kind, (count, (1 - each) / each))
            return self._draw(preparer, name, law, size, out)

        return Request(LANE, "rng.negative_binomial", prepare)

    @op
    def hypergeometric(
        self,
        ngood: int,
        nbad: int,
        nsample: int,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Good ones in a sample without replacement; as ``numpy.random.Generator.hypergeometric``.

        By a table as ``negative_binomial``. ``nsample`` are taken of ``ngood`` good ones and
        ``nbad`` others.

        Raises:
            Unsupported: a table of more than 2**21 entries.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            counts = [
                whole_trials(value, name)
                for name, value in (("ngood", ngood), ("nbad", nbad), ("nsample", nsample))
            ]
            if counts[2] > counts[0] + counts[1]:
                raise ValueError(
                    "nsample must be at most ngood + nbad, which is "
                    f"{counts[0] + counts[1]}, not {counts[2]}"
                )
            first, table = hypergeometric_table(*counts)
            return self._looked_up(preparer, "hypergeometric", first, table, size, dtype, out)

        return Request(LANE, "rng.hypergeometric", prepare)

    def _looked_up(
        self,
        preparer: Preparer,
        name: str,
        first: int,
        table: Entries,
        size: Size,
        dtype: DTypeLike | None,
        out: GpuRef | None,
    ) -> Submission[GpuRef]:
        """Whole numbers by a table of their distribution function, which begins at ``first``."""
        kind = _holding(name, first + len(table) - 1, dtype, out)
        return self._draw(preparer, name, search(kind, first), size, out, table)

    @op
    def sobol(
        self,
        n: int,
        dimensions: int = 1,
        *,
        scramble: bool = False,
        bits: int = 32,
        offset: int = 0,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Points of a Sobol sequence in the unit cube; as ``scipy.stats.qmc.Sobol``.

        The sequence is that of Joe and Kuo, in Gray code order, from cuRAND's direction
        vectors. It does not touch this generator's state. The points without ``scramble``
        are the same on all backends; with it each has its own fixed scrambling.

        Vendor functions: ``curandGetDirectionVectors32``, ``curandGetScrambleConstants32``
        and those for 64 bits.

        Args:
            n: how many points; powers of two are balanced best.
            dimensions: 1 to 20,000.
            scramble: whether to take the scrambled sequence.
            bits: 32 or 64.
            offset: index of the first point.
            dtype: float64 by default.
            out: where to put the result.

        Returns:
            Shape (n, dimensions), in [0, 1).
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            if operator.index(bits) not in (32, 64):
                raise ValueError(f"bits must be 32 or 64, not {bits}")
            scrambled = "scrambled_" if flag(scramble, "scramble") else ""
            kind = f"{scrambled}sobol{operator.index(bits)}"
            state = new_state(None, kind, "default", offset, check_dimensions(dimensions))
            points = continuous("uniform", dtype_of(dtype, out, "float64"), 0.0, 1.0)
            shape = (operator.index(n), dimensions)
            generator: Generator[D] = Generator(self.home, state, self._known)
            return generator._draw(preparer, "sobol", points, shape, out)

        return Request(LANE, "rng.sobol", prepare)


def check_dimensions(dimensions: int) -> int:
    """Return the number of dimensions of points."""
    if not 1 <= operator.index(dimensions) <= MOST_DIMENSIONS:
        raise ValueError(f"dimensions must be from 1 to {MOST_DIMENSIONS}, not {dimensions}")
    return operator.index(dimensions)


def _holding(name: str, last: float, dtype: DTypeLike | None, out: GpuRef | None) -> str:
    """Return the dtype for whole numbers up to ``last``."""
    kind = NAMES[dtype_of(dtype, out, "int64", whole=True)]
    if last > min(bounds(kind)[1], _MOST_EVENTS):
        raise ValueError(f"{name} gives numbers up to {last:.0f}, which {kind} does not hold")
    return kind
