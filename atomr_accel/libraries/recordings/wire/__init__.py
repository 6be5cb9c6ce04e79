"""Recordings: modules that both sides of the wall share."""
