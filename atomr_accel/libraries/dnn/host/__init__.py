"""cuDNN: executors, inside a host."""
