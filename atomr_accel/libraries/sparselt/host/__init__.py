"""cuSPARSELt: executors, inside a host."""
