"""A transform split into cuFFT's steps and steps that move data for them.

cuFFT's advanced layout takes one to three axes, one stride between batches, and sums without a
scale. *Moves* add the rest: any axes of an array, padding, other element types and the scale. A
move is a kernel of this package that copies from one strided layout to another. On the way it
converts, pads with zeros, conjugates and multiplies.

Nothing here touches a device: tests run the steps with NumPy.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

from ...._errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._cosines import Fold, Spread
    from ._messages import FftSpec

INPUT: Final = 0
OUTPUT: Final = 1
SCRATCH: Final = 2

MOST_DIMS: Final = 16
"""Number of dimensions that a move may have after adjacent ones are merged."""

MOST_CALLS: Final = 16
"""Largest number of calls, over batches that no single stride describes, that is faster than a
copy."""

_RANK: Final = 3
ALIGNMENT: Final = 256

COMPLEX: Final = {
    "float16": "float16x2",
    "bfloat16": "bfloat16x2",
    "float32": "complex64",
    "float64": "complex128",
}
"""The complex element type of each precision."""

HALF: Final = frozenset(("float16", "bfloat16"))

ITEMSIZE: Final = {
    "float16": 2,
    "bfloat16": 2,
    "float16x2": 4,
    "bfloat16x2": 4,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class BufferOffset:
    """A place in one of a transform's buffers: which, and bytes from its start."""

    buffer: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class BufferView:
    """A strided array in a buffer.

    Attributes:
        place: where its first element is.
        type: of its elements.
        shape: elements along each dimension.
        strides: from one to the next along each dimension, in elements.
        extents: how many of them are there; the rest are zeros. By default all.
    """

    place: BufferOffset
    type: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    extents: tuple[int, ...]

    @staticmethod
    def contiguous(place: BufferOffset, kind: str, shape: tuple[int, ...]) -> BufferView:
        """A whole C-contiguous array."""
        return BufferView(place, kind, shape, contiguous_strides(shape), shape)

    def permuted(self, order: Iterable[int]) -> BufferView:
        """With the dimensions in another order."""
        order = tuple(order)
        pick = [tuple(x[i] for i in order) for x in (self.shape, self.strides, self.extents)]
        return BufferView(self.place, self.type, *pick)


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of a move: size and strides in elements, and how many elements there are."""

    size: int
    target: int
    source: int
    extent: int


@dataclass(frozen=True, slots=True)
class Move:
    """A copy from one layout to another.

    Attributes:
        source, target: where the first elements are.
        source_type, target_type: element types.
        dims: the target's dimensions, outermost first.
        scale: what every element is multiplied with.
        conjugate: whether imaginary parts change sign.
        edge: a dimension whose elements 0 and ``middle`` lose their imaginary part, or -1.
        middle: see ``edge``; -1 for none.
    """

    source: BufferOffset
    target: BufferOffset
    source_type: str
    target_type: str
    dims: tuple[Dim, ...]
    scale: float = 1.0
    conjugate: bool = False
    edge: int = -1
    middle: int = -1


@dataclass(frozen=True, slots=True)
class CufftLayout:
    """A plan in the words of ``cufftXtMakePlanMany``."""

    sizes: tuple[int, ...]
    source_embed: tuple[int, ...]
    source_stride: int
    source_distance: int
    source_type: str
    target_embed: tuple[int, ...]
    target_stride: int
    target_distance: int
    target_type: str
    batch: int


@dataclass(frozen=True, slots=True)
class CufftRun:
    """One or several runs of a cuFFT plan.

    Attributes:
        layout: the plan.
        inverse: the direction.
        source, target: where the first elements are.
        offsets: what to add to both in each run, in bytes.
    """

    layout: CufftLayout
    inverse: bool
    source: BufferOffset
    target: BufferOffset
    offsets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FftProgram:
    """The steps of a transform.

    Attributes:
        steps: in order.
        scratch: bytes of scratch memory.
    """

    steps: tuple[Move | CufftRun | Fold | Spread, ...]
    scratch: int


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a C-contiguous array, in elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))[: len(shape)]


def logical_shape(spec: FftSpec) -> tuple[int, ...]:
    """The shape of the array in real space: cropped or padded."""
    shape = list(spec.shape)
    for axis, size in zip(spec.axes, spec.sizes, strict=True):
        shape[axis] = size
    return tuple(shape)


def spectrum_shape(spec: FftSpec) -> tuple[int, ...]:
    """The shape of its transform, of which a real array needs only half."""
    shape = list(logical_shape(spec))
    if spec.kind != "c2c":
        shape[spec.axes[-1]] = spec.sizes[-1] // 2 + 1
    return tuple(shape)


def result_shape(spec: FftSpec) -> tuple[int, ...]:
    """The shape of the output."""
    return logical_shape(spec) if spec.kind == "c2r" else spectrum_shape(spec)


def result_type(spec: FftSpec) -> str:
    """The element type of the output."""
    return spec.precision if spec.kind == "c2r" else COMPLEX[spec.precision]


def plan(spec: FftSpec) -> FftProgram:
    """Return the steps of a transform.

    Raises:
        Unsupported: more dimensions than a move takes.
    """
    if 0 in result_shape(spec):
        return FftProgram((), 0)
    return _FftPlanner(spec).run()


@final
class _FftPlanner:
    def __init__(self, spec: FftSpec) -> None:
        self._spec = spec
        self._half = spec.precision in HALF
        self._complex = COMPLEX[spec.precision]
        self._logical = logical_shape(spec)
        self._spectrum = spectrum_shape(spec)
        self._result = BufferView.contiguous(
            BufferOffset(OUTPUT), result_type(spec), result_shape(spec)
        )
        self._steps: list[Move | CufftRun] = []
        self._used = 0
        self._most = 0
        self._scale = spec.scale

    def run(self) -> FftProgram:
        spec = self._spec
        data = self._fetch()
        for kind, axes in self._passes(data):
            if kind == "c2c":
                # A real transform's spectrum is in its output, or already in scratch.
                data = self._pass(kind, axes, data, self._home(data))
            else:
                data = self._pass(kind, axes, data, self._result)
        self._finish(conjugate=spec.conjugate and spec.kind == "r2c")
        return FftProgram(tuple(self._steps), self._most)

    def _home(self, data: BufferView) -> BufferView:
        """Return the view that holds the complex array between passes."""
        return data if self._spec.kind == "c2r" else self._result

    # --- what comes first and last -------------------------------------------------------

    def _fetch(self) -> BufferView:
        """Return the input, moved to a layout that cuFFT can take if it needs that."""
        spec = self._spec
        window = self._spectrum if spec.kind == "c2r" else self._logical
        wanted = spec.precision if spec.kind == "r2c" else self._complex
        source = BufferView(
            BufferOffset(INPUT), spec.source, window, contiguous_strides(spec.shape), spec.shape
        )
        padded = any(size > extent for size, extent in zip(window, spec.shape, strict=True))
        # Half precision is scaled before it sums, because the sums overflow early.
        early = self._half and self._scale != 1.0
        # Complex-to-real transforms overwrite their input, which mostly is not ours to overwrite.
        overwritten = spec.kind == "c2r" and not spec.spent
        if not (padded or spec.source != wanted or overwritten or early):
            return source
        if spec.kind == "c2c":
            target = self._result
        else:
            target = BufferView.contiguous(self._take(wanted, window), wanted, window)
        edge, middle = -1, -1
        if spec.kind == "c2r" and len(spec.axes) == 1:
            # NumPy ignores what is imaginary in the elements that must be real.
            edge = spec.axes[0]
            middle = spec.sizes[0] // 2 if spec.sizes[0] % 2 == 0 else -1
        self._move(
            source,
            target,
            scale=self._scale,
            conjugate=spec.conjugate and spec.kind == "c2r",
            edge=edge,
            middle=middle,
        )
        self._scale = 1.0
        return target

    def _finish(self, *, conjugate: bool) -> None:
        """Apply the scale, if that is still to be done."""
        if self._scale == 1.0 and not conjugate:
            return
        last = self._steps[-1]
        if isinstance(last, Move):
            self._steps[-1] = replace(
                last, scale=last.scale * self._scale, conjugate=last.conjugate != conjugate
            )
        else:
            self._move(self._result, self._result, scale=self._scale, conjugate=conjugate)

    # --- passes --------------------------------------------------------------------------

    def _passes(self, data: BufferView) -> list[tuple[str, tuple[int, ...]]]:
        """The axes in groups that one plan transforms, in the order of execution."""
        kind, axes = self._spec.kind, self._spec.axes
        if kind == "c2c":
            return [(kind, group) for group in self._groups(axes, data, self._result)]
        real = axes[-1]
        # The real axis must be the innermost one of its plan.
        outer = sorted(axis for axis in axes[:-1] if axis < real)
        if self._logical[real] == 1:
            # cuFFT drops an axis of one element, and takes the one before it for the real one.
            outer = []
        group = (*outer[len(outer) - min(len(outer), _RANK - 1) :], real)
        alone = (real,)
        if not self._direct(kind, group, data, self._result) and self._direct(
            kind, alone, data, self._result
        ):
            group = alone
        rest = tuple(axis for axis in axes if axis not in group)
        home = self._home(data)
        others = [("c2c", each) for each in self._groups(rest, home, home)]
        return [(kind, group), *others] if kind == "r2c" else [*others, (kind, group)]

    def _groups(
        self, axes: tuple[int, ...], source: BufferView, target: BufferView
    ) -> list[tuple[int, ...]]:
        ordered = sorted(axes)
        groups: list[tuple[int, ...]] = []
        while ordered:
            group = tuple(ordered[-_RANK:])
            del ordered[-_RANK:]
            singles = [(axis,) for axis in group]
            if not self._direct("c2c", group, source, target) and all(
                self._direct("c2c", single, source, target) for single in singles
            ):
                groups += singles
            else:
                groups.append(group)
        return groups

    def _pass(
        self, kind: str, axes: tuple[int, ...], source: BufferView, target: BufferView
    ) -> BufferView:
        """Transform along ``axes``, from ``source`` to ``target``."""
        step = self._direct(kind, axes, source, target)
        if step:
            self._steps.append(step)
            return target
        # Bring the axes together at the end, where a plan takes them as they are.
        batches = [axis for axis in range(len(source.shape)) if axis not in axes]
        order = (*batches, *axes)
        used = self._used
        before, after = source.permuted(order), target.permuted(order)
        gathered = BufferView.contiguous(
            self._take(source.type, before.shape), source.type, before.shape
        )
        if target.type == source.type:
            transformed = gathered
        else:
            place = self._take(target.type, after.shape)
            transformed = BufferView.contiguous(place, target.type, after.shape)
        self._move(before, gathered)
        last = tuple(range(len(batches), len(order)))
        step = self._direct(kind, last, gathered, transformed)
        assert step is not None
        self._steps.append(step)
        self._move(transformed, after)
        self._used = used
        return target

    def _direct(
        self, kind: str, axes: tuple[int, ...], source: BufferView, target: BufferView
    ) -> CufftRun | None:
        """The transform as runs of one plan, or None if copying is better or has to be."""
        misaligned = [INPUT] * (not self._spec.source_aligned)
        misaligned += [OUTPUT] * (not self._spec.target_aligned)
        if source.place.buffer in misaligned or target.place.buffer in misaligned:
            return None
        sizes = tuple((target if kind == "c2r" else source).shape[axis] for axis in axes)
        source_embed = _embed(axes, source)
        target_embed = _embed(axes, target)
        others = [axis for axis in range(len(source.shape)) if axis not in axes]
        batches = _merge(
            (source.shape[axis], source.strides[axis], target.strides[axis]) for axis in others
        )
        batches.sort()
        batch, source_distance, target_distance = (
            batches.pop() if batches else (1, math.prod(source_embed), math.prod(target_embed))
        )
        if math.prod(size for size, _, _ in batches) > MOST_CALLS:
            return None
        if self._half and not (
            not batches
            and source.strides[axes[-1]] == target.strides[axes[-1]] == 1
            and source_embed[1:] == tuple(source.shape[axis] for axis in axes[1:])
            and target_embed[1:] == tuple(target.shape[axis] for axis in axes[1:])
        ):
            return None  # half precision takes no strides between real numbers
        steps = [range(size) for size, _, _ in batches]
        offsets = tuple(
            (
                sum(i * stride for i, (_, stride, _) in zip(index, batches, strict=True)),
                sum(i * stride for i, (_, _, stride) in zip(index, batches, strict=True)),
            )
            for index in itertools.product(*steps)
        )
        # Real data must begin where a complex number could.
        side = {"r2c": 0, "c2r": 1}.get(kind)
        if side is not None and any(offset[side] % 2 for offset in offsets):
            return None
        layout = CufftLayout(
            sizes=sizes,
            source_embed=source_embed,
            source_stride=source.strides[axes[-1]],
            source_distance=source_distance,
            source_type=source.type,
            target_embed=target_embed,
            target_stride=target.strides[axes[-1]],
            target_distance=target_distance,
            target_type=target.type,
            batch=batch,
        )
        widths = ITEMSIZE[source.type], ITEMSIZE[target.type]
        in_bytes = tuple((a * widths[0], b * widths[1]) for a, b in offsets)
        return CufftRun(layout, self._spec.inverse, source.place, target.place, in_bytes)

    # --- moves ---------------------------------------------------------------------------

    def _take(self, kind: str, shape: tuple[int, ...]) -> BufferOffset:
        """Scratch memory for an array."""
        place = BufferOffset(SCRATCH, self._used)
        nbytes = math.prod(shape) * ITEMSIZE[kind]
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._most = max(self._most, self._used)
        return place

    def _move(
        self,
        source: BufferView,
        target: BufferView,
        *,
        scale: float = 1.0,
        conjugate: bool = False,
        edge: int = -1,
        middle: int = -1,
    ) -> None:
        order = sorted(range(len(target.shape)), key=lambda axis: -target.strides[axis])
        dims: list[Dim] = []
        edge_at = -1
        for axis in order:
            size = target.shape[axis]
            if size == 1 and axis != edge and source.extents[axis]:
                continue
            dim = Dim(size, target.strides[axis], source.strides[axis], source.extents[axis])
            outer = dims[-1] if dims and edge_at != len(dims) - 1 and axis != edge else None
            if (
                outer is not None
                and outer.target == dim.target * size
                and outer.source == dim.source * size
                and dim.extent >= size
                and outer.extent >= outer.size
            ):
                whole = outer.size * size
                dims[-1] = Dim(whole, dim.target, dim.source, whole)
            else:
                dims.append(dim)
            if axis == edge:
                edge_at = len(dims) - 1
        if len(dims) > MOST_DIMS:
            raise Unsupported(
                f"an FFT that copies along {len(dims)} separate dimensions; the most is {MOST_DIMS}"
            )
        self._steps.append(
            Move(
                source=source.place,
                target=target.place,
                source_type=source.type,
                target_type=target.type,
                dims=tuple(dims) or (Dim(1, 1, 1, 1),),
                scale=scale,
                conjugate=conjugate,
                edge=edge_at,
                middle=middle,
            )
        )


def _embed(axes: tuple[int, ...], view: BufferView) -> tuple[int, ...]:
    """Return the distances of rows in rows of the next axis, as cuFFT expects strides."""
    strides = [view.strides[axis] for axis in axes]
    inner = tuple(outer // stride for outer, stride in itertools.pairwise(strides))
    return (view.shape[axes[0]], *inner)


def _merge(dims: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Batch dimensions as ``(size, source stride, target stride)``, joined where they lie so."""
    merged: list[tuple[int, int, int]] = []
    for size, source, target in dims:
        if size == 1:
            continue
        if merged and merged[-1][1:] == (source * size, target * size):
            merged[-1] = (merged[-1][0] * size, source, target)
        else:
            merged.append((size, source, target))
    return merged
