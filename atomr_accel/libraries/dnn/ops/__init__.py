"""Convolution, normalisation and pointwise operations as calls."""
