"""Generators: everything that can be drawn."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._dtypes import DTYPES, NAMES
from ..._errors import Unsupported
from ...memory import GpuRef
from .._arguments import require_no_alias, require_readable
from .._op import D, op
from .._request import Request, Submission
from ..wire._options import flag
from ._arguments import (
    Size,
    check_out,
    dtype_of,
    event_rate,
    integer_range,
    poisson_table,
    probabilities,
    shape_of,
)
from ._distributions import continuous, integers, search
from ._draws import LANE, Drawing, Entries
from ._state import GeneratorStatistics, State, new_state
from .wire._distributions import MOST_DIMENSIONS
from .wire._messages import Distribution, Pick, Take

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike

    from ...memory import Block
    from .._request import Driver

_RACE: Final = 1 << 16
"""Up to so many items, each one's place is counted; that takes time by their square."""

_MOST_WEIGHED: Final = 1 << 17
_INT64: Final = DTYPES["int64"]
_FLOAT64: Final = DTYPES["float64"]


class Generator(Drawing[D]):
    """Random numbers, drawn on the device. Made by ``device.rng.default_rng``.

    Methods are named as in ``numpy.random.Generator``. Those that draw return ``out``, or a
    new buffer. ``size`` is its shape; without it that is (), or that of ``out``. Continuous
    distributions have dtype float16, bfloat16, float32 or float64 (the default), those of
    integers any integer dtype (int64 by default). Parameters are numbers, not arrays.

    What is drawn depends on the seed and on the draws before, and on nothing else: not on
    what runs at the same time, nor on rebuilds of the device in between. The state is in
    the program; ``state`` saves and restores it. Backends have different sequences, except
    for ``sobol32`` and ``sobol64``.

    Quasi-random generators make points: the last axis of ``size`` holds the dimensions.
    They have no ``gamma``, ``beta`` or ``choice(replace=False)``, which take varying
    numbers of words. Those and ``poisson`` of the other generators are drawn from a Philox
    sequence of the same seed.

    A recorded program draws the same numbers in every replay; for new ones, draw into a
    buffer that it reads, with ``out=``, before the replay.

    All methods raise:
        ValueError: parameters or sizes out of range, ``out`` of another shape, a ref of
            another device.
        TypeError: another dtype than listed, parameters that are no numbers.
        Unsupported: what the kind of generator cannot make.
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
        """Where the sequence is, as plain values; set it to go back there.

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
            raise ValueError(f"n_children must not be negative, but is {n_children}")
        return [
            Generator(self._device, State(state.kind, state.ordering, 1, seeds))
            for seeds in state.seeds.spawn(n_children)
        ]

    def statistics(self) -> GeneratorStatistics:
        """A snapshot of what was drawn."""
        state = self._state
        return GeneratorStatistics(state.kind, state.position, state.draws, state.values)

    # --- continuous distributions ----------------------------------------------------------

    @op
    def random(
        self, size: Size = None, dtype: DTypeLike | None = None, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """Uniform numbers in [0, 1); as ``numpy.random.Generator.random``.

        Vendor function: ``curandGenerate``, or a Philox kernel of this package.

        Args:
            size: shape of the result.
            dtype: float64 by default; each has as many random bits as it holds exactly.
            out: where to put the result.
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

        Vendor function: ``curandGenerate``, or a Philox kernel of this package.

        Args:
            low: start of the interval.
            high: its end, not less than ``low``.
            size: shape of the result.
            dtype: float64 by default.
            out: where to put the result.
        """
        return self._continuous("uniform", "uniform", (low, high), size, dtype, out)

    @op
    def normal(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Normal numbers, by the method of Box and Muller.

        Those of quasi-random generators come from the inverse distribution function.

        Vendor function: ``curandGenerate``, or a Philox kernel of this package.

        Args:
            loc: mean.
            scale: standard deviation, not negative.
            size: shape of the result.
            dtype: float64 by default; the narrower ones are computed in float32.
            out: where to put the result.
        """
        return self._continuous("normal", "normal", (loc, scale), size, dtype, out)

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

        Vendor function: ``curandGenerate``, or a Philox kernel of this package.

        Args:
            mean: mean of the logarithm.
            sigma: its standard deviation, not negative.
            size: shape of the result.
            dtype: float64 by default.
            out: where to put the result.
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

        Vendor function: ``curandGenerate``, or a Philox kernel of this package.

        Args:
            scale: mean, not negative.
            size: shape of the result.
            dtype: float64 by default.
            out: where to put the result.
        """
        return self._continuous("exponential", "exponential", (scale,), size, dtype, out)

    @op
    def cauchy(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Cauchy numbers, by the inverse distribution function.

        Vendor function: ``curandGenerate``, or a Philox kernel of this package.

        Args:
            loc: median.
            scale: half of the interquartile range, not negative.
            size: shape of the result.
            dtype: float64 by default.
            out: where to put the result.
        """
        return self._continuous("cauchy", "cauchy", (loc, scale), size, dtype, out)

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

        Computed by kernels of this package.

        Args:
            shape: not negative, and not infinite in what it is computed in: float32 for
                dtypes up to that.
            scale: not negative.
            size: shape of the result.
            dtype: float64 by default.
            out: where to put the result.
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

        Computed by kernels of this package.

        Args:
            a: more than 0, not infinite.
            b: more than 0, not infinite.
            size: shape of the result.
            dtype: float64 by default.
            out: where to put the result.
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

        Vendor function: ``curandGenerate``, or a Philox kernel of this package.

        Args:
            low: the least; without ``high`` it is 0, and ``low`` is the end.
            high: the end, which is not drawn itself.
            size: shape of the result.
            dtype: int64 by default, or bool.
            endpoint: whether the end is drawn, too.
            out: where to put the result.
        """

        def prepare(driver: Driver) -> Submission[GpuRef]:
            kind = NAMES[dtype_of(dtype, out, "int64", whole=True, flags=True)]
            closed = flag(endpoint, "endpoint")
            least, span = integer_range(low, high, kind, endpoint=closed)
            return self._draw(driver, "integers", integers(kind, least, span), size, out)

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

        By multiplication for few events, by Hörmann's PTRS for many; by the inverse
        distribution function for quasi-random generators. Computed by kernels of this package.

        Args:
            lam: expected number of events, not negative.
            size: shape of the result.
            dtype: int64 by default.
            out: where to put the result.

        Raises:
            Unsupported: ``lam`` above 400,000 from a quasi-random generator.
        """

        def prepare(driver: Driver) -> Submission[GpuRef]:
            kind = NAMES[dtype_of(dtype, out, "int64", whole=True)]
            rate = event_rate(lam, kind, self._state.spec)
            if not self._state.spec.quasi:
                events = Distribution("poisson", kind, (rate,))
                return self._draw(driver, "poisson", events, size, out)
            first, table = poisson_table(rate)
            return self._draw(driver, "poisson", search(kind, first), size, out, table)

        return Request(LANE, "rng.poisson", prepare)

    @op
    def choice(
        self,
        a: int | GpuRef,
        size: Size = None,
        replace: bool = True,
        p: ArrayLike | None = None,
        *,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Random items; as ``numpy.random.Generator.choice``, along the first axis.

        Computed by kernels of this package, from words as ``integers`` draws them.

        Args:
            a: an array with at least one axis, or how many integers there are from 0 on.
            size: shape of the choice.
            replace: whether an item may be chosen again.
            p: probabilities of the items, on the host; by default all are equal.
            out: where to put the result.

        Returns:
            The items, in random order: of shape ``size`` and int64, or of shape
            ``size + a.shape[1:]`` and ``a``'s dtype.

        Raises:
            ValueError: nothing to choose from, probabilities that are negative or do not
                sum to 1, more items than there are.
            Unsupported: ``replace=False`` from a quasi-random generator, or with ``p`` for
                more than 131,072 items.
        """

        def prepare(driver: Driver) -> Submission[GpuRef]:
            again = flag(replace, "replace")
            rows: GpuRef | None = None
            rest: tuple[int, ...] = ()
            kind = _INT64
            if isinstance(a, GpuRef):
                rows = a
                require_readable(rows, driver.memory, "a")
                if not rows.shape:
                    raise ValueError("a must have at least one axis, but has shape ()")
                items, rest, kind = rows.shape[0], rows.shape[1:], rows.dtype
            else:
                items = operator.index(a)
            wanted = size
            if out is not None and size is None:
                wanted = out.shape[: out.ndim - len(rest)]
            shape = shape_of(wanted, None, self._state.dimensions)
            if out is not None:
                check_out(out, driver.memory, (*shape, *rest), kind)
                if rows is not None:
                    require_no_alias("choice", [("out", out)], [("a", rows)])
            count = math.prod(shape)
            if items < 0 or (not items and count):
                raise ValueError(f"a must have at least one item to choose from, not {items}")
            chances = None if p is None else probabilities(p, items)
            if not again:
                self._check_pick(items, count, chances)
            pick = self._without if count and not again else self._with_replacement
            if rows is None:
                return pick(items, shape, chances, out, driver)
            chosen = partial(pick, items, shape, chances, None)
            index = driver.perform(Request(LANE, "rng.choice", chosen))
            assert index is not None  # buffers are given in batches, too
            return _take(rows, index, (*shape, *rest), out, driver)

        return Request(LANE, "rng.choice", prepare)

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

        def prepare(driver: Driver) -> Submission[GpuRef]:
            if operator.index(bits) not in (32, 64):
                raise ValueError(f"bits must be 32 or 64, not {bits}")
            scrambled = "scrambled_" if flag(scramble, "scramble") else ""
            kind = f"{scrambled}sobol{operator.index(bits)}"
            state = new_state(None, kind, "default", offset, check_dimensions(dimensions))
            points = continuous("uniform", dtype_of(dtype, out, "float64"), 0.0, 1.0)
            shape = (operator.index(n), dimensions)
            return Generator(self._device, state)._draw(driver, "sobol", points, shape, out)

        return Request(LANE, "rng.sobol", prepare)

    # --- choosing --------------------------------------------------------------------------

    def _check_pick(self, items: int, count: int, chances: Entries | None) -> None:
        if self._state.spec.quasi:
            raise Unsupported(
                f"{self._state.kind} cannot choose without replacement; "
                f"use a pseudo-random generator"
            )
        if count > items:
            raise ValueError(
                f"cannot take {count} of {items} items when replace is False; they are too few"
            )
        if chances is None:
            return
        if np.count_nonzero(chances) < count:
            raise ValueError(
                f"fewer non-zero entries in p ({np.count_nonzero(chances)}) than size ({count})"
            )
        if items > _MOST_WEIGHED:
            raise Unsupported(
                f"choosing without replacement by p takes up to {_MOST_WEIGHED} items, not {items}"
            )

    def _with_replacement(
        self,
        items: int,
        shape: tuple[int, ...],
        chances: Entries | None,
        out: GpuRef | None,
        driver: Driver,
    ) -> Submission[GpuRef]:
        if chances is None:
            return self._draw(driver, "choice", integers("int64", 0, max(1, items)), shape, out)
        table = np.cumsum(chances)
        table /= table[-1] if len(table) else 1.0
        return self._draw(driver, "choice", search("int64", 0), shape, out, table)

    def _without(
        self,
        items: int,
        shape: tuple[int, ...],
        chances: Entries | None,
        out: GpuRef | None,
        driver: Driver,
    ) -> Submission[GpuRef]:
        state = self._state
        weights = None if chances is None else self._provide(driver, chances)
        target = driver.output(shape, _INT64) if out is None else out
        writes: tuple[Block, ...] = (target._block,)
        scratch = 0
        if weights is not None or items <= _RACE:
            times = driver.output((items,), _FLOAT64)._block
            writes, scratch = (target._block, times), times.address
        count = math.prod(shape)
        message = Pick(
            state.kind,
            state.key,
            state.position,
            state.rejection_offset,
            items,
            count,
            0 if weights is None else weights.address,
            target._block.address,
            scratch,
        )
        sent = partial(state.drawn, count, rejections=items if scratch else 1)
        return Submission(message, () if weights is None else (weights,), writes, target, sent=sent)


def _take(
    rows: GpuRef, index: GpuRef, shape: tuple[int, ...], out: GpuRef | None, driver: Driver
) -> Submission[GpuRef]:
    source, places = (
        require_readable(rows, driver.memory, "a"),
        require_readable(index, driver.memory, "index"),
    )
    target = driver.output(shape, rows.dtype) if out is None else out
    nbytes = math.prod(rows.shape[1:]) * rows.dtype.itemsize
    message = Take(source.address, places.address, target._block.address, index.size, nbytes)
    return Submission(message, (source, places), (target._block,), target)


def check_dimensions(dimensions: int) -> int:
    """How many dimensions points have.

    Raises:
        TypeError: it is no integer.
        ValueError: there are no direction vectors for so many.
    """
    if not 1 <= operator.index(dimensions) <= MOST_DIMENSIONS:
        raise ValueError(f"dimensions must be from 1 to {MOST_DIMENSIONS}, not {dimensions}")
    return operator.index(dimensions)
