"""CUB: executors, inside a host."""
