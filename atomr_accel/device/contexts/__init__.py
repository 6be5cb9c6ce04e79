"""Contexts: one host each, from its preparation to its end."""
