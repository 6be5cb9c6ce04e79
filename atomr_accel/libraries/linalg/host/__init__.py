"""cuSOLVER: executors, inside a host."""
