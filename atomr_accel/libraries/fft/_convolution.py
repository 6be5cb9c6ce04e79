"""``device.fft``'s convolutions, and the chirp z-transform, which is one."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ..._dtypes import DTYPES
from ...arrays.expressions import cast, index
from ...arrays.expressions.expression import broadcast_constant, ufunc, where
from ...ops import D, Request, op, op_family
from ...wire.options import whole
from ..array.steps import target_of
from ._arguments import axis_of, several_of, size_of
from ._steps import FftPart, FftSteps, complex_of, computed_in, counted

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...arrays.expressions import Operand

_MODES: Final = ("full", "same", "valid")
_FACTORS: Final = (2, 3, 5, 7)


class FftConvolutions(FftPart[D]):
    """Convolutions, and the chirp z-transform."""

    @op_family
    def fftconvolve(
        self,
        _name: str,
        in1: GpuRef,
        in2: GpuRef,
        mode: str = "full",
        axes: int | Sequence[int] | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Convolve two arrays by one transform of each; as ``scipy.signal.fftconvolve``.

        Vendor function: ``cufftXtExec``, real to complex and back, or complex to complex if one of
        the arrays is complex.

        Args:
            in1: any shape.
            in2: as many dimensions. Axes that are not convolved broadcast.
            mode: ``"full"`` for the whole result, or ``"same"`` for its middle, of ``in1``'s size
                along the axes. ``"valid"`` keeps the part that does not depend on zeros around the
                arrays. One array must then be at least as large as the other along every axis,
                except axes of a single element.
            axes: which axes; by default all.
            out: where to put the result; it shares no memory with the others.

        Returns:
            float32 or float64, or complex64 or complex128 if one of the arrays is complex. If an
            array has no elements, the result has shape (0,) in every mode.
        """

        def build(steps: FftSteps) -> GpuRef:
            pair = _pair(steps, _name, in1, in2, mode, axes)
            return _convolved(steps, _name, pair, out, blocks=_name == "oaconvolve")

        return self._several(_name, build)

    oaconvolve: Final = fftconvolve.like(
        """Convolve two arrays by transforms of parts; as ``scipy.signal.oaconvolve``.

        The longer array is cut into parts along each axis, and the overlaps of their convolutions
        are added. That takes less time and memory than ``fftconvolve`` if one array is much longer.
        Arguments and result are those of ``fftconvolve``.

        Vendor function: ``cufftXtExec``, many transforms of one size.
        """
    )

    @op
    def czt(
        self,
        x: GpuRef,
        m: int | None = None,
        w: complex | None = None,
        a: complex = 1 + 0j,
        axis: int = -1,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The spectrum at points of a spiral in the complex plane; as ``scipy.signal.czt``.

        The points are ``a * w ** -k``, k from 0 to ``m - 1``. It uses Bluestein's algorithm.

        Vendor function: ``cufftXtExec``, complex to complex, three times.

        Args:
            x: any shape but 0-d.
            m: how many points; by default as many as ``x`` has along the axis.
            w: the ratio of a point to the next one; by default the points go once around the unit
                circle. The default is exact. Otherwise squares of indices are multiplied with its
                angle, which loses some 40 of its bits at the far end of 2**20 points.
            a: the first point, not zero.
            axis: which axis.
            out: where to put the result; it shares no memory with ``x``.

        Returns:
            Complex, of ``x``'s shape with ``m`` in place of the axis.
        """

        def build(steps: FftSteps) -> GpuRef:
            given = steps.ref(x)
            along = axis_of(whole(axis, "axis"), given.ndim)
            n = given.shape[along]
            points = n if m is None else size_of(m, "m")
            if points < 1 or n < 1:
                raise ValueError(f"Invalid number of CZT data points ({min(n, points)}) specified.")
            first = _number(a, "a")
            ratio = None if w is None else _number(w, "w")
            dtype = complex_of(computed_in("czt", given.dtype))
            shape = (*given.shape[:along], points, *given.shape[along + 1 :])
            target = target_of(steps, out, shape, dtype, [("x", given)], op="czt")
            if target.size:
                _spiral(steps, given.moveaxis(along, -1), target.moveaxis(along, -1), ratio, first)
            return target

        return self._several("czt", build)

    def next_fast_len(self, target: int) -> int:
        """The next size that is transformed quickly: a product of 2, 3, 5 and 7.

        Both libraries have kernels for such sizes. It is not awaited; batches have it, too.

        Args:
            target: the least size, at least 1.
        """
        return fast_size(whole(target, "target", 1))

    def prev_fast_len(self, target: int) -> int:
        """The last size up to ``target`` that is transformed quickly; as ``next_fast_len``."""
        most = whole(target, "target", 1)
        found = [1]
        for factor in _FACTORS[1:]:
            found = [
                each * factor**power
                for each in found
                for power in range(int(math.log(most // each, factor) + 1e-9) + 1)
            ]
        return max(odd << ((most // odd).bit_length() - 1) for odd in found if odd <= most)


def fast_size(least: int) -> int:
    """The least product of small primes that is not less."""
    best = 1 << (least - 1).bit_length()
    found = [1]
    for factor in _FACTORS[1:]:
        found = [
            each * factor**power
            for each in found
            for power in range(int(math.log(max(1.0, best / each), factor)) + 1)
        ]
    for odd in found:
        best = min(best, odd << max(0, (-(-least // odd) - 1).bit_length()))
    return best


# --- convolutions ----------------------------------------------------------------------------


class _ConvolutionPair(NamedTuple):
    """Two arrays to be convolved.

    Attributes:
        first, second: the arrays, of one dtype.
        axes: the axes to convolve; along these neither array has a single element.
        start, shape: the first index of the wanted part in the whole result, and its shape.
    """

    first: GpuRef
    second: GpuRef
    axes: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]


def _pair(
    steps: FftSteps,
    name: str,
    in1: GpuRef,
    in2: GpuRef,
    mode: str,
    axes: int | Sequence[int] | None,
) -> _ConvolutionPair:
    """Check two arrays and the part of their convolution to compute."""
    first, second = steps.ref(in1, "in1"), steps.ref(in2, "in2")
    if mode not in _MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, not {mode!r}")
    if first.ndim != second.ndim:
        raise ValueError(
            "in1 and in2 must have the same number of dimensions, not shapes "
            f"{first.shape} and {second.shape}"
        )
    if axes is None:
        along = tuple(range(first.ndim))
    else:
        named = several_of(axes if isinstance(axes, Iterable) else (axes,), "axes")
        along = tuple(sorted(axis_of(axis, first.ndim) for axis in named))
        if len(set(along)) != len(along):
            raise ValueError(f"axes must be unique, not {named}")
    one, two = first.shape, second.shape
    for axis in range(first.ndim):
        if axis not in along and one[axis] != two[axis] and 1 not in (one[axis], two[axis]):
            raise ValueError(
                f"incompatible shapes for in1 and in2: {one} and {two} do not broadcast along "
                f"axis {axis}, which is not convolved"
            )
    full = tuple(
        (a + b - 1 if a and b else 0) if axis in along else (b if a == 1 else a)
        for axis, (a, b) in enumerate(zip(one, two, strict=True))
    )
    empty = 0 in (*one, *two)
    start, shape = [0] * first.ndim, [0] if empty else list(full)
    convolved = tuple(axis for axis in along if 1 not in (one[axis], two[axis]))
    if mode == "valid":
        longer = [one[axis] >= two[axis] for axis in convolved]
        if not all(longer) and any(one[axis] > two[axis] for axis in convolved):
            raise ValueError(
                "in1 or in2 must be at least as large as the other in every "
                f"dimension for mode 'valid', not of shapes {one} and {two}"
            )
    for axis in along if not empty else ():
        if mode == "same":
            shape[axis] = one[axis]
        elif mode == "valid" and axis in convolved:
            shape[axis] = abs(one[axis] - two[axis]) + 1
        start[axis] = (full[axis] - shape[axis]) // 2
    common = np.result_type(computed_in(name, first.dtype), computed_in(name, second.dtype))
    dtype = DTYPES[common.name]
    return _ConvolutionPair(
        steps.cast(first, dtype),
        steps.cast(second, dtype),
        convolved,
        tuple(start),
        tuple(shape),
    )


def _convolved(
    steps: FftSteps, name: str, pair: _ConvolutionPair, out: GpuRef | None, *, blocks: bool
) -> GpuRef:
    first, second = pair.first, pair.second
    reads = [("in1", first), ("in2", second)]
    target = target_of(steps, out, pair.shape, first.dtype, reads, op=name)
    if not target.size:
        return target
    cuts = {axis: _cut(first.shape[axis], second.shape[axis], blocks=blocks) for axis in pair.axes}
    products = _products(steps, first, second, cuts) if cuts else steps.evaluate(first * second)
    for at, (axis, (step, size)) in reversed(list(enumerate(cuts.items()))):
        products = _joined(steps, products, axis + at, step, size)
    wanted = tuple(
        slice(begin, begin + extent) for begin, extent in zip(pair.start, pair.shape, strict=True)
    )
    steps.assign((products[wanted], target))
    return target


def _cut(one: int, two: int, *, blocks: bool) -> tuple[int, int]:
    """Return the distance between parts of the longer array, and the size of their transforms."""
    longer, shorter = max(one, two), min(one, two)
    whole_ = fast_size(longer + shorter - 1)
    if not blocks:
        return longer, whole_
    overlap = shorter - 1

    def cost(size: int) -> float:
        return -(-longer // (size - overlap)) * size * math.log2(size)

    least = (2 * overlap).bit_length() + 1
    sizes = [1 << power for power in range(least, whole_.bit_length())]
    best = min(sizes, key=cost, default=whole_)
    if best >= whole_ or cost(best) >= whole_ * math.log2(whole_):
        return longer, whole_
    return best - overlap, best


def _products(
    steps: FftSteps, first: GpuRef, second: GpuRef, cuts: dict[int, tuple[int, int]]
) -> GpuRef:
    """Convolutions of parts: an axis that is cut is two, of parts and of elements of each."""
    axes = tuple(axis + at + 1 for at, axis in enumerate(cuts))
    sizes = tuple(size for _, size in cuts.values())
    complex_ = first.dtype.kind == "c"
    forward = steps.fft.fftn if complex_ else steps.fft.rfftn
    spectra = [
        steps.do(forward(_parts(steps, each, cuts), sizes, axes)) for each in (first, second)
    ]
    product = steps.evaluate(spectra[0] * spectra[1] * (1 / math.prod(sizes)))
    if not complex_:
        return steps.real("convolve", product, sizes, axes)
    return steps.do(steps.fft.ifftn(product, sizes, axes, "forward"))


def _parts(steps: FftSteps, x: GpuRef, cuts: dict[int, tuple[int, int]]) -> GpuRef:
    whole_, parted = list(x.shape), []
    for axis, extent in enumerate(x.shape):
        if axis not in cuts:
            parted.append(extent)
            continue
        step, _ = cuts[axis]
        count = -(-extent // step)
        if count > 1:
            whole_[axis] = count * step
        parted += [count, step if count > 1 else extent]
    return steps.contiguous(steps.resized(x, tuple(whole_))).reshape(*parted)


def _joined(steps: FftSteps, parts: GpuRef, axis: int, step: int, size: int) -> GpuRef:
    """Add up what overlaps along an axis; the two that it was are one then."""
    lead = (slice(None),) * axis
    count = parts.shape[axis]
    shape = (*parts.shape[:axis], *parts.shape[axis + 1 :])
    if count == 1:
        return parts.reshape(*shape)
    made = steps.output((*shape[:axis], count + 1, step, *shape[axis + 1 :]), parts.dtype)
    last = made[(*lead, slice(count, None))]
    steps.evaluate(broadcast_constant(last.shape, made.dtype), last)
    steps.assign((parts[(*lead, slice(None), slice(step))], made[(*lead, slice(count))]))
    seam = made[(*lead, slice(1, None), slice(size - step))]
    steps.evaluate(seam + parts[(*lead, slice(None), slice(step, None))], seam)
    return made.reshape(*shape[:axis], (count + 1) * step, *shape[axis + 1 :])


# --- the chirp z-transform ---------------------------------------------------------------------


def _spiral(steps: FftSteps, x: GpuRef, y: GpuRef, ratio: complex | None, first: complex) -> None:
    """The spectrum along the last axis: a convolution, since 2nk = n² + k² - (n - k)²."""
    n, m, dtype = x.shape[-1], y.shape[-1], complex_of(computed_in("czt", x.dtype))
    size = fast_size(n + m - 1)
    begun = _chirp(index((n,), 0), m, ratio)
    if first != 1:
        begun = begun * ufunc("exp", counted(n) * -cmath.log(first))
    data = steps.evaluate(x * cast(begun, dtype))
    k = index((size,), 0)
    backwards = k > size - n
    distance = where(backwards, size - k, k)
    wave = where((k < m) | backwards, 1 / _chirp(distance, m, ratio), 0.0)
    filter_ = steps.do(steps.fft.fft(steps.evaluate(cast(wave, dtype))))
    product = steps.evaluate(steps.do(steps.fft.fft(data, size)) * filter_)
    spectrum = steps.do(steps.fft.ifft(product, norm="forward"))
    ended = cast(_chirp(index((m,), 0), m, ratio) * (1 / size), dtype)
    steps.evaluate(spectrum[..., :m] * ended, y)


def _chirp(k: Operand, m: int, ratio: complex | None) -> Operand:
    """Return ``w ** (k * k / 2)``, complex128; without a ratio, w goes around the unit circle."""
    if ratio is None:
        # Whole turns are taken away while the numbers are whole.
        half_turns = cast((k * k) % (2 * m), DTYPES["float64"])
        return ufunc("exp", half_turns * (-1j * math.pi / m))
    square = cast(k * k, DTYPES["float64"])
    return ufunc("exp", square * (cmath.log(ratio) / 2))


def _number(value: complex, name: str) -> complex:
    """A number that is not zero."""
    if not isinstance(value, int | float | complex | np.number):
        raise TypeError(f"{name} must be a number, not {value!r}")
    number = complex(value)
    if not number or not cmath.isfinite(number):
        raise ValueError(f"{name} must be finite and nonzero, not {number}")
    return number
