"""cuRAND: random and quasi-random numbers."""
