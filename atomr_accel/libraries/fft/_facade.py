"""``device.fft``: Fourier transforms of buffers, as ``numpy.fft``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, final

from ..._dtypes import DTYPES
from ..._errors import Unsupported
from .._arguments import overlap, require_shape, same_place, usable, writable
from .._op import D, Facade
from .._perform import Prepared, Room, perform
from ..wire._options import flag, real, whole
from ..wire._recent import Recent
from ._arguments import (
    FAMILIES,
    Call,
    axis_of,
    norm_of,
    one_axis,
    resolve,
    several_axes,
    several_of,
    size_of,
    stages,
)
from ._cache import LANE, FftStatistics, PlanCache
from .wire._messages import Frequencies, Roll, Transform
from .wire._plan import HALF, MOST_DIMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...memory import Block, Epoch, GpuRef
    from .._library import Submitter

_MOST_CALLS: Final = 1024
_FLOAT64: Final = DTYPES["float64"]
_LAST_TWO: Final = (-2, -1)


class _Rebuilt(Exception):
    """The plan went with the host that had it."""


@final
class Fft(Facade[D]):
    """Fourier transforms: cuFFT on CUDA, ``numpy.fft`` on the CPU.

    Names, arguments, shapes and results are those of ``numpy.fft``: any axes of any
    array, cropped or padded with zeros to ``n`` or ``s``, and scaled as ``norm`` says
    (``"backward"``, the default, ``"ortho"`` or ``"forward"``).

    Single precision stays single: float32 and complex64 give complex64. Double precision,
    integers and bool are computed in double, and float16 and bfloat16 in single. With
    ``half=True`` they are computed as they are (cuFFT's half precision): sizes must then
    be powers of two, results are scaled before they are summed, and complex numbers, for
    which NumPy has no dtype, are pairs in a last axis of length 2, which ``axis``, ``axes``
    and the shapes below do not count.

    ``out`` takes the result: right shape and dtype, not sealed. It may be ``a`` itself
    for complex transforms that keep the shape and dtype; then they work in place.
    Otherwise it must not share memory with ``a``, which is never changed.

    All methods raise:
        ValueError: sizes below one, an axis that is not there (``numpy.exceptions.AxisError``),
            an unknown ``norm``, ``out`` of another shape or in the memory of ``a``, a ref of
            another device.
        TypeError: a dtype that is not listed above, ``out`` of another dtype, an argument
            that is no GpuRef, sizes that are no integers.
        Unsupported: ``half=True`` with other sizes than powers of two.
        GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
        OutOfMemory: no room for the result or the work area.
        LibraryError: cuFFT refuses (``cufftXtMakePlanMany``, ``cufftXtExec``).

    Plans are kept, the last used ones up to ``plan_limit``. They share work areas, which lie
    in the device's memory and grow as needed; ``clear`` gives all of it back. Transforms that
    are small enough to leave some of the device idle run side by side, up to four, with an
    area each. Batches and recordings have work areas of their own.
    """

    def __init__(self, device: Submitter) -> None:
        self._device = device
        self._calls: Recent[tuple[Any, ...], Call] = Recent(_MOST_CALLS)
        self._plans = PlanCache(device)

    # --- one axis ------------------------------------------------------------------------

    async def fft(
        self,
        a: GpuRef,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """Transform along one axis; as ``numpy.fft.fft``.

        Vendor function: ``cufftXtExec``, complex to complex, forward.

        Args:
            a: any shape but 0-d, real or complex.
            n: points along the axis; by default all there are.
            axis: which axis.
            norm: how to scale.
            out: where to put the result, or ``a`` itself.
            half: compute float16 or bfloat16 as such.

        Returns:
            Complex, of ``a``'s shape with ``n`` in place of the axis.
        """
        return await self._one("fft", a, n, axis, norm, out, half=half)

    async def ifft(
        self,
        a: GpuRef,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """The inverse of ``fft``; as ``numpy.fft.ifft``. Arguments and result as there.

        Vendor function: ``cufftXtExec``, complex to complex, inverse.
        """
        return await self._one("ifft", a, n, axis, norm, out, half=half)

    async def rfft(
        self,
        a: GpuRef,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """Transform a real array along one axis; as ``numpy.fft.rfft``.

        Vendor function: ``cufftXtExec``, real to complex.

        Args:
            a: real, any shape but 0-d.
            n: points along the axis; by default all there are.
            axis: which axis.
            norm: how to scale.
            out: where to put the result.
            half: compute float16 or bfloat16 as such.

        Returns:
            Complex, with ``n // 2 + 1`` elements along the axis: the frequencies that are
            not negative.
        """
        return await self._one("rfft", a, n, axis, norm, out, half=half)

    async def irfft(
        self,
        a: GpuRef,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """The inverse of ``rfft``; as ``numpy.fft.irfft``.

        Imaginary parts where a real array's spectrum has none are ignored.

        Vendor function: ``cufftXtExec``, complex to real, on a copy, which it overwrites.

        Args:
            a: real or complex, any shape but 0-d.
            n: points of the result; by default ``2 * (m - 1)`` for m elements along the
                axis. ``n // 2 + 1`` of them are used.
            axis: which axis.
            norm: how to scale.
            out: where to put the result.
            half: compute float16 or bfloat16 as such.

        Returns:
            Real, with ``n`` elements along the axis.
        """
        return await self._one("irfft", a, n, axis, norm, out, half=half)

    async def hfft(
        self,
        a: GpuRef,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """The real spectrum of a signal with Hermitian symmetry; as ``numpy.fft.hfft``.

        Vendor function: ``cufftXtExec``, complex to real. Arguments and result as ``irfft``.
        """
        return await self._one("hfft", a, n, axis, norm, out, half=half)

    async def ihfft(
        self,
        a: GpuRef,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """The inverse of ``hfft``; as ``numpy.fft.ihfft``.

        Vendor function: ``cufftXtExec``, real to complex. Arguments and result as ``rfft``.
        """
        return await self._one("ihfft", a, n, axis, norm, out, half=half)

    # --- several axes --------------------------------------------------------------------

    async def fft2(
        self,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = _LAST_TWO,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """Transform along two axes; as ``numpy.fft.fft2``. ``fftn`` of those axes."""
        return await self._several("fft2", "fft", a, s, axes, norm, out, half=half)

    async def ifft2(
        self,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = _LAST_TWO,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """The inverse of ``fft2``; as ``numpy.fft.ifft2``. ``ifftn`` of those axes."""
        return await self._several("ifft2", "ifft", a, s, axes, norm, out, half=half)

    async def rfft2(
        self,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = _LAST_TWO,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """Transform along two axes of a real array; ``rfftn`` of those, as ``numpy.fft.rfft2``."""
        return await self._several("rfft2", "rfft", a, s, axes, norm, out, half=half)

    async def irfft2(
        self,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = _LAST_TWO,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """The inverse of ``rfft2``; as ``numpy.fft.irfft2``. ``irfftn`` of those axes."""
        return await self._several("irfft2", "irfft", a, s, axes, norm, out, half=half)

    async def fftn(
        self,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """Transform along several axes; as ``numpy.fft.fftn``.

        Vendor function: ``cufftXtExec``, complex to complex, forward; up to three axes at
        once.

        Args:
            a: any shape but 0-d, real or complex.
            s: points along each axis, -1 for all there are; by default all of them.
            axes: which axes, as often as named; by default the last ``len(s)``, or all.
            norm: how to scale.
            out: where to put the result, or ``a`` itself.
            half: compute float16 or bfloat16 as such.

        Returns:
            Complex, of ``a``'s shape with ``s`` in place of the axes.
        """
        return await self._several("fftn", "fft", a, s, axes, norm, out, half=half)

    async def ifftn(
        self,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """The inverse of ``fftn``; as ``numpy.fft.ifftn``. Arguments and result as there.

        Vendor function: ``cufftXtExec``, complex to complex, inverse.
        """
        return await self._several("ifftn", "ifft", a, s, axes, norm, out, half=half)

    async def rfftn(
        self,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """Transform a real array along several axes; as ``numpy.fft.rfftn``.

        Vendor function: ``cufftXtExec``, real to complex, and complex to complex for what
        one plan does not cover.

        Args:
            a: real, any shape but 0-d.
            s: points along each axis, -1 for all there are; by default all of them.
            axes: which axes; only half of the last one's frequencies are kept.
            norm: how to scale.
            out: where to put the result.
            half: compute float16 or bfloat16 as such.

        Returns:
            Complex, with ``s[-1] // 2 + 1`` elements along the last of the axes.
        """
        return await self._several("rfftn", "rfft", a, s, axes, norm, out, half=half)

    async def irfftn(
        self,
        a: GpuRef,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str | None = None,
        out: GpuRef | None = None,
        *,
        half: bool = False,
    ) -> GpuRef:
        """The inverse of ``rfftn``; as ``numpy.fft.irfftn``.

        Vendor function: ``cufftXtExec``, complex to real, on a copy, which it overwrites.

        Args:
            a: real or complex, any shape but 0-d.
            s: points of the result along each axis; by default all there are, and
                ``2 * (m - 1)`` along the last of the axes, which has m elements.
            axes: which axes, the real one last.
            norm: how to scale.
            out: where to put the result.
            half: compute float16 or bfloat16 as such.

        Returns:
            Real, of ``a``'s shape with ``s`` in place of the axes.
        """
        return await self._several("irfftn", "irfft", a, s, axes, norm, out, half=half)

    # --- helpers -------------------------------------------------------------------------

    async def fftfreq(self, n: int, d: float = 1.0) -> GpuRef:
        """Sample frequencies of a transform; as ``numpy.fft.fftfreq``.

        Computed by a kernel of this package, on the device.

        Args:
            n: points, at least one.
            d: sample spacing, not zero.

        Returns:
            float64, shape (n,), in cycles per unit of ``d``.
        """
        return await self._frequencies("fftfreq", n, d, half=False)

    async def rfftfreq(self, n: int, d: float = 1.0) -> GpuRef:
        """Sample frequencies of ``rfft``: shape (n // 2 + 1,). Otherwise as ``fftfreq``."""
        return await self._frequencies("rfftfreq", n, d, half=True)

    async def fftshift(self, x: GpuRef, axes: int | Sequence[int] | None = None) -> GpuRef:
        """Move the zero frequency to the middle; as ``numpy.fft.fftshift``.

        Computed by a kernel of this package, on the device.

        Args:
            x: any shape and dtype.
            axes: which axes; by default all.

        Returns:
            A new buffer of the same shape and dtype.
        """
        return await self._shift("fftshift", x, axes, inverse=False)

    async def ifftshift(self, x: GpuRef, axes: int | Sequence[int] | None = None) -> GpuRef:
        """The inverse of ``fftshift``, which differs from it where sizes are odd."""
        return await self._shift("ifftshift", x, axes, inverse=True)

    # --- the plan cache ------------------------------------------------------------------

    @property
    def plan_limit(self) -> int:
        """How many plans are kept; set it to change that, to at least one."""
        return self._plans.limit

    @plan_limit.setter
    def plan_limit(self, limit: int) -> None:
        self._plans.limit = whole(limit, "plan_limit", 1)

    def clear(self) -> None:
        """Drop all plans and give the work area back, after the transforms in flight."""
        self._plans.clear()

    def statistics(self) -> FftStatistics:
        """A snapshot of the plan cache."""
        return self._plans.statistics()

    # --- running -------------------------------------------------------------------------

    async def _one(
        self,
        name: str,
        a: GpuRef,
        n: int | None,
        axis: int,
        norm: str | None,
        out: GpuRef | None,
        *,
        half: bool,
    ) -> GpuRef:
        usable(a, self._device.memory, "a")
        if out is not None:
            usable(out, self._device.memory, "out")
        aligned = _aligned(a), out is None or _aligned(out)
        n, axis = None if n is None else size_of(n, "n"), whole(axis, "axis")
        key = (name, a.shape, a.dtype, n, axis, norm_of(norm), flag(half, "half"), aligned)
        call = self._calls.get(key)
        if call is None:
            shape = _data_shape(name, name, a, half=half)
            axes, sizes = one_axis(name, shape, n, axis)
            call = resolve(
                name, name, shape, a.dtype, axes, sizes, norm, half=half, aligned=aligned
            )
            self._calls.keep(key, call)
        return await self._run(name, call, a, out)

    async def _several(
        self,
        name: str,
        family: str,
        a: GpuRef,
        s: Sequence[int] | None,
        axes: Sequence[int] | None,
        norm: str | None,
        out: GpuRef | None,
        *,
        half: bool,
    ) -> GpuRef:
        usable(a, self._device.memory, "a")
        s = None if s is None else several_of(s, "s")
        axes = None if axes is None else several_of(axes, "axes")
        if out is not None:
            usable(out, self._device.memory, "out")
        aligned = _aligned(a), out is None or _aligned(out)
        key = (name, a.shape, a.dtype, s, axes, norm_of(norm), flag(half, "half"), aligned)
        call = self._calls.get(key)
        if call is None:
            shape = _data_shape(name, family, a, half=half)
            normal, sizes = several_axes(family, shape, s, axes)
            todo = stages(family, normal, sizes)
            for stage, some, points in todo[:-1]:
                shape = _data_shape(name, stage, a, half=half)
                begins = _aligned(a), True
                call = resolve(
                    name, stage, shape, a.dtype, some, points, norm, half=half, aligned=begins
                )
                a = await self._run(name, call, a, None)
            stage, some, points = todo[-1]
            shape = _data_shape(name, stage, a, half=half)
            begins = _aligned(a), aligned[1]
            call = resolve(
                name, stage, shape, a.dtype, some, points, norm, half=half, aligned=begins
            )
            if len(todo) == 1:
                self._calls.keep(key, call)
        return await self._run(name, call, a, out)

    async def _run(self, name: str, call: Call, a: GpuRef, out: GpuRef | None) -> GpuRef:
        device = self._device
        while True:
            found = self._plans.find(device, call.encoded)
            if found is None:
                self._check(name, call, a, out)  # before anything is sent
                found = await self._plans.make(device, call.encoded)
            number, work = found
            epoch = device.memory.epoch

            def prepare(
                room: Room, number: int = number, work: int = work, epoch: Epoch = epoch
            ) -> Prepared:
                if epoch is not device.memory.epoch:
                    raise _Rebuilt
                return self._prepare(room, name, call, number, work, a, out)

            try:
                result: GpuRef = await perform(device, LANE, f"fft.{name}", prepare)
            except _Rebuilt:
                continue
            finally:
                self._plans.let_go(number, call.encoded)
            return result

    def _prepare(
        self,
        room: Room,
        name: str,
        call: Call,
        number: int,
        work: int,
        a: GpuRef,
        out: GpuRef | None,
    ) -> Prepared:
        self._check(name, call, a, out)
        if out is None:
            out = room.empty(call.shape, call.dtype)
        writes: tuple[Block, ...] = (out._block,)
        workspace = 0
        if call.scratch + work:
            shared = self._plans.workspaces.take(self._device, room, call.scratch + work)
            writes = (out._block, shared)
            workspace = shared.address
        message = Transform(
            number, call.encoded, a._block.address, out._block.address, workspace, work
        )
        return Prepared(message, (a._block,), writes, out)

    def _check(self, name: str, call: Call, a: GpuRef, out: GpuRef | None) -> None:
        memory = self._device.memory
        usable(a, memory, "a")
        if out is None:
            return
        writable(out, memory, "out")
        require_shape(out, call.shape, "out")
        if out.dtype is not call.dtype:
            raise TypeError(
                f"out has dtype {out.dtype.name}, but the result of {name} has {call.dtype.name}"
            )
        if not overlap(a, out):
            return
        in_place = call.spec.kind == "c2c" and a.shape == out.shape and a.dtype is out.dtype
        if not (in_place and same_place(a, out)):
            raise ValueError(
                f"out shares memory with a, but {name} turns {a.dtype.name}{list(a.shape)} into "
                f"{out.dtype.name}{list(out.shape)}, which does not work in place"
            )

    async def _frequencies(self, name: str, n: int, d: float, *, half: bool) -> GpuRef:
        n = size_of(n, "n")
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        d = real(d, "d", finite=False)
        if not d:
            raise ValueError("d must not be zero")
        count = n // 2 + 1 if half else n

        def prepare(room: Room) -> Prepared:
            out = room.empty((count,), _FLOAT64)
            message = Frequencies(out._block.address, n, 1.0 / (n * d), half)
            return Prepared(message, (), (out._block,), out)

        result: GpuRef = await perform(self._device, LANE, f"fft.{name}", prepare)
        return result

    async def _shift(
        self, name: str, x: GpuRef, axes: int | Sequence[int] | None, *, inverse: bool
    ) -> GpuRef:
        usable(x, self._device.memory, "x")
        if axes is None:
            axes = range(x.ndim)
        chosen = several_of(axes, "axes") if isinstance(axes, Iterable) else (whole(axes, "axes"),)
        shifts = [0] * x.ndim
        for axis in (axis_of(each, x.ndim) for each in chosen):
            half = x.shape[axis] // 2
            shifts[axis] += half if inverse else -half
        shape, turns = _merged(x.shape, shifts)

        def prepare(room: Room) -> Prepared:
            block = usable(x, self._device.memory, "x")
            out = room.empty(x.shape, x.dtype)
            message = Roll(block.address, out._block.address, x.dtype.itemsize, shape, turns)
            return Prepared(message, (block,), (out._block,), out)

        result: GpuRef = await perform(self._device, LANE, f"fft.{name}", prepare)
        return result


def _aligned(ref: GpuRef) -> bool:
    """Whether a buffer begins where a complex number could; a view of real ones may not."""
    offset = ref._block.offset
    if not offset:
        return True
    width = ref.dtype.itemsize if ref.dtype.kind == "c" else 2 * ref.dtype.itemsize
    return not offset % width


def _data_shape(name: str, family: str, a: GpuRef, *, half: bool) -> tuple[int, ...]:
    """The shape of ``a`` without the axis of the pairs that complex half precision has."""
    if not half or FAMILIES[family].kind == "r2c" or a.dtype.name not in HALF:
        return a.shape
    if not a.shape or a.shape[-1] != 2:
        raise ValueError(
            f"{name} with half=True takes complex numbers as pairs in a last axis of length 2, "
            f"but a has shape {a.shape}"
        )
    return a.shape[:-1]


def _merged(shape: tuple[int, ...], shifts: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A rotation with as few dimensions as possible: those that stay are joined.

    Raises:
        Unsupported: there are still more than the kernel takes.
    """
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
