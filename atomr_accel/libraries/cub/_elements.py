"""Transforms and histograms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._dtypes import DTYPES, NAMES, as_dtype
from ...arrays.expressions import cast
from ...ops import D, Request, Submission, op, require_int32
from ...wire.options import whole
from ..array.evaluate import evaluating
from ._operators import coded, named
from .call import LANE, CubOutput, CubPart, element, number
from .wire._spec import BINARY, UNARY, CubSpec

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...ops import Preparer
    from ._operators import AnyOperator

_STEEPEST: Final = 2.0**1000
_SCALE: Final = 2.0**600
"""By this, subnormal edges become normal ones whose differences have inverses."""


class Elements(CubPart[D]):
    """``device.cub``'s transforms and histograms."""

    @op
    def unary_transform(
        self,
        x: GpuRef,
        op: AnyOperator,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Do something with each element (``cub::DeviceTransform``).

        Args:
            x: any shape.
            op: ``"identity"``, ``"negate"``, ``"bit_not"``, ``"logical_not"``; what ``operator``
                made; or a Python function of the small subset.
            dtype: the dtype of the result, which is cast to it as in C++; by default that of x, or
                bool for ``"logical_not"``.
            out: the buffer for the result; may be x, if that has its dtype.

        Returns:
            An array of x's shape.
        """
        self._require(x=x)
        return self._transform("unary_transform", [("x", x)], op, dtype, out)

    @op
    def binary_transform(
        self,
        a: GpuRef,
        b: GpuRef,
        op: AnyOperator,
        *,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Do something with each two elements (``cub::DeviceTransform``).

        Args:
            a: any shape.
            b: an array of the shape and dtype of a.
            op: ``"plus"``, ``"minus"``, ``"multiplies"``, ``"divides"`` (of floats), ``"minimum"``,
                ``"maximum"``, ``"bit_and"``, ``"bit_or"``, ``"bit_xor"``, ``"logical_and"``,
                ``"logical_or"``, ``"equal_to"``, ``"not_equal_to"``, ``"less"``, ``"less_equal"``,
                ``"greater"``, ``"greater_equal"``; or as for ``unary_transform``.
            dtype: as for ``unary_transform``; by default bool for comparisons.
            out: the buffer for the result; may be a or b, if they have its dtype.

        Returns:
            An array of the shape of a.
        """
        self._require(a=a, b=b)
        if a.shape != b.shape:
            raise ValueError(f"b must have the shape of a, {a.shape}, not {b.shape}")
        return self._transform("binary_transform", [("a", a), ("b", b)], op, dtype, out)

    def _transform(
        self,
        algorithm: str,
        given: list[tuple[str, GpuRef]],
        op: AnyOperator,
        dtype: DTypeLike | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        dtypes = tuple(element(ref, name, complex_too=True) for name, ref in given)
        if len(set(dtypes)) > 1:
            raise TypeError(f"a is {dtypes[0]} and b {dtypes[1]}; cast one first")
        rules = UNARY if len(given) == 1 else BINARY
        truth = isinstance(op, str) and rules[named(op, len(given), "op")].truth
        result = ("bool" if truth else dtypes[0]) if dtype is None else NAMES[as_dtype(dtype)]
        _require_castable(dtypes[0], result)
        operator = coded(self.home, op, dtypes, result, "op")
        spec = CubSpec(algorithm, (*dtypes, result), (operator,))
        shape = given[0][1].shape
        return self._request(
            f"cub.{algorithm}",
            spec,
            given,
            [CubOutput("out", shape, DTYPES[result], out)],
            (given[0][1].size,),
            in_place=[("out", name) for name, _ in given] if result == dtypes[0] else (),
        )

    @op
    def histogram_even(
        self,
        x: GpuRef,
        bins: int,
        lower: float,
        upper: float,
        *,
        dtype: DTypeLike = np.int64,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Count elements in bins of one width (``cub::DeviceHistogram::HistogramEven``).

        ``upper`` itself is in no bin, unlike in ``numpy.histogram``, nor is NaN. If the range is so
        small that CUB's factor, ``bins / (upper - lower)``, overflows, a scaled copy is counted.

        Args:
            x: any shape, taken as one row; real, but not bfloat16, of which CUB miscounts.
            bins: the number of bins.
            lower: the lowest edge; a whole number for integers.
            upper: the highest edge.
            dtype: the dtype of the counts: int32, uint32, int64 or uint64.
            out: the buffer for the counts.

        Returns:
            An array of ``bins`` counts.

        Raises:
            Unsupported: on CUDA, 2**31 elements or more.
        """
        self._require(x=x)
        given = element(x, "x")
        if given in ("bool", "bfloat16"):
            raise TypeError(f"x is {given}, of which there is no histogram; cast it first")
        counts = NAMES[as_dtype(dtype)]
        if counts not in ("int32", "uint32", "int64", "uint64"):
            raise TypeError(f"counts are int32, uint32, int64 or uint64, not {counts}")
        whole(bins, "bins", 1, 2**31 - 2)
        require_int32(self.home, "histogram_even", (x.size,))
        edge = DTYPES["float64"]
        if DTYPES[given].kind in "iu":
            edge = DTYPES["uint64" if given == "uint64" else "int64"]
        values = number(lower, edge, "lower"), number(upper, edge, "upper")
        if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
            raise ValueError(f"lower is {lower} and upper {upper}; they must be in order")
        if edge.kind not in "iu" and not math.isfinite(float(upper) - float(lower)):
            raise ValueError(
                f"Too many bins for data range: upper - lower must be finite, not {upper} - {lower}"
            )
        if edge.kind in "iu" and (int(upper) - int(lower)) * bins >= 2**63:
            raise ValueError(f"{bins} bins from {lower} to {upper} are more than 64 bits count")
        scaled = edge.kind not in "iu" and (float(upper) - float(lower)) * _STEEPEST <= bins
        if scaled:
            given = "float64"
            values = number(lower * _SCALE, edge, "lower"), number(upper * _SCALE, edge, "upper")
        spec = CubSpec("histogram_even", (given, counts, edge.name), levels=int(bins) + 1)

        def counting(samples: GpuRef) -> Request[GpuRef]:
            return self._request(
                "cub.histogram_even",
                spec,
                [("x", samples)],
                [CubOutput("out", (int(bins),), DTYPES[counts], out)],
                (x.size,),
                values=values,
            )

        if not scaled:
            return counting(x)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            wide = cast(x, DTYPES["float64"]) * _SCALE
            interpreted = preparer.home.capabilities.python_kernels
            samples = preparer.perform(evaluating(interpreted, (wide,), None))
            assert samples is not None  # buffers are given in batches, too
            return counting(samples).prepare(preparer)

        return Request(LANE, "cub.histogram_even", prepare)


def _require_castable(given: str, result: str) -> None:
    kinds = DTYPES[given].kind, DTYPES[result].kind
    known: Any = result.startswith(("float8", "float4"))
    if known or ("c" in kinds and given != result):
        raise TypeError(f"{given} is not cast to {result} here")
