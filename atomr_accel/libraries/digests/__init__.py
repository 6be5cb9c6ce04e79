"""Digests of durable buffers, which are computed on the device."""
