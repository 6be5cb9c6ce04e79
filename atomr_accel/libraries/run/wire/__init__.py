"""The program's functions: modules that both sides of the wall share."""
