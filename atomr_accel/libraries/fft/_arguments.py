"""Checks of the arguments of ``device.fft``, made in the caller as NumPy makes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..._dtypes import DTYPES
from ..._errors import Unsupported
from ...wire.options import LARGEST, whole
from ._callbacks import require_one_piece
from .wire._messages import FftSpec, Hook, encode
from .wire._plan import HALF, plan, result_shape, result_type

if TYPE_CHECKING:
    from collections.abc import Sequence


class TransformFamily(NamedTuple):
    """The properties that transforms of one kind share.

    Attributes:
        kind: see ``FftSpec``.
        inverse: True for inverse transforms, for which norms have the opposite scale.
        conjugate: see ``FftSpec``.
    """

    kind: Any
    inverse: bool
    conjugate: bool = False


FAMILIES: Final = {
    "fft": TransformFamily("c2c", inverse=False),
    "ifft": TransformFamily("c2c", inverse=True),
    "rfft": TransformFamily("r2c", inverse=False),
    "irfft": TransformFamily("c2r", inverse=True),
    # The spectrum of a signal with Hermitian symmetry is that of irfft, conjugated, and
    # counts as a forward transform.
    "hfft": TransformFamily("c2r", inverse=False, conjugate=True),
    "ihfft": TransformFamily("r2c", inverse=True, conjugate=True),
}
"""The one-dimensional transforms; those of more dimensions belong to one of them."""

PRECISION: Final = {
    **dict.fromkeys(("float16", "bfloat16", "float32", "complex64"), "float32"),
    **dict.fromkeys(("float64", "complex128"), "float64"),
    **dict.fromkeys(("bool", "int8", "int16", "int32", "int64"), "float64"),
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64"), "float64"),
}
"""In what each dtype is transformed, as in NumPy; narrow floats are widened to single."""

_NORMS: Final = ("backward", "ortho", "forward")
_MOST_HALF: Final = 2**32


@dataclass(frozen=True, slots=True)
class TransformCall:
    """A transform, ready for any buffers of the right shape.

    Attributes:
        spec: the transform.
        encoded: the transform as messages carry it.
        shape: of the result.
        dtype: of the result.
        scratch: bytes of scratch memory it takes.
    """

    spec: FftSpec
    encoded: bytes
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scratch: int


def resolve(
    name: str,
    family: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    axes: tuple[int, ...],
    sizes: tuple[int, ...],
    norm: str | None,
    *,
    half: bool,
    aligned: tuple[bool, bool] = (True, True),
    hooks: tuple[Hook | None, Hook | None] = (None, None),
) -> TransformCall:
    """Return the transform that a call requests.

    ``shape`` lacks the axis of pairs of complex half precision. ``axes`` are normalised, each once,
    and ``sizes`` are those along them. ``aligned`` says of input and output whether they are
    aligned for complex numbers.
    """
    kind, inverse, conjugate = FAMILIES[family]
    source, precision = _types(name, kind, dtype, half=half)
    for size in sizes:
        if size < 1:
            raise ValueError(f"Invalid number of FFT data points ({size}) specified.")
        if half and size & (size - 1):
            raise Unsupported(
                f"{name} in half precision takes powers of two only, not {size} points; "
                f"without half=True, {dtype.name} is computed in single precision"
            )
    points = math.prod(sizes)
    if half and points > _MOST_HALF:
        raise Unsupported(f"{name} in half precision takes up to 2**32 points, not {points}")
    spec = FftSpec(
        kind=kind,
        inverse=inverse if kind == "c2c" else kind == "c2r",
        source=source,
        precision=precision,
        shape=shape,
        axes=axes,
        sizes=sizes,
        scale=_scale(norm, points, inverse=inverse),
        conjugate=conjugate,
        source_aligned=aligned[0],
        target_aligned=aligned[1],
        load=hooks[0],
        store=hooks[1],
    )
    if hooks != (None, None):
        require_one_piece(spec)
    element, pair, _ = result_type(spec).partition("x2")
    return TransformCall(
        spec=spec,
        encoded=encode(spec),
        shape=(*result_shape(spec), 2) if pair else result_shape(spec),
        dtype=DTYPES[element],
        scratch=plan(spec).scratch,
    )


def _types(name: str, kind: str, dtype: np.dtype[Any], *, half: bool) -> tuple[str, str]:
    """Element type of the input, and the precision."""
    if half:
        if dtype.name not in HALF:
            raise TypeError(
                f"a must be float16 or bfloat16 for {name} with half=True, not {dtype.name}"
            )
        return dtype.name if kind == "r2c" else f"{dtype.name}x2", dtype.name
    precision = PRECISION.get(dtype.name)
    if precision is None:
        raise TypeError(f"dtypes of {name} must be one of {', '.join(PRECISION)}, not {dtype.name}")
    if kind == "r2c" and dtype.kind == "c":
        raise TypeError(f"a must be real for {name}, not {dtype.name}; use the complex transform")
    return dtype.name, precision


def norm_of(norm: object) -> str:
    """Return the name of a norm."""
    if norm is None:
        return "backward"
    if not isinstance(norm, str) or norm not in _NORMS:
        raise ValueError(f'Invalid norm value {norm}; should be "backward", "ortho" or "forward".')
    return norm


def _scale(norm: str | None, points: int, *, inverse: bool) -> float:
    norm = norm_of(norm)
    if norm == "ortho":
        return 1 / math.sqrt(points)
    scaled = inverse if norm == "backward" else not inverse
    return 1 / points if scaled else 1.0


def one_axis(
    family: str, shape: tuple[int, ...], n: int | None, axis: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes and sizes of a one-dimensional transform."""
    axis = axis_of(axis, len(shape))
    if n is None:
        n = shape[axis]
        if FAMILIES[family].kind == "c2r":
            n = 2 * (n - 1)
    return (axis,), (n,)


def axis_of(axis: int, ndim: int) -> int:
    """Return an axis as a number from 0 to ``ndim - 1``."""
    if not -ndim <= axis < ndim:
        raise np.exceptions.AxisError(axis, ndim)
    return axis % ndim


def size_of(n: Any, name: str) -> int:
    """Return a number of points."""
    return whole(n, name, most=LARGEST)


def several_of(values: Any, name: str) -> tuple[int, ...]:
    """Whole numbers, of which there is one for each of several axes."""
    try:
        each = tuple(values)
    except TypeError:
        raise TypeError(
            f"{name} must be a sequence of whole numbers, not {values!r} of type "
            f"{type(values).__name__}"
        ) from None
    return tuple(size_of(value, name) for value in each)


def several_axes(
    family: str,
    shape: tuple[int, ...],
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes and sizes of a transform along several axes, which may repeat."""
    if axes is None:
        axes = range(len(shape)) if s is None else range(-len(s), 0)
    normal = tuple(axis_of(axis, len(shape)) for axis in axes)
    if not normal:
        raise ValueError(f"axes must have at least one axis, not {tuple(axes)}")
    if s is None:
        sizes = [shape[axis] for axis in normal]
        if FAMILIES[family].kind == "c2r":
            sizes[-1] = 2 * (sizes[-1] - 1)
        return normal, tuple(sizes)
    if len(s) != len(normal):
        raise ValueError(
            f"Shape and axes have different lengths: s is {tuple(s)}, axes is {tuple(axes)}"
        )
    points = zip(s, normal, strict=True)
    return normal, tuple(shape[axis] if size == -1 else size for size, axis in points)


def stages(
    family: str, axes: tuple[int, ...], sizes: tuple[int, ...]
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Return the transforms to run in order: one, unless an axis repeats.

    NumPy transforms a repeated axis once for each time it is named, from the last one to the first.
    The real axis of an inverse is the last one there.
    """
    if len(set(axes)) == len(axes):
        return [(family, axes, sizes)]
    pairs = [((axis,), (size,)) for axis, size in zip(axes, sizes, strict=True)]
    kind, inverse, _ = FAMILIES[family]
    complex_ = "ifft" if inverse else "fft"
    if kind == "c2r":
        return [*((complex_, *pair) for pair in pairs[:-1]), (family, *pairs[-1])]
    return [(family, *pairs[-1]), *((complex_, *pair) for pair in reversed(pairs[:-1]))]
