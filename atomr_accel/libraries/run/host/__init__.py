"""The program's functions: executors, inside a host."""
