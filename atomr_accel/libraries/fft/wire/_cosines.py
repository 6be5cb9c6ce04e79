"""Cosine and sine transforms, split into Fourier transforms and steps before and after them.

A sine transform is the cosine transform of the same type with one side reversed and every other
number's sign changed on the other side. The same kernels therefore do both, except for type 1,
which is the transform of an even or odd continuation.

Types 2 and 3 take a real transform of the same number of points; J. Makhoul, "A fast cosine
transform in one and two dimensions", 1980. Type 4 takes a complex transform: of half as many points
if their number is even, and of twice as many otherwise.

Along an axis there are three steps. A *fold* makes rows for cuFFT from the numbers along the axis.
It takes any axis, crops, pads, converts, and puts numbers in the order that the transform needs.
Then cuFFT transforms the rows. A *spread* rotates and scales their results, and writes them along
the axis.

Nothing here touches a device: tests run the steps with NumPy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ._plan import (
    ALIGNMENT,
    COMPLEX,
    INPUT,
    ITEMSIZE,
    OUTPUT,
    SCRATCH,
    BufferOffset,
    CufftLayout,
    CufftRun,
    Dim,
    FftProgram,
    Move,
)

if TYPE_CHECKING:
    from ._messages import Cosines, CosineSpec

ODD: Final = 5
"""The kernels' number for type 4 of an odd number of points."""


@dataclass(frozen=True, slots=True)
class Series:
    """The properties that the fold and the spread around a transform share.

    Attributes:
        type: from 1 to 4, or ``ODD``.
        sine, scale, orthogonal: see ``CosineSpec``.
        outer, inner: elements of all axes before, and of all axes behind.
        extent: numbers along the axis in the source.
        points: numbers along it of the transform.
    """

    type: int
    sine: bool
    scale: float
    orthogonal: bool
    outer: int
    inner: int
    extent: int
    points: int


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows for a Fourier transform.

    Attributes:
        source, target: where the first elements are.
        source_type: element type of the source.
        precision: real dtype of the computation.
        series: of what.
        width: elements of a row, complex ones for types from 3 on.
    """

    source: BufferOffset
    target: BufferOffset
    source_type: str
    precision: str
    series: Series
    width: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The result, of the rows that a Fourier transform gives.

    Attributes:
        source, target: where the first elements are.
        precision: real dtype of the computation.
        series: of what.
        width: elements of a row, real ones for type 3.
        taken: how many of them mean something.
    """

    source: BufferOffset
    target: BufferOffset
    precision: str
    series: Series
    width: int
    taken: int


class _FourierRows(NamedTuple):
    """The Fourier transform in a cosine or sine transform.

    Attributes:
        kind: as in ``FftSpec``.
        size: its points.
        taken: elements of its result that are looked at.
    """

    kind: str
    size: int
    taken: int

    @property
    def before(self) -> int:
        """Elements of a row that is transformed."""
        return self.size // 2 + 1 if self.kind == "c2r" else self.size

    @property
    def after(self) -> int:
        """Elements of a row that comes of it."""
        return self.size // 2 + 1 if self.kind == "r2c" else self.size


def points_of(type_: int, n: int, *, sine: bool) -> int:
    """Half the period of the continuation that a transform of ``n`` numbers stands for."""
    if type_ != 1:
        return n
    if not sine and n < 2:
        raise ValueError(f"a cosine transform of type 1 takes at least 2 data points, not {n}")
    return n + 1 if sine else n - 1


def _rows(type_: int, n: int, *, sine: bool) -> _FourierRows:
    if type_ == 1:
        half = points_of(1, n, sine=sine)
        return _FourierRows("r2c", 2 * half, half + 1)
    if type_ == 2:
        return _FourierRows("r2c", n, n // 2 + 1)
    if type_ == 3:
        return _FourierRows("c2r", n, n)
    return _FourierRows("c2c", 2 * n, n) if n % 2 else _FourierRows("c2c", n // 2, n // 2)


def cosines_shape(spec: Cosines) -> tuple[int, ...]:
    """The shape of the output."""
    points = {each.axis: each.points for each in spec.along}
    return tuple(points.get(axis, extent) for axis, extent in enumerate(spec.shape))


def plan_cosines(spec: Cosines) -> FftProgram:
    """Return the steps of transforms, one axis after the other.

    Two parts of scratch memory alternate: a step reads from one, and writes to the other.
    """
    shape = list(spec.shape)
    if 0 in cosines_shape(spec):
        return FftProgram((), 0)
    if not spec.along:
        count = math.prod(shape)
        dims = (Dim(count, 1, 1, count),)
        return FftProgram(
            (Move(BufferOffset(INPUT), BufferOffset(OUTPUT), spec.source, spec.precision, dims),), 0
        )
    steps: list[Move | CufftRun | Fold | Spread] = []
    most = max(_nbytes(spec, each, sizes) for each, sizes in _each(spec))
    places = [BufferOffset(SCRATCH), BufferOffset(SCRATCH, most)]
    source, source_type = BufferOffset(INPUT), spec.source
    for number, (each, sizes) in enumerate(_each(spec), 1):
        outer, inner = math.prod(sizes[: each.axis]), math.prod(sizes[each.axis + 1 :])
        rows = _rows(each.type, each.points, sine=each.sine)
        type_ = ODD if each.type == 4 and each.points % 2 else each.type
        about = (each.sine, each.scale, each.orthogonal)
        series = Series(type_, *about, outer, inner, sizes[each.axis], each.points)
        before, after = places
        target = BufferOffset(OUTPUT) if number == len(spec.along) else before
        steps += [
            Fold(source, before, source_type, spec.precision, series, rows.before),
            _transform(spec.precision, rows, outer * inner, before, after),
            Spread(after, target, spec.precision, series, rows.after, rows.taken),
        ]
        source, source_type = target, spec.precision
        places.reverse()
    return FftProgram(tuple(steps), 2 * most)


def _each(spec: Cosines) -> list[tuple[CosineSpec, tuple[int, ...]]]:
    """Return the transforms, each with the shape of its input."""
    shape = list(spec.shape)
    made = []
    for each in spec.along:
        made.append((each, tuple(shape)))
        shape[each.axis] = each.points
    return made


def _nbytes(spec: Cosines, each: CosineSpec, sizes: tuple[int, ...]) -> int:
    """Bytes of the largest array that a transform makes, aligned."""
    rows = _rows(each.type, each.points, sine=each.sine)
    batch = math.prod(sizes[: each.axis]) * math.prod(sizes[each.axis + 1 :])
    size, pair = ITEMSIZE[spec.precision], ITEMSIZE[COMPLEX[spec.precision]]
    row = max(
        rows.before * (size if rows.kind == "r2c" else pair),
        rows.after * (size if rows.kind == "c2r" else pair),
        each.points * size,
    )
    return -(-batch * row // ALIGNMENT) * ALIGNMENT


def _transform(
    precision: str, rows: _FourierRows, batch: int, source: BufferOffset, target: BufferOffset
) -> CufftRun:
    """Each row of a number of them."""
    layout = CufftLayout(
        sizes=(rows.size,),
        source_embed=(rows.before,),
        source_stride=1,
        source_distance=rows.before,
        source_type=precision if rows.kind == "r2c" else COMPLEX[precision],
        target_embed=(rows.after,),
        target_stride=1,
        target_distance=rows.after,
        target_type=precision if rows.kind == "c2r" else COMPLEX[precision],
        batch=batch,
    )
    return CufftRun(layout, rows.kind == "c2r", source, target, ((0, 0),))
