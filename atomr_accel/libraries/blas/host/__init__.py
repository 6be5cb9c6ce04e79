"""cuBLAS: executors, inside a host."""
