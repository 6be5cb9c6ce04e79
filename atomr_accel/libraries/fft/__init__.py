"""cuFFT: Fourier transforms."""

from ._cache import FftStatistics
from ._facade import Fft

__all__ = ["Fft", "FftStatistics"]
