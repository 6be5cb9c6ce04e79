"""Attention: calls, graphs, and paged caches of keys and values."""
