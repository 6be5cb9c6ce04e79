"""Choices of generators: items, orders, and counts of random events."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, SupportsIndex, TypeVar

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import DTYPES
from ..._errors import Unsupported
from ...arrays import GpuRef
from ...arrays.expressions import index as index_of
from ...ops import ARRAY_LANE as ARRAY
from ...ops import D, Request, Submission, op, require_no_alias, require_readable, require_writable
from ...wire.options import flag
from ..array.steps import CallSteps
from ._arguments import (
    Size,
    check_out,
    covariance_factor,
    dtype_of,
    item_count,
    probabilities,
    shape_of,
    whole_trials,
)
from ._distributions import continuous, integers, search
from ._draws import LANE, Drawing, Entries, put_table
from .wire._messages import Pick, Take

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, DTypeLike

    from ...memory import Block
    from ...ops import Preparer

T = TypeVar("T")

_RACE: Final = 1 << 16
"""Largest number of items whose places are found by counting, in time that grows with its square.
"""

_MOST_WEIGHED: Final = 1 << 17
_INT64: Final = DTYPES["int64"]


class Choosing(Drawing[D]):
    """Choices, permutations and counts."""

    @op
    def choice(
        self,
        a: int | GpuRef,
        size: Size = None,
        replace: bool = True,
        p: ArrayLike | None = None,
        axis: int = 0,
        shuffle: bool = True,
        *,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Random items; as ``numpy.random.Generator.choice``.

        Computed by kernels of this package, from words as ``integers`` draws them.

        Args:
            a: an array with at least one axis, or how many integers there are from 0 on, up to
                2**63 - 1.
            size: shape of the choice.
            replace: whether an item may be chosen again.
            p: probabilities of the items, on the host; by default all are equal.
            axis: along which the items of an array are.
            shuffle: as in NumPy; the order is random in any case.
            out: where to put the result.

        Returns:
            The items, in random order: of shape ``size`` and int64, or of shape
            ``size + a.shape[1:]`` and ``a``'s dtype, ``size`` being in the place of ``axis``.

        Raises:
            TypeError: an array of the program's: put it on the device first.
            Unsupported: ``replace=False`` from a quasi-random generator, or with ``p`` for
                more than 131,072 items.
        """
        flag(shuffle, "shuffle")
        if isinstance(a, GpuRef) and a.ndim and normalize_axis_index(axis, a.ndim):
            own = self.as_requests(self.home)

            def build(steps: CallSteps) -> GpuRef:
                index = steps.do(own.choice(a.shape[axis], size, replace, p))
                made: GpuRef = steps.do(self._known.array.take(a, index, axis, out, "clip"))
                return made

            return self._several("choice", build)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            again = flag(replace, "replace")
            rows: GpuRef | None = None
            rest: tuple[int, ...] = ()
            kind = _INT64
            if isinstance(a, GpuRef):
                rows = a
                require_readable(rows, preparer.memory, "a")
                if not rows.shape:
                    raise ValueError("a must have at least one axis, not shape ()")
                items, rest, kind = rows.shape[0], rows.shape[1:], rows.dtype
            else:
                items = item_count(a, "a", preparer.memory)
            wanted = size
            if out is not None and size is None:
                wanted = out.shape[: out.ndim - len(rest)]
            shape = shape_of(wanted, None, self._state.dimensions)
            if out is not None:
                check_out(out, preparer.memory, (*shape, *rest), kind)
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
                return pick(items, shape, chances, out, preparer)
            chosen = partial(pick, items, shape, chances, None)
            index = preparer.perform(Request(LANE, "rng.choice", chosen))
            assert index is not None  # buffers are given in batches, too
            return _take(rows, index, (*shape, *rest), out, preparer)

        return Request(LANE, "rng.choice", prepare)

    @op
    def permutation(self, x: SupportsIndex | GpuRef, axis: int = 0) -> Request[GpuRef]:
        """Items in random order; as ``numpy.random.Generator.permutation``.

        Args:
            x: an array with at least one axis, of any strides, or how many integers there are
                from 0 on.
            axis: along which; what lies along the others stays together.

        Returns:
            A new buffer of ``x``'s shape and dtype, or int64.

        Raises:
            TypeError: an array of the program's: put it on the device first.
        """

        def build(steps: CallSteps) -> GpuRef:
            if not isinstance(x, GpuRef):
                return self._order(steps, item_count(x, "x", steps.preparer.memory))
            return self._shuffled(steps, steps.ref(x), axis)

        return self._several("permutation", build)

    @op
    def shuffle(self, x: GpuRef, axis: int = 0) -> Request[GpuRef]:
        """Bring items into a random order, in place; as ``numpy.random.Generator.shuffle``.

        Takes scratch memory for a copy.

        Args:
            x: an array with at least one axis, of any strides, not sealed.
            axis: along which; what lies along the others stays together.

        Returns:
            ``x``.
        """

        def build(steps: CallSteps) -> GpuRef:
            require_writable(x, steps.preparer.memory, "x", strided=True)
            steps.assign((self._shuffled(steps, x, axis), x))
            return x

        return self._several("shuffle", build)

    @op
    def multinomial(self, n: int, pvals: ArrayLike, size: Size = None) -> Request[GpuRef]:
        """Count random events of several kinds; as ``numpy.random.Generator.multinomial``.

        Each of ``n`` trials is drawn, as ``choice`` does with ``p``, and counted. That takes 16
        bytes of scratch memory for each trial.

        Args:
            n: trials of each experiment, not negative.
            pvals: the probability of each kind in a trial, on the host; they sum to 1.
            size: shape of the experiments.

        Returns:
            int64, of shape ``size + (len(pvals),)``; along the last axis the sum is ``n``.
        """

        def build(steps: CallSteps) -> GpuRef:
            self._require_words("multinomial")
            trials, shape = whole_trials(n), shape_of(() if size is None else size, None, 1)
            chances = probabilities(pvals, np.size(np.asarray(pvals)), "pvals")
            experiments, things = math.prod(shape), len(chances)
            if not things:
                raise ValueError("pvals must have at least one element")
            drawn = partial(self._with_replacement, things, (experiments, trials), chances, None)
            thing = steps.do(Request(LANE, "rng.multinomial", drawn))
            place = thing + index_of((experiments, 1), 0) * things
            array, length = self._known.array, experiments * things
            places = steps.flat(steps.evaluate(place))
            counts = steps.do(array.bincount(places, length=length))
            return counts.reshape(*shape, things)

        return self._several("multinomial", build)

    @op
    def multivariate_normal(
        self,
        mean: ArrayLike,
        cov: ArrayLike,
        size: Size = None,
        *,
        method: Literal["svd", "eigh", "cholesky"] = "svd",
        dtype: DTypeLike | None = None,
    ) -> Request[GpuRef]:
        """Correlated normal numbers; as ``numpy.random.Generator.multivariate_normal``.

        Independent numbers of ``normal`` are multiplied by a factor of ``cov``, which the program
        computes: ``mean + z @ factor.T``. Vendor function: that of ``device.blas.gemm``.

        Args:
            mean: shape (d,), on the host.
            cov: covariances: shape (d, d), on the host, symmetric, without negative eigenvalues.
            size: shape of the sample.
            method: how to factor ``cov``; ``"cholesky"`` is the fastest and needs eigenvalues above
                0.
            dtype: float64 by default, or float32.

        Returns:
            An array of shape ``size + (d,)``.
        """

        def build(steps: CallSteps) -> GpuRef:
            kind = dtype_of(dtype, None, "float64")
            if kind.name not in ("float32", "float64"):
                raise TypeError(f"multivariate_normal gives float32 or float64, not {kind.name}")
            centre, factor = covariance_factor(mean, cov, method)
            d = len(centre)
            shape = shape_of(() if size is None else size, None, 1)
            law = continuous("normal", kind, 0.0, 1.0)
            count = math.prod(shape)

            def draw(preparer: Preparer) -> Submission[GpuRef]:
                return self._draw(preparer, "multivariate_normal", law, (count, d), None)

            drawn = steps.do(Request(LANE, "rng.multivariate_normal", draw))
            if not drawn.size:
                return drawn.reshape(*shape, d)
            table = np.concatenate((factor.ravel(), centre))
            put = Request(LANE, "rng.table", partial(put_table, table.tobytes()))
            known = steps.cast(steps.do(put), kind)
            turned = steps.do(self._known.blas.gemm(drawn, known[: d * d].reshape(d, d)))
            return steps.evaluate(turned + known[d * d :]).reshape(*shape, d)

        return self._several("multivariate_normal", build)

    # --- helpers -----------------------------------------------------------------------------

    def _several(self, name: str, build: Callable[[CallSteps], T]) -> Request[T]:
        """A request of several steps, of which one draws."""

        def prepare(preparer: Preparer) -> Submission[T]:
            steps = CallSteps(preparer, self._known.cub)
            return steps.result(build(steps))

        return Request(ARRAY, f"rng.{name}", prepare)

    def _require_words(self, name: str) -> None:
        if self._state.spec.quasi:
            raise Unsupported(
                f"{self._state.kind} has no {name}, which takes random words; "
                "use a pseudo-random generator"
            )

    def _order(self, steps: CallSteps, items: int) -> GpuRef:
        """The integers from 0 on, in random order."""
        self._require_words("permutation")
        if items < 0:
            raise ValueError(f"x must be at least 0, not {items}")
        if not items:
            return steps.output((0,), _INT64)
        pick = partial(self._without, items, (items,), None, None)
        return steps.do(Request(LANE, "rng.permutation", pick))

    def _shuffled(self, steps: CallSteps, x: GpuRef, axis: int) -> GpuRef:
        along = normalize_axis_index(operator.index(axis), x.ndim)
        order = self._order(steps, x.shape[along])
        return steps.do(self._known.array.take(x, order, axis=along, mode="clip"))

    def _check_pick(self, items: int, count: int, chances: Entries | None) -> None:
        if self._state.spec.quasi:
            raise Unsupported(
                f"replace must be True with {self._state.kind}; use a pseudo-random "
                "generator for False"
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
        preparer: Preparer,
    ) -> Submission[GpuRef]:
        if chances is None:
            return self._draw(preparer, "choice", integers("int64", 0, max(1, items)), shape, out)
        table = np.cumsum(chances)
        table /= table[-1] if len(table) else 1.0
        return self._draw(preparer, "choice", search("int64", 0), shape, out, table)

    def _without(
        self,
        items: int,
        shape: tuple[int, ...],
        chances: Entries | None,
        out: GpuRef | None,
        preparer: Preparer,
    ) -> Submission[GpuRef]:
        state = self._state
        weights = None if chances is None else self._provide(preparer, chances)
        target = preparer.output(shape, _INT64) if out is None else out
        writes: tuple[Block, ...] = (target.block,)
        scratch = 0
        if weights is not None or items <= _RACE:
            times = preparer.output((items,), DTYPES["float64"]).block
            writes, scratch = (target.block, times), times.address
        count = math.prod(shape)
        message = Pick(
            state.kind,
            state.key,
            state.position,
            state.rejection_offset,
            items,
            count,
            0 if weights is None else weights.address,
            target.block.address,
            scratch,
        )
        sent = partial(state.drawn, count, rejections=items if scratch else 1)
        return Submission(message, () if weights is None else (weights,), writes, target, sent=sent)


def _take(
    rows: GpuRef, index: GpuRef, shape: tuple[int, ...], out: GpuRef | None, preparer: Preparer
) -> Submission[GpuRef]:
    source = require_readable(rows, preparer.memory, "a")
    places = require_readable(index, preparer.memory, "index")
    target = preparer.output(shape, rows.dtype) if out is None else out
    nbytes = math.prod(rows.shape[1:]) * rows.dtype.itemsize
    message = Take(source.address, places.address, target.block.address, index.size, nbytes)
    return Submission(message, (source, places), (target.block,), target)
