"""cuFFT: executors, inside a host."""
