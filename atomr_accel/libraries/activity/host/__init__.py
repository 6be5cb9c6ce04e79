"""The executor of activity tracing, inside a host."""
