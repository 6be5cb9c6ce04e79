"""Transforms that are one call of the library: those of ``numpy.fft``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..._dtypes import DTYPES
from ..._errors import Unsupported
from ...ops import (
    D,
    Facade,
    Request,
    Submission,
    op_family,
    overlap,
    require_readable,
    require_shape,
    require_writable,
    same_place,
)
from ...wire.options import flag, real, whole
from ._arguments import (
    FAMILIES,
    TransformCall,
    axis_of,
    norm_of,
    one_axis,
    resolve,
    several_axes,
    several_of,
    size_of,
    stages,
)
from ._cache import LANE
from ._callbacks import hook
from .wire._messages import Frequencies, Roll
from .wire._plan import HALF, MOST_DIMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from ...arrays import GpuRef
    from ...memory import MemoryMap
    from ...ops import Preparer
    from ...wire.recent import Recent
    from ._cache import FftPlanCache
    from ._callbacks import FftCallback
    from .wire._messages import Hook

_LAST_TWO: Final = (-2, -1)


class Transforms(Facade[D]):
    """Transforms of ``numpy.fft``, and Hermitian transforms of several axes."""

    _calls: Recent[tuple[Any, ...], tuple[TransformCall, ...]]
    _plans: FftPlanCache

    # --- one axis ------------------------------------------------------------------------

    @op_family
    def fft(
        self,
        _name: str,
        a: GpuRef,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
        load: FftCallback | None = None,
        store: FftCallback | None = None,
    ) -> Request[GpuRef]:
        """Transform along one axis; as ``numpy.fft.fft``.

        Vendor function: ``cufftXtExec``, complex to complex, forward.

        Args:
            a: any shape but 0-d, real or complex.
            n: points along the axis; by default all there are.
            axis: which axis.
            norm: how to scale.
            out: where to put the result, or ``a`` itself.
            half: compute float16 or bfloat16 as such.
            load: a callback for each element that cuFFT reads, see ``callback``.
            store: a callback for each element that it writes.

        Returns:
            Complex, of ``a``'s shape with ``n`` in place of the axis.
        """
        return self._transform(_name, locals())

    ifft: Final = fft.like(
        """The inverse of ``fft``; as ``numpy.fft.ifft``.

        Arguments and result are those of ``fft``.

        Vendor function: ``cufftXtExec``, complex to complex, inverse.
        """
    )

    rfft: Final = fft.like(
        """Transform a real array along one axis; as ``numpy.fft.rfft``.

        Vendor function: ``cufftXtExec``, real to complex.

        Args:
            a: real, any shape but 0-d.
            n: points along the axis; by default all there are. All that follow are as for ``fft``.

        Returns:
            Complex, with ``n // 2 + 1`` elements along the axis: the frequencies that are not
            negative.
        """
    )

    irfft: Final = fft.like(
        """The inverse of ``rfft``; as ``numpy.fft.irfft``.

        Imaginary parts that are 0 in the spectrum of a real array are ignored.

        Vendor function: ``cufftXtExec``, complex to real, on a copy, which it overwrites.

        Args:
            a: real or complex, any shape but 0-d.
            n: points of the result; by default ``2 * (m - 1)`` for m elements along the axis. ``n
                // 2 + 1`` of them are used.
            axis: which axis. All that follow are as for ``fft``.

        Returns:
            Real, with ``n`` elements along the axis.
        """
    )

    @op_family
    def hfft(
        self,
        _name: str,
        a: GpuRef,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> Request[GpuRef]:
        """The real spectrum of a signal with Hermitian symmetry; as ``numpy.fft.hfft``.

        Vendor function: ``cufftXtExec``, complex to real. Arguments and result as ``irfft``.
        """
        return self._transform(_name, locals())

    ihfft: Final = hfft.like(
        """The inverse of ``hfft``; as ``numpy.fft.ihfft``.

        Vendor function: ``cufftXtExec``, real to complex. Arguments and result as ``rfft``.
        """
    )

    # --- several axes --------------------------------------------------------------------

    @op_family
    def fft2(
        self,
        _name: str,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = _LAST_TWO,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
        load: FftCallback | None = None,
        store: FftCallback | None = None,
    ) -> Request[GpuRef]:
        """Transform along two axes; as ``numpy.fft.fft2``. ``fftn`` of those axes."""
        return self._transform(_name, locals())

    ifft2: Final = fft2.like(
        """The inverse of ``fft2``; as ``numpy.fft.ifft2``. ``ifftn`` of those axes."""
    )

    rfft2: Final = fft2.like(
        """Transform along two axes of a real array; ``rfftn`` of those, as ``numpy.fft.rfft2``."""
    )

    irfft2: Final = fft2.like(
        """The inverse of ``rfft2``; as ``numpy.fft.irfft2``. ``irfftn`` of those axes."""
    )

    @op_family
    def fftn(
        self,
        _name: str,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
        load: FftCallback | None = None,
        store: FftCallback | None = None,
    ) -> Request[GpuRef]:
        """Transform along several axes; as ``numpy.fft.fftn``.

        Vendor function: ``cufftXtExec``, complex to complex, forward; up to three axes at once.

        Args:
            a: any shape but 0-d, real or complex.
            s: points along each axis, -1 for all there are; by default all of them.
            axes: which axes, as often as named; by default the last ``len(s)``, or all.
            norm: how to scale.
            out: where to put the result, or ``a`` itself.
            half: compute float16 or bfloat16 as such.
            load: a callback for each element that cuFFT reads, see ``callback``.
            store: a callback for each element that it writes.

        Returns:
            Complex, of ``a``'s shape with ``s`` in place of the axes.
        """
        return self._transform(_name, locals())

    ifftn: Final = fftn.like(
        """The inverse of ``fftn``; as ``numpy.fft.ifftn``.

        Arguments and result are those of ``fftn``.

        Vendor function: ``cufftXtExec``, complex to complex, inverse.
        """
    )

    rfftn: Final = fftn.like(
        """Transform a real array along several axes; as ``numpy.fft.rfftn``.

        Vendor function: ``cufftXtExec``, real to complex, and complex to complex for axes that one
        plan does not cover.

        Args:
            a: real, any shape but 0-d.
            s: points along each axis, -1 for all there are; by default all of them.
            axes: which axes; only half of the last one's frequencies are kept. All that follow are
                as for ``fftn``.

        Returns:
            Complex, with ``s[-1] // 2 + 1`` elements along the last of the axes.
        """
    )

    irfftn: Final = fftn.like(
        """The inverse of ``rfftn``; as ``numpy.fft.irfftn``.

        Vendor function: ``cufftXtExec``, complex to real, on a copy, which it overwrites.

        Args:
            a: real or complex, any shape but 0-d.
            s: points of the result along each axis; by default all there are, and ``2 * (m - 1)``
                along the last of the axes, which has m elements.
            axes: which axes, the real one last. All that follow are as for ``fftn``.

        Returns:
            Real, of ``a``'s shape with ``s`` in place of the axes.
        """
    )

    @op_family
    def hfft2(
        self,
        _name: str,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = _LAST_TWO,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> Request[GpuRef]:
        """The real spectrum of a signal with Hermitian symmetry in two axes: their ``hfftn``."""
        return self._transform(_name, locals())

    ihfft2: Final = hfft2.like(
        """The inverse of ``hfft2``; as ``scipy.fft.ihfft2``. ``ihfftn`` of those axes."""
    )

    @op_family
    def hfftn(
        self,
        _name: str,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> Request[GpuRef]:
        """The real spectrum of a signal with Hermitian symmetry; as ``scipy.fft.hfftn``.

        Vendor function: ``cufftXtExec``, complex to real. Arguments and result as ``irfftn``,
        of which this is the one that counts as a forward transform, of conjugates.
        """
        return self._transform(_name, locals())

    ihfftn: Final = hfftn.like(
        """The inverse of ``hfftn``; as ``scipy.fft.ihfftn``.

        Vendor function: ``cufftXtExec``, real to complex. Arguments and result as ``rfftn``.
        """
    )

    # --- helpers -------------------------------------------------------------------------

    @op_family
    def fftfreq(self, _name: str, n: int, d: float = 1.0) -> Request[GpuRef]:
        """Sample frequencies of a transform; as ``numpy.fft.fftfreq``.

        Computed by a kernel of this package, on the device.

        Args:
            n: points, at least one.
            d: sample spacing, not zero.

        Returns:
            float64, shape (n,), in cycles per unit of ``d``.
        """
        half = _name == "rfftfreq"

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            points = size_of(n, "n")
            if points < 1:
                raise ValueError(f"n must be at least 1, not {points}")
            spacing = real(d, "d", finite=False)
            if not spacing:
                raise ValueError("d must not be zero")
            out = preparer.output((points // 2 + 1 if half else points,), DTYPES["float64"])
            message = Frequencies(out.block.address, points, 1.0 / (points * spacing), half)
            return Submission(message, (), (out.block,), out)

        return Request(LANE, f"fft.{_name}", prepare)

    rfftfreq: Final = fftfreq.like(
        """Sample frequencies of ``rfft``: shape (n // 2 + 1,). Otherwise as ``fftfreq``."""
    )

    @op_family
    def fftshift(
        self, _name: str, x: GpuRef, axes: int | Sequence[int] | None = None
    ) -> Request[GpuRef]:
        """Move the zero frequency to the middle; as ``numpy.fft.fftshift``.

        Computed by a kernel of this package, on the device.

        Args:
            x: any shape and dtype.
            axes: which axes; by default all.

        Returns:
            A new buffer of the same shape and dtype.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            block = require_readable(x, preparer.memory, "x")
            given = range(x.ndim) if axes is None else axes
            several = isinstance(given, Iterable)
            chosen = several_of(given, "axes") if several else (whole(given, "axes"),)
            shifts = [0] * x.ndim
            for axis in (axis_of(each, x.ndim) for each in chosen):
                half = x.shape[axis] // 2
                shifts[axis] += half if _name == "ifftshift" else -half
            shape, turns = _merged(x.shape, shifts)
            out = preparer.output(x.shape, x.dtype)
            message = Roll(block.address, out.block.address, x.dtype.itemsize, shape, turns)
            return Submission(message, (block,), (out.block,), out)

        return Request(LANE, f"fft.{_name}", prepare)

    ifftshift: Final = fftshift.like(
        """The inverse of ``fftshift``, which differs from it where sizes are odd."""
    )

    # --- requests ------------------------------------------------------------------------

    def _transform(self, name: str, called: Mapping[str, Any]) -> Request[GpuRef]:
        """A transform along one axis, if it has the name of its family, or along several."""
        family = name.rstrip("2n")
        a, norm, out, half = called["a"], called["norm"], called["out"], called["half"]
        load, store = called.get("load"), called.get("store")

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            memory = preparer.memory
            require_readable(a, memory, "a")
            if out is not None:
                require_readable(out, memory, "out")
            points: Any
            along: Any
            if name == family:
                points = None if called["n"] is None else size_of(called["n"], "n")
                along = whole(called["axis"], "axis")
            else:
                sizes, axes = called["s"], called["axes"]
                points = None if sizes is None else several_of(sizes, "s")
                along = None if axes is None else several_of(axes, "axes")
            aligned = _aligned(a), out is None or _aligned(out)
            key = (
                name,
                a.shape,
                a.dtype,
                points,
                along,
                norm_of(norm),
                flag(half, "half"),
                aligned,
                (hook(load, "load", self.home), hook(store, "store", self.home)),
            )
            calls = self._calls.get(key)
            if calls is None:
                calls = self._calls.add(key, _resolve(family, *key))
            if out is not None:
                _require_output(name, calls, a, out, memory)
            source = a
            for call in calls[:-1]:
                step = partial(self._submission, call, source, None)
                given = preparer.perform(Request(LANE, f"fft.{name}", step))
                assert given is not None  # buffers are given in batches, too
                source = given
            return self._submission(calls[-1], source, out, preparer)

        return Request(LANE, f"fft.{name}", prepare)

    def _submission(
        self, call: TransformCall, a: GpuRef, out: GpuRef | None, preparer: Preparer
    ) -> Submission[GpuRef]:
        source = require_readable(a, preparer.memory, "a")
        if out is None:
            out = preparer.output(call.shape, call.dtype)
        return self._plans.transforming(preparer, call.encoded, call.scratch, source, out)


def _resolve(
    family: str,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    points: Any,
    along: Any,
    norm: str,
    half: bool,
    aligned: tuple[bool, bool],
    hooks: tuple[Hook | None, Hook | None],
) -> tuple[TransformCall, ...]:
    """The transforms that a call asks for, one after the other: one, unless an axis repeats."""
    data = _data_shape(name, family, shape, dtype, half=half)
    if name == family:
        todo = [(family, *one_axis(family, data, points, along))]
    else:
        todo = stages(family, *several_axes(family, data, points, along))
    if len(todo) > 1 and hooks != (None, None):
        raise Unsupported(f"{name} along an axis more than once calls no callbacks")
    calls: list[TransformCall] = []
    for number, (stage, axes, sizes) in enumerate(todo, 1):
        # What is made in between begins where whatever could.
        begins = aligned[0] or bool(calls), aligned[1] or number < len(todo)
        data = _data_shape(name, stage, shape, dtype, half=half)
        call = resolve(
            name, stage, data, dtype, axes, sizes, norm, half=half, aligned=begins, hooks=hooks
        )
        calls.append(call)
        shape, dtype = call.shape, call.dtype
    return tuple(calls)


def _require_output(
    name: str, calls: tuple[TransformCall, ...], a: GpuRef, out: GpuRef, memory: MemoryMap
) -> None:
    """Raise where ``out`` cannot take the result."""
    call = calls[-1]
    require_writable(out, memory, "out")
    require_shape(out, call.shape, "out")
    if out.dtype is not call.dtype:
        raise TypeError(f"out must have dtype {call.dtype.name}, not {out.dtype.name}")
    if len(calls) > 1 or not overlap(a, out):
        return
    in_place = call.spec.kind == "c2c" and a.shape == out.shape and a.dtype is out.dtype
    if not (in_place and same_place(a, out)):
        raise ValueError(
            f"out must share no memory with a, because {name} turns "
            f"{a.dtype.name}{list(a.shape)} into {out.dtype.name}{list(out.shape)}; "
            "give it a buffer of its own"
        )


def _aligned(ref: GpuRef) -> bool:
    """Return True if a buffer is aligned for complex numbers; a view of real ones may not be."""
    offset = ref.block.offset
    if not offset:
        return True
    width = ref.dtype.itemsize if ref.dtype.kind == "c" else 2 * ref.dtype.itemsize
    return not offset % width


def _data_shape(
    name: str, family: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, half: bool
) -> tuple[int, ...]:
    """A shape without the axis of the pairs that complex half precision has."""
    if not half or FAMILIES[family].kind == "r2c" or dtype.name not in HALF:
        return shape
    if not shape or shape[-1] != 2:
        raise ValueError(
            "a must hold complex numbers as pairs in a last axis of length 2 for "
            f"{name} with half=True, not shape {shape}"
        )
    return shape[:-1]


def _merged(shape: tuple[int, ...], shifts: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A rotation with as few dimensions as possible: those that stay are joined."""
    sizes = [1]
    turns = [0]
    for size, shift in zip(shape, shifts, strict=True):
        turn = shift % size if size else 0
        if not turn and not turns[-1]:
            sizes[-1] *= size
        else:
            sizes.append(size)
            turns.append(turn)
    if len(sizes) > MOST_DIMS:
        raise Unsupported(
            f"a rotation of {len(sizes)} separate dimensions; the most is {MOST_DIMS}"
        )
    return tuple(sizes), tuple(turns)
