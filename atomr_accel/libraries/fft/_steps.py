"""Calls of ``device.fft`` that take several steps: transforms, and expressions around them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from ..._dtypes import DTYPES
from ...arrays.expressions import cast, index
from ...arrays.expressions.expression import broadcast_constant
from ...ops import ARRAY_LANE as LANE
from ...ops import D, Facade, LaneSpec, Request
from ..array.steps import CallSteps
from ._arguments import PRECISION, resolve
from ._cache import LANE as TRANSFORMS
from .wire._messages import RunTransform, encode
from .wire._plan import COMPLEX, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...arrays import GpuRef
    from ...arrays.expressions import Operand
    from ...ops import AsRequests, Preparer, Submission
    from ..cub.facade import Cub
    from ._transforms import Transforms

T = TypeVar("T")

FLOAT64: Final = DTYPES["float64"]


class FftFacades(NamedTuple):
    """The facades that make steps, shared by all copies of a facade.

    Attributes:
        fft: makes requests for transforms.
        cub: algorithms that steps may be.
    """

    fft: Transforms[AsRequests]
    cub: Cub[AsRequests]


class FftSteps(CallSteps):
    """The steps of a call of ``device.fft``, while it is prepared."""

    def __init__(self, preparer: Preparer, known: FftFacades, lane: LaneSpec = LANE) -> None:
        super().__init__(preparer, known.cub, lane)
        self.fft: Final = known.fft

    def result(self, result: T, last: Submission[Any] | None = None) -> Submission[T]:
        """All of it; the plans of its transforms are kept together."""
        made = super().result(result, last)
        if not self._sent:
            return made
        transforms = sum(type(each.message) is RunTransform for _, each in self._steps)
        used = partial(self.fft._plans.all_used, self._sent, transforms)
        return msgspec.structs.replace(made, sent=used)

    def transform(
        self,
        name: str,
        spec: bytes,
        scratch: int,
        source: GpuRef,
        out: GpuRef,
        *,
        spent: bool = False,
    ) -> None:
        """Another step, by ``FftPlanCache.transforming``, which may spend its input."""

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            made = self.fft._plans.transforming(preparer, spec, scratch, source.block, out)
            if not spent:
                return made
            return msgspec.structs.replace(made, reads=(), writes=(*made.writes, source.block))

        self.do(Request(TRANSFORMS, f"fft.{name}", prepare))

    def real(self, name: str, x: GpuRef, sizes: tuple[int, ...], axes: tuple[int, ...]) -> GpuRef:
        """Another step: the real signal of a spectrum, which is spent, without a scale."""
        call = resolve(name, "irfft", x.shape, x.dtype, axes, sizes, "forward", half=False)
        spec = msgspec.structs.replace(call.spec, spent=True)
        made = self.output(call.shape, call.dtype)
        self.transform(name, encode(spec), plan(spec).scratch, x, made, spent=True)
        return made

    def resized(self, x: GpuRef, sizes: tuple[int, ...]) -> GpuRef:
        """Return the same array cropped, or padded with zeros, at the ends of its axes."""
        if x.shape == sizes:
            return x
        kept = tuple(slice(min(pair)) for pair in zip(x.shape, sizes, strict=True))
        x = x[kept]
        if x.shape == sizes:
            return x
        made = self.output(sizes, x.dtype)
        self.evaluate(broadcast_constant(sizes, x.dtype), made)
        self.assign((x, made[kept]))
        return made


class FftPart(Facade[D]):
    """Base of the parts of ``device.fft`` that make steps."""

    _known: FftFacades

    def _several(
        self, name: str, build: Callable[[FftSteps], T], lane: LaneSpec = LANE
    ) -> Request[T]:
        """A request of several steps, of which the last one is on a lane."""
        known = self._known

        def prepare(preparer: Preparer) -> Submission[T]:
            steps = FftSteps(preparer, known, lane)
            return steps.result(build(steps))

        return Request(lane, f"fft.{name}", prepare)


def computed_in(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which something is transformed: complex numbers as such, all else real."""
    precision = PRECISION.get(dtype.name)
    if precision is None:
        raise TypeError(f"dtypes of {name} must be one of {', '.join(PRECISION)}, not {dtype.name}")
    return complex_of(DTYPES[precision]) if dtype.kind == "c" else DTYPES[precision]


def complex_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The complex dtype of the same precision."""
    return dtype if dtype.kind == "c" else DTYPES[COMPLEX[dtype.name]]


def counted(count: int, start: int = 0, step: int = 1) -> Operand:
    """``start``, ``start + step`` and so on, float64, in one dimension."""
    made: Operand = cast(index((count,), 0), FLOAT64)
    if step != 1:
        made = made * step
    return made + start if start else made
