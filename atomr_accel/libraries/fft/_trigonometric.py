"""``device.fft``'s cosine and sine transforms: those of ``scipy.fft``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..._dtypes import NAMES
from ...arrays import GpuRef
from ...arrays.expressions import Operand
from ...ops import ARRAY_LANE, D, Request, op_family
from ...wire.options import flag, whole
from ..array.steps import target_of
from ._arguments import PRECISION, axis_of, norm_of, several_of, size_of
from ._cache import LANE
from ._steps import FftPart, FftSteps, computed_in
from .wire._cosines import plan_cosines, points_of
from .wire._messages import Cosines, CosineSpec, encode

if TYPE_CHECKING:
    import numpy as np

    from ...ops import LaneSpec

_INVERSE: Final = {1: 1, 2: 3, 3: 2, 4: 4}
"""By which type one is undone."""


class Trigonometric(FftPart[D]):
    """Cosine and sine transforms, of types 1 to 4."""

    @op_family
    def dct(
        self,
        _name: str,
        x: GpuRef,
        type: int = 2,  # noqa: A002 - SciPy's name
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        orthogonalize: bool | None = None,
    ) -> Request[GpuRef]:
        """The cosine transform along one axis; as ``scipy.fft.dct``.

        Vendor function: ``cufftXtExec``, real to complex for types 1 and 2, complex to real for
        type 3, and complex to complex for type 4, between two kernels of this package.

        Args:
            x: any shape but 0-d. Real and imaginary parts are transformed by themselves.
            type: 1, 2, 3 or 4.
            n: points along the axis; by default all there are. Type 1 takes at least two.
            axis: which axis.
            norm: how to scale: ``"backward"`` not at all, ``"forward"`` by 1 / 2N and ``"ortho"``
                by the root of that, where N is ``n``; for type 1, ``n - 1``.
            out: where to put the result; it shares no memory with ``x``.
            orthogonalize: scale some numbers so that rows of the transform's matrix are orthogonal
                and of one length; by default with ``norm="ortho"``. These are the first number of
                types 1 to 3, and the last one of type 1.

        Returns:
            An array of ``x``'s shape with ``n`` in place of the axis.
        """

        def build(steps: FftSteps) -> GpuRef:
            given = steps.ref(x)
            along = axis_of(whole(axis, "axis"), given.ndim)
            points = given.shape[along] if n is None else size_of(n, "n")
            kind = _along(_name, type, along, points, norm, orthogonalize)
            return _transformed(steps, _name, given, (kind,), out)

        return self._several(_name, build, _lane(x, out))

    idct: Final = dct.like(
        """The inverse of ``dct``, with the same arguments; as ``scipy.fft.idct``."""
    )

    dst: Final = dct.like(
        """The sine transform along one axis; as ``scipy.fft.dst``.

        Arguments and result are those of ``dct``, with two differences. For type 1, N is ``n + 1``,
        and a single point is allowed. ``orthogonalize`` scales the last number of types 2 and 3.

        Vendor function: ``cufftXtExec``, as for ``dct``.
        """
    )

    idst: Final = dct.like(
        """The inverse of ``dst``, with the same arguments; as ``scipy.fft.idst``."""
    )

    @op_family
    def dctn(
        self,
        _name: str,
        x: GpuRef,
        type: int = 2,  # noqa: A002 - SciPy's name
        s: int | Sequence[int] | None = None,
        axes: int | Sequence[int] | None = None,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        orthogonalize: bool | None = None,
    ) -> Request[GpuRef]:
        """The cosine transform along several axes; as ``scipy.fft.dctn``: ``dct`` of each.

        Args:
            x: as for ``dct``.
            type: as for ``dct``.
            s: points along each axis, -1 for all there are; by default all of them.
            axes: which axes, each once; by default the last ``len(s)``, or all.
            norm: how to scale along each of them, as ``dct`` does.
            out: as for ``dct``.
            orthogonalize: as for ``dct``.

        Returns:
            Of ``x``'s shape with ``s`` in place of the axes.
        """

        def build(steps: FftSteps) -> GpuRef:
            given = steps.ref(x)
            sizes = _sizes(given.shape, s, axes)
            kinds = [
                _along(_name, type, axis, points, norm, orthogonalize)
                for axis, points in sizes.items()
            ]
            # Those that make it smaller come first.
            kinds.sort(key=lambda each: each.points / max(1, given.shape[each.axis]))
            return _transformed(steps, _name, given, tuple(kinds), out)

        return self._several(_name, build, _lane(x, out))

    idctn: Final = dctn.like(
        """The inverse of ``dctn``, with the same arguments; as ``scipy.fft.idctn``."""
    )

    dstn: Final = dctn.like(
        """The sine transform along several axes; as ``scipy.fft.dstn``: ``dst`` of each.

        Arguments and result are those of ``dctn``.
        """
    )

    idstn: Final = dctn.like(
        """The inverse of ``dstn``, with the same arguments; as ``scipy.fft.idstn``."""
    )


def _transformed(
    steps: FftSteps, name: str, x: GpuRef, along: tuple[CosineSpec, ...], out: GpuRef | None
) -> GpuRef:
    """One axis after the other, all of them in one message."""
    points = {each.axis: each.points for each in along}
    shape = tuple(points.get(axis, extent) for axis, extent in enumerate(x.shape))
    dtype = computed_in(name, x.dtype)
    target = target_of(steps, out, shape, dtype, [("x", x)], op=name)
    if 0 in shape:
        return target
    given = steps.contiguous(x)
    made = target if _direct(dtype, target) else steps.output(shape, dtype)
    # Complex numbers are pairs of real ones, of which each is transformed by itself.
    pair = (2,) if dtype.kind == "c" else ()
    source = PRECISION[given.dtype.name] if pair else NAMES[given.dtype]
    spec = Cosines(source, PRECISION[dtype.name], (*given.shape, *pair), along)
    steps.transform(name, encode(spec), plan_cosines(spec).scratch, given, made)
    if made is not target:
        steps.assign((made, target))
    return target


def _direct(dtype: np.dtype[Any], out: GpuRef) -> bool:
    """Return True if a result can be written to a buffer without conversion."""
    return out.dtype is dtype and out.contiguous


def _lane(x: object, out: object) -> LaneSpec:
    """Return the lane of the last step: a transform's own, or that of arrays for a copy."""
    if not isinstance(out, GpuRef) or not isinstance(x, Operand) or x.dtype.name not in PRECISION:
        return LANE
    return LANE if _direct(computed_in("", x.dtype), out) else ARRAY_LANE


def _along(
    name: str, type_: int, axis: int, points: int, norm: str | None, orthogonalize: bool | None
) -> CosineSpec:
    """The transform along an axis."""
    number = whole(type_, "type")
    if number not in _INVERSE:
        raise ValueError(f"type must be 1, 2, 3 or 4, not {number}")
    if points < 1:
        raise ValueError(f"Invalid number of data points ({points}) specified.")
    inverse, sine = name.startswith("i"), "s" in name
    norm = norm_of(norm)
    orthogonal = norm == "ortho"
    if orthogonalize is not None:
        orthogonal = flag(orthogonalize, "orthogonalize")
    period = 2 * points_of(number, points, sine=sine)
    if norm == "ortho":
        scale = 1 / math.sqrt(period)
    else:
        scale = 1 / period if inverse == (norm == "backward") else 1.0
    kind = _INVERSE[number] if inverse else number
    return CosineSpec(axis, points, kind, sine, scale, orthogonal)


def _sizes(
    shape: tuple[int, ...], s: int | Sequence[int] | None, axes: int | Sequence[int] | None
) -> dict[int, int]:
    """Return the number of points along each transformed axis."""
    points = None if s is None else several_of(s if isinstance(s, Iterable) else (s,), "s")
    if axes is not None:
        named = several_of(axes if isinstance(axes, Iterable) else (axes,), "axes")
    elif points is None:
        named = tuple(range(len(shape)))
    else:
        named = tuple(range(-len(points), 0))
    along = tuple(axis_of(axis, len(shape)) for axis in named)
    if len(set(along)) != len(along):
        raise ValueError(f"axes must be unique, not {named}")
    if points is None:
        return {axis: shape[axis] for axis in along}
    if len(points) != len(along):
        raise ValueError(f"Shape and axes have different lengths: s is {points}, axes is {named}")
    pairs = zip(along, points, strict=True)
    return {axis: shape[axis] if size == -1 else size for axis, size in pairs}
