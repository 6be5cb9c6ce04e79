"""Buffers that others see: the program's other libraries, other devices, other processes."""
