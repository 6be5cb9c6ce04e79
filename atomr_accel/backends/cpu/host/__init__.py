"""The CPU's context and memory, inside a host."""
