"""NCCL: collectives of devices; what hosts do for ``atomr_accel.worlds``."""
