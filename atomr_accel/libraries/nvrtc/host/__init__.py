"""NVRTC: executors, inside a host."""
