"""The program's functions: what both sides of the wall know."""
