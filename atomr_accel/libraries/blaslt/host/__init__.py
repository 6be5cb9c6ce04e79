"""cuBLASLt: executors, inside a host."""
