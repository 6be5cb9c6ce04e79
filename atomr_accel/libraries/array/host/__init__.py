"""Arrays: executors, inside a host."""
