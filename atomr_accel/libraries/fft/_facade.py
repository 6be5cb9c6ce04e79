"""``device.fft``: Fourier transforms of buffers, as ``numpy.fft`` and ``scipy.fft``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ...ops import D
from ...wire.options import whole
from ...wire.recent import Recent
from ._cache import FftPlanCache
from ._callbacks import FftCallback, make_callback
from ._convolution import FftConvolutions
from ._hankel import Hankel
from ._steps import FftFacades
from ._transforms import Transforms
from ._trigonometric import Trigonometric

if TYPE_CHECKING:
    from ...ops import DeviceView, WorkspaceStatistics
    from ..cub.facade import Cub
    from ._callbacks import Twin

_MOST_CALLS: Final = 1024


@final
class Fft(Trigonometric[D], FftConvolutions[D], Hankel[D], Transforms[D]):
    """Fourier transforms, and functions made from them: cuFFT on CUDA, ``numpy.fft`` on the CPU.

    Names, arguments, shapes and results are those of ``numpy.fft`` and ``scipy.fft``. They
    transform any axes of any array, and crop it or pad it with zeros to ``n`` or ``s``. ``norm``
    selects the scale: ``"backward"``, the default, ``"ortho"`` or ``"forward"``. Convolutions and
    the chirp z-transform are those of ``scipy.signal``.

    Single precision stays single: float32 and complex64 give complex64. Double precision, integers
    and bool are computed in double, and float16 and bfloat16 in single. ``half=True`` computes them
    in cuFFT's half precision instead. Sizes must then be powers of two, and inputs are scaled
    before they are summed. NumPy has no dtype for complex numbers of half precision, so they are
    pairs in a last axis of length 2. ``axis``, ``axes`` and the shapes below do not count this
    axis.

    ``out`` takes the result: right shape and dtype, not sealed. It may be ``a`` itself for complex
    transforms that keep the shape and dtype; then they work in place. Otherwise it must not share
    memory with ``a``, which is never changed. All ops have it but ``fftshift``, ``ifftshift``,
    ``fftfreq`` and ``rfftfreq``, which make a new buffer, as in NumPy.

    All methods raise:
        ValueError: sizes below one, an axis that does not exist (``numpy.exceptions.AxisError``),
            an unknown ``norm``, ``out`` of another shape or in the memory of ``a``, a ref of
            another device.
        TypeError: a dtype that is not listed above, ``out`` of another dtype, an argument that is
            not a GpuRef, sizes that are not integers.
        Unsupported: ``half=True`` with other sizes than powers of two.
        GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
        OutOfMemory: no room for the result or the work area.
        LibraryError: cuFFT refuses (``cufftXtMakePlanMany``, ``cufftXtExec``).

    Plans are kept, the last used ones up to ``plan_limit``. They share work areas, which lie in the
    device's memory and grow as needed; ``clear`` frees them all. Up to four transforms that are too
    small to fill the device run at the same time, with an area each. Batches and recordings have
    work areas of their own.

    Convolutions and the chirp z-transform are several steps that are submitted together:
    transforms, between expressions. They take any views, as cosine and sine transforms do.
    """

    templated = True

    def __init__(self, device: DeviceView, cub: Cub[Any]) -> None:
        self.home = device
        self._calls = Recent(_MOST_CALLS, name="calls")
        self._plans = FftPlanCache(device)
        self.caches: tuple[Recent[Any, Any], ...] = (self._plans.table, self._calls)
        self._known = FftFacades(self.as_requests(device), cub.as_requests(device))

    @property
    def plan_limit(self) -> int:
        """The number of plans that are kept at most; it can be set, to at least one."""
        return self._plans.limit

    @plan_limit.setter
    def plan_limit(self, limit: int) -> None:
        self._plans.limit = whole(limit, "plan_limit", 1)

    @staticmethod
    def callback(source: str, name: str, *, cpu: Twin | None = None) -> FftCallback:
        """Make a callback that cuFFT calls for each element it loads, or stores.

        Vendor function: ``cufftXtSetJITCallback`` (cuFFT 11.4). It is compiled with NVRTC and
        linked into the transform's kernels when a plan is made with it, so no pass over memory is
        added. ``fft``, ``ifft``, ``rfft``, ``irfft`` and their variants for two and more axes take
        callbacks if cuFFT runs the whole transform as one plan. That needs float32, float64,
        complex64 or complex128 without conversion, no padding, and up to three axes; all other axes
        must be neighbours. It also needs a norm that does not scale: ``"forward"`` for inverse
        transforms. Complex-to-real transforms load a copy, in which imaginary parts that must be 0
        are 0; they cannot be cropped either.

        Args:
            source: CUDA C++ with one of the functions below. T is ``cufftComplex``,
                ``cufftDoubleComplex``, ``cufftReal`` or ``cufftDoubleReal``, as the transform reads
                or writes. ``offset`` counts elements from the first one of the array::

                    __device__ T name(void* data, unsigned long long offset,
                                      void* unused, void* shared)
                    __device__ void name(void* data, unsigned long long offset, T element,
                                         void* unused, void* shared)

                A load callback returns the value for ``((T*)data)[offset]``. A store callback
                writes any value there.
            name: the function's name. Each source is compiled in its own namespace, so a load and a
                store callback may define the same names.
            cpu: the function to call on the CPU backend, with an array of the elements and one of
                their offsets; it returns the new elements. It must be picklable by cloudpickle.

        Returns:
            A value for ``load=`` and ``store=``. A source that does not compile raises
            ``CompileError`` at its first use.

        Raises:
            TypeError: source or name is not a str, or ``cpu`` is not callable.
            ValueError: the source does not name the function.
        """
        return make_callback(source, name, cpu)

    def clear(self) -> None:
        """Drop all plans and give the work area back, after the transforms in flight."""
        self._plans.clear()

    def statistics(self) -> WorkspaceStatistics:
        """Return the work areas that plans share."""
        return self._plans.workspaces.statistics(self.home)
