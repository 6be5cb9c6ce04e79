"""Modules that both sides of the wall share, for all libraries."""
