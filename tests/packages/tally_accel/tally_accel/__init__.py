"""A package that adds a library and a backend to atomr_accel."""
