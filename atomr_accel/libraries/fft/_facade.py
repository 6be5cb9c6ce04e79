"""``device.fft``: Fourier transforms of buffers, as ``numpy.fft`` and ``scipy.fft``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from .._op import D
from ..array._steps import Describing
from ..wire._options import whole
from ..wire._recent import Recent
from ._cache import FftStatistics, PlanCache
from ._convolution import Convolutions
from ._steps import Known
from ._transforms import Transforms
from ._trigonometric import Trigonometric

if TYPE_CHECKING:
    from .._library import Home
    from ..cub._facade import Cub

_MOST_CALLS: Final = 1024


@final
class Fft(Trigonometric[D], Convolutions[D], Transforms[D]):
    """Fourier transforms, and what is made of them: cuFFT on CUDA, ``numpy.fft`` on the CPU.

    Names, arguments, shapes and results are those of ``numpy.fft`` and ``scipy.fft``: any axes
    of any array, cropped or padded with zeros to ``n`` or ``s``, and scaled as ``norm`` says
    (``"backward"``, the default, ``"ortho"`` or ``"forward"``). Convolutions and the chirp
    z-transform are those of ``scipy.signal``.

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

    Cosine and sine transforms, convolutions and the chirp z-transform are several steps that are
    submitted together: transforms, between expressions. They take any views.
    """

    def __init__(self, device: Home, cub: Cub[Any]) -> None:
        self._device = device
        self._calls = Recent(_MOST_CALLS)
        self._plans = PlanCache(device)
        described = Describing(device)
        self._known = Known(self._on(described), cub._on(described))

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
