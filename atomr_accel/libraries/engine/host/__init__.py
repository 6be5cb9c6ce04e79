"""Executors of engines, inside a host."""
