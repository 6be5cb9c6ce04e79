"""cuRAND: executors, inside a host."""
