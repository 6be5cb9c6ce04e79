"""CUTLASS: what both sides of the wall know."""
