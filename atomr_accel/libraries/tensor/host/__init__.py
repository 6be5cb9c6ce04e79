"""cuTENSOR: executors, inside a host."""
