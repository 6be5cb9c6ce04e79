"""Recordings: executors, inside a host."""
