"""NCCL: executors, inside a host."""
