"""The command line: ``atomr-accel``, or ``python -m atomr_accel``."""
