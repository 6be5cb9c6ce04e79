"""Distributions that are computed of other draws: by inversion, or as quotients."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import DTYPES
from ...arrays import GpuRef
from ...arrays.expressions import Operand, cast
from ...arrays.expressions.expression import ufunc, where
from ...ops import D, Request, op, op_family
from ...wire.options import real
from ._arguments import (
    Size,
    check_out,
    dtype_of,
    not_negative,
    number,
    positive_shape,
    shape_of,
)
from ._choosing import Choosing
from ._distributions import continuous
from ._draws import LANE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, DTypeLike

    from ...ops import Preparer, Submission
    from ..array.steps import CallSteps

    Kind = DTypeLike | None
    Out = GpuRef | None

_FLOAT64: Final = DTYPES["float64"]
_LEAST: Final = float(np.finfo(np.float64).tiny)


class DerivedLaws(Choosing[D]):
    """Distributions that are computed of other draws.

    Those by inversion take one exponential number each, so quasi-random generators have them, too.
    """

    @op
    def standard_normal(
        self, size: Size = None, dtype: Kind = None, out: Out = None
    ) -> Request[GpuRef]:
        """Normal numbers of mean 0 and deviation 1; ``normal`` has more about them."""
        return self._continuous("standard_normal", "normal", (0.0, 1.0), size, dtype, out)

    @op
    def standard_exponential(
        self, size: Size = None, dtype: Kind = None, method: str = "zig", out: Out = None
    ) -> Request[GpuRef]:
        """Exponential numbers of mean 1; ``exponential`` has more about them.

        ``method`` may be "zig" or "inv", as in NumPy, and changes nothing.
        """
        if method not in ("zig", "inv"):
            raise ValueError(f"method must be 'zig' or 'inv', not {method!r}")
        return self._continuous("standard_exponential", "exponential", (1.0,), size, dtype, out)

    @op
    def standard_gamma(
        self, shape: float, size: Size = None, dtype: Kind = None, out: Out = None
    ) -> Request[GpuRef]:
        """Gamma numbers of scale 1; ``gamma`` has more about them."""
        return self._continuous("standard_gamma", "gamma", (shape, 1.0), size, dtype, out)

    @op
    def standard_cauchy(
        self, size: Size = None, *, dtype: Kind = None, out: Out = None
    ) -> Request[GpuRef]:
        """Cauchy numbers around 0, of scale 1; ``cauchy`` has more about them."""
        return self._continuous("standard_cauchy", "cauchy", (0.0, 1.0), size, dtype, out)

    @op
    def chisquare(
        self, df: float, size: Size = None, *, dtype: Kind = None, out: Out = None
    ) -> Request[GpuRef]:
        """Sums of ``df`` squares of normal numbers, as ``gamma`` makes them; ``df`` is above 0."""
        half = positive_shape(df, "df", "float64") / 2
        return self._continuous("chisquare", "gamma", (half, 2.0), size, dtype, out)

    # --- by inversion --------------------------------------------------------------------------

    @op_family
    def laplace(
        self,
        _name: str,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: Kind = None,
        out: Out = None,
    ) -> Request[GpuRef]:
        """Laplace numbers around ``loc``; ``scale`` is not negative."""
        centre, width = number(loc, "loc"), not_negative(scale, "scale")

        def law(e: Any) -> Operand:
            if _name == "gumbel":
                return centre - width * ufunc("log", e)
            # On each side the one that is exact in its tail.
            upper = -math.log(2) - ufunc("log", -ufunc("expm1", -e))
            return centre + width * where(e > math.log(2), math.log(2) - e, upper)

        return self._inverted(_name, law, size, dtype, out)

    gumbel: Final = laplace.like("""Gumbel numbers of mode ``loc``; ``scale`` is not negative.""")

    @op
    def weibull(
        self, a: float, size: Size = None, *, dtype: Kind = None, out: Out = None
    ) -> Request[GpuRef]:
        """Weibull numbers of scale 1; the shape ``a`` is not negative, and 0 gives zeros."""
        shape = not_negative(a, "a")

        def law(e: Any) -> Operand:
            made: Operand = e ** (1 / shape) if shape else e * 0
            return made

        return self._inverted("weibull", law, size, dtype, out)

    @op
    def rayleigh(
        self, scale: float = 1.0, size: Size = None, *, dtype: Kind = None, out: Out = None
    ) -> Request[GpuRef]:
        """Rayleigh numbers of mode ``scale``, which is not negative."""
        mode = not_negative(scale, "scale")
        return self._inverted("rayleigh", lambda e: mode * ufunc("sqrt", e * 2.0), size, dtype, out)

    @op
    def vonmises(
        self,
        mu: float,
        kappa: float,
        size: Size = None,
        *,
        dtype: Kind = None,
        out: Out = None,
    ) -> Request[GpuRef]:
        """Von Mises angles around ``mu``, within pi of 0; computed in float64.

        By inversion of a density that is linear between 4,097 angles, up to 12 deviations away.
        ``kappa`` is not negative; 0 gives uniform angles.
        """
        centre, sharpness = real(mu, "mu"), real(kappa, "kappa")
        if sharpness < 0:
            raise ValueError(f"kappa must be at least 0, not {sharpness}")
        cells = 1 << 12
        reach = min(math.pi, 12 / math.sqrt(sharpness)) if sharpness else math.pi
        wide = 2 * reach / cells
        angles = np.linspace(-reach, reach, cells + 1)
        heights = np.exp(-2 * sharpness * np.sin(angles / 2) ** 2)
        chances = np.concatenate([[0.0], np.cumsum(heights[1:] + heights[:-1])])
        chances /= chances[-1]

        def build(steps: CallSteps) -> GpuRef:
            kind, shape = self._target(steps, size, dtype, out)
            drawn = self._drawn(steps, "vonmises", ("uniform", 0.0, 1.0), shape)
            below, density = steps.upload(chances, _FLOAT64), steps.upload(heights, _FLOAT64)
            array = self._known.array
            found = steps.do(array.searchsorted(below, drawn, side="right"))
            cell = steps.evaluate(ufunc("minimum", found, cells) - 1)
            start, end, left, right = (
                steps.do(array.take(of, steps.evaluate(cell + at)))
                for of in (below, density)
                for at in (0, 1)
            )
            # Under a line from left to right, the part of a cell up to a share of its chance.
            share: Any = (drawn - start) / ufunc("maximum", end - start, _LEAST)
            root = ufunc("sqrt", left * left + share * (right * right - left * left))
            part = share * (left + right) / ufunc("maximum", left + root, _LEAST)
            angle: Any = (part + cell) * wide + (centre - reach)
            turned = angle - 2 * math.pi * ufunc("rint", angle / (2 * math.pi))
            return steps.evaluate(cast(turned, kind), out)

        return self._several("vonmises", build)

    def _inverted(
        self,
        name: str,
        law: Callable[[Any], Operand],
        size: Size,
        dtype: Kind,
        out: Out,
    ) -> Request[GpuRef]:
        """Numbers that a function makes of exponential ones, in float64 or float32."""

        def build(steps: CallSteps) -> GpuRef:
            kind, shape = self._target(steps, size, dtype, out)
            wide = _FLOAT64 if kind is _FLOAT64 else DTYPES["float32"]
            drawn = self._drawn(steps, name, ("exponential", 1.0), shape, wide)
            # A word that stands for 1 gives 0, whose logarithm is infinite.
            least = 2.0**-54 if wide is _FLOAT64 else 2.0**-33
            return steps.evaluate(cast(law(ufunc("maximum", drawn, least)), kind), out)

        return self._several(name, build)

    # --- as quotients --------------------------------------------------------------------------

    @op
    def standard_t(
        self, df: float, size: Size = None, *, dtype: Kind = None, out: Out = None
    ) -> Request[GpuRef]:
        """Student's t of ``df`` degrees of freedom, above 0; drawn in float64."""
        half = positive_shape(df, "df", "float64") / 2

        def build(steps: CallSteps) -> GpuRef:
            kind, shape = self._target(steps, size, dtype, out)
            spread = self._drawn(steps, "standard_t", ("gamma", half, 1 / half), shape)
            normal = self._drawn(steps, "standard_t", ("normal", 0.0, 1.0), shape, before=1)
            return steps.evaluate(cast(normal / ufunc("sqrt", spread), kind), out)

        return self._several("standard_t", build)

    @op
    def f(
        self, dfnum: float, dfden: float, size: Size = None, *, dtype: Kind = None, out: Out = None
    ) -> Request[GpuRef]:
        """Fisher's F: quotients of means of squares; drawn in float64.

        ``dfnum`` and ``dfden`` are degrees of freedom, above 0.
        """
        halves = [
            positive_shape(value, name, "float64") / 2
            for value, name in ((dfnum, "dfnum"), (dfden, "dfden"))
        ]

        def build(steps: CallSteps) -> GpuRef:
            kind, shape = self._target(steps, size, dtype, out)
            above, below = (
                self._drawn(steps, "f", ("gamma", half, 1 / half), shape, before=at)
                for at, half in enumerate(halves)
            )
            return steps.evaluate(cast(above / below, kind), out)

        return self._several("f", build)

    @op
    def dirichlet(self, alpha: ArrayLike, size: Size = None) -> Request[GpuRef]:
        """Shares that sum to 1; as ``numpy.random.Generator.dirichlet``, in float64.

        Gamma numbers, divided by their sum: one draw for each share, and one for all of them.

        Args:
            alpha: shape (k,), on the host, above 0.
            size: shape of the sample.

        Returns:
            An array of shape ``size + (k,)``.
        """
        given = np.asarray(alpha, np.float64)
        if given.ndim != 1:
            raise ValueError(f"alpha must have one dimension, not shape {given.shape}")
        shapes = [positive_shape(float(each), "alpha", "float64") for each in given]

        def build(steps: CallSteps) -> GpuRef:
            self._require_words("dirichlet")
            lead, k = shape_of(() if size is None else size, None, 1), len(shapes)
            if not k:
                return steps.output((*lead, 0), _FLOAT64)
            logs = steps.output((*lead, k), _FLOAT64)
            for at, each in enumerate(shapes):
                part = self._drawn(steps, "dirichlet", ("gamma", each + 1, 1.0), lead, before=at)
                steps.evaluate(ufunc("log", part), logs[..., at])
            # The logarithm of a gamma number of one shape less, which itself may be too small.
            factors = self._drawn(steps, "dirichlet", ("exponential", 1.0), (*lead, k), before=1)
            known = steps.upload(given, _FLOAT64)
            whole: Any = steps.evaluate(logs - factors / known)
            sizes: Any = ufunc("exp", whole - whole.max(-1, keepdims=True))
            return steps.evaluate(sizes / sizes.sum(-1, keepdims=True))

        return self._several("dirichlet", build)

    @op
    def permuted(self, x: GpuRef, *, axis: int | None = None, out: Out = None) -> Request[GpuRef]:
        """Each row in a random order of its own; as ``numpy.random.Generator.permuted``.

        By sorting uniform numbers, which takes scratch memory for two times 8 bytes an element.

        Args:
            x: an array, of any strides.
            axis: along which; by default all elements are one row.
            out: where to put the result; ``x`` itself, say.
        """
        along = None if axis is None else normalize_axis_index(operator.index(axis), x.ndim)

        def build(steps: CallSteps) -> GpuRef:
            self._require_words("permuted")
            given = steps.ref(x)
            rows = steps.flat(given) if along is None else given
            keys = self._drawn(steps, "permuted", ("uniform", 0.0, 1.0), rows.shape)
            array, at = self._known.array, along or 0
            order = steps.do(array.argsort(keys, at))
            made: GpuRef = steps.do(array.take_along_axis(rows, order, at))
            made = made.reshape(given.shape)
            return made if out is None else steps.evaluate(made, out)

        return self._several("permuted", build)

    # --- helpers -------------------------------------------------------------------------------

    def _target(
        self, steps: CallSteps, size: Size, dtype: Kind, out: Out
    ) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and the shape of a result."""
        kind = dtype_of(dtype, out, "float64")
        shape = shape_of(size, out, self._state.dimensions)
        if out is not None:
            check_out(out, steps.preparer.memory, shape, kind)
        return kind, shape

    def _drawn(
        self,
        steps: CallSteps,
        name: str,
        law: tuple[Any, ...],
        shape: tuple[int, ...],
        kind: np.dtype[Any] = _FLOAT64,
        *,
        before: int = 0,
    ) -> GpuRef:
        """Add a draw as a step, after some other draws of the call."""
        wanted, skipped = continuous(law[0], kind, *law[1:]), before * math.prod(shape)

        def draw(preparer: Preparer) -> Submission[GpuRef]:
            return self._draw(preparer, name, wanted, shape, None, skipped=skipped)

        return steps.do(Request(LANE, f"rng.{name}", draw))
