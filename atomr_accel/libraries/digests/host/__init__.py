"""Executors of the digests' lane."""
