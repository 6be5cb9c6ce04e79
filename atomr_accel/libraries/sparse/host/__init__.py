"""cuSPARSE: executors, inside a host."""
