"""CUTLASS: matrix products with tiles, schedules and epilogues of choice."""
