"""CUTLASS: products and convolutions with tiles, schedules and epilogues of choice."""
