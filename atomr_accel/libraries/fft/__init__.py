"""cuFFT: Fourier transforms."""
