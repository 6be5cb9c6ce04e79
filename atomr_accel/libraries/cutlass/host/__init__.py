"""CUTLASS: executors, inside a host."""
